import { expect, test } from "@playwright/test";

const shots = process.env.TERRACE_SHOTS ?? "test-results";

test.beforeEach(async ({ page }) => {
  page.complaints = [];
  page.on("console", (message) => { if (message.type() === "error") page.complaints.push(message.text()); });
  page.on("pageerror", (error) => page.complaints.push(String(error)));
  page.on("request", (request) => {
    if (!request.url().startsWith(process.env.TERRACE_PAGE ?? "http://127.0.0.1:9464") && !request.url().startsWith("data:")) {
      page.complaints.push("asks elsewhere: " + request.url());
    }
  });
});

test.afterEach(({ page }) => expect(page.complaints).toEqual([]));

for (const scheme of ["light", "dark"]) {
  test(`it loads, updates and draws (${scheme})`, async ({ page }) => {
    // The class with a target waits for its performance database, which is built behind the programs.
    test.setTimeout(180_000);
    await page.emulateMedia({ colorScheme: scheme });
    await page.goto("/");
    await expect(page.locator("#line")).toContainText("processes in");
    await expect(page.locator("#classes tbody tr").first()).toBeVisible();
    const updates = () => page.evaluate(() => Number(document.body.dataset.updates || 0));
    const before = await updates();
    // How soon is a matter of the machine's load.
    await expect.poll(updates, { timeout: 30_000 }).toBeGreaterThan(before + 1);
    await expect(page.locator("#tiers polygon").first()).toBeAttached();
    await expect(page.locator("#feed li").first()).toBeVisible();
    // The heat map is drawn: it has cells, and more than one colour.
    await expect.poll(() => page.evaluate(() => Number(document.getElementById("heat").dataset.cells || 0))).toBeGreaterThan(0);
    const colours = await page.evaluate(() => {
      const canvas = document.getElementById("heat");
      const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      const seen = new Set();
      for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 0) seen.add(`${data[at]},${data[at + 1]},${data[at + 2]}`);
      return seen.size;
    });
    expect(colours).toBeGreaterThan(1);
    // The bins are drawn with the policy's lines, and what the tuner of the class with goal tuned observed.
    await expect.poll(() => page.evaluate(() => Number(document.getElementById("bins").dataset.bars || 0))).toBeGreaterThan(1);
    await expect(page.locator("#bins .limit")).toHaveCount(2);
    await expect(page.locator("#sizing-text")).toContainText("The goal is not tuned");
    await page.getByLabel("Class shown here").selectOption("tuned");
    await expect.poll(() => page.evaluate(() => Number(document.getElementById("sizing").dataset.points || 0)), { timeout: 120_000 })
      .toBeGreaterThan(2);
    await expect(page.locator("#sizing .limit")).toHaveCount(1);
    await expect(page.locator("#sizing-text")).toContainText("Last decision");
    await page.screenshot({ path: `${shots}/page-${scheme}.png`, fullPage: true });
  });
}

test("it fits a telephone, with letters that can be read", async ({ page }) => {
  await page.setViewportSize({ width: 390, height: 800 });
  await page.goto("/");
  await expect.poll(() => page.evaluate(() => Number(document.getElementById("bins").dataset.bars || 0))).toBeGreaterThan(1);
  expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(390);
  const letters = await page.evaluate(() => [...document.querySelectorAll(".chart text")].map((text) => text.getBoundingClientRect().height));
  expect(letters.length).toBeGreaterThan(5);
  // 12 pixels of letter make a line of 13 or more; pictures that are scaled down make less.
  expect(Math.min(...letters)).toBeGreaterThan(12);
  await page.screenshot({ path: `${shots}/page-narrow.png`, fullPage: true });
});

test("it can be used by keyboard, and says what it shows", async ({ page }) => {
  await page.goto("/");
  await page.keyboard.press("Tab");
  await expect(page.locator(".skip")).toBeFocused();
  await page.locator("#heat").focus();
  await expect.poll(() => page.evaluate(() => Number(document.getElementById("heat").dataset.cells || 0))).toBeGreaterThan(0);
  await page.keyboard.press("ArrowLeft");
  await expect(page.locator("#heat-text")).toContainText("pid");
  for (const role of ["table", "combobox", "status", "heading"]) await expect(page.getByRole(role).first()).toBeAttached();
  await page.locator("section", { has: page.locator("#bins") }).getByText("As a table").press("Enter");
  await expect(page.locator("#bins-table tbody tr")).toHaveCount(16);
  await page.getByLabel("Show", { exact: true }).selectOption("process");
  await expect(page.locator("#feed li").first()).toContainText("joined");
  await page.getByLabel("Pause updates").check();
  const updates = () => page.evaluate(() => Number(document.body.dataset.updates || 0));
  // What was being asked for when the box was ticked may still come in.
  await page.waitForTimeout(2000);
  const before = await updates();
  await page.waitForTimeout(3000);
  expect(await updates()).toBe(before);
});

test("nothing of another site may load, frame it or change it", async ({ request }) => {
  const page = await request.get("/");
  expect(page.headers()["content-security-policy"]).toContain("default-src 'none'");
  expect((await request.post("/api/v1/status")).status()).toBe(405);
  expect((await request.get("/metrics", { headers: { Host: "evil.example" } })).status()).toBe(403);
});
