// The page of a running daemon: TERRACE_PAGE says where (http://127.0.0.1:9464 otherwise). CHROMIUM names the browser, so that a
// distribution's own can be used in place of a download.
export default {
  testDir: ".",
  timeout: 60_000,
  workers: 1,
  reporter: "list",
  outputDir: process.env.TERRACE_SHOTS ?? "test-results",
  use: {
    baseURL: process.env.TERRACE_PAGE ?? "http://127.0.0.1:9464",
    // The page shows everything, and asks for the token of access.read.
    httpCredentials: process.env.TERRACE_TOKEN ? { username: "page", password: process.env.TERRACE_TOKEN } : undefined,
    launchOptions: { executablePath: process.env.CHROMIUM || undefined, args: ["--no-sandbox"] },
  },
};
