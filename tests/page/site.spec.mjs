// The documentation site, which is files: TERRACE_SITE names its folder (`make site`). The rows of the papers can be filtered, and are all there without
// scripts.
import { expect, test } from "@playwright/test";

const site = process.env.TERRACE_SITE;
const fidelity = `file://${site}/docs/fidelity.html`;
const shown = (page) => page.locator("main tbody tr:visible").count();

test.skip(!site, "TERRACE_SITE names no folder");

test("rows are filtered by paper, verdict and words", async ({ page }) => {
  await page.goto(fidelity);
  const all = await shown(page);
  const [paper, verdict] = [0, 1].map((place) => page.locator(".rows-filter select").nth(place));
  const [words, count] = ["input", "output"].map((name) => page.locator(`.rows-filter ${name}`));
  const total = Number((await count.textContent()).split(" ")[0]);
  expect(total).toBeGreaterThan(200);
  await verdict.selectOption("agrees");
  const agree = Number((await count.textContent()).split(" ")[0]);
  expect(agree).toBeGreaterThan(0);
  expect(agree).toBeLessThan(total);
  expect(await shown(page)).toBe(all - total + agree);
  await paper.selectOption("Tuna");
  await expect(page.locator("main h2:visible").filter({ hasText: "TieredMMS" })).toHaveCount(0);
  await verdict.selectOption("");
  await words.fill("bfs tpp");
  for (const row of await page.locator("main table:visible").last().locator("tbody tr:visible").allTextContents()) {
    expect(row.toLowerCase()).toContain("bfs");
    expect(row.toLowerCase()).toContain("tpp");
  }
  await words.fill("");
  await paper.selectOption("");
  expect(await shown(page)).toBe(all);
});

test("the filter stands on no other page", async ({ page }) => {
  await page.goto(`file://${site}/docs/experiments.html`);
  await expect(page.locator("main h1")).toHaveCount(1);
  await expect(page.locator(".rows-filter")).toHaveCount(0);
});

test.describe("without scripts", () => {
  test.use({ javaScriptEnabled: false });
  test("all rows are there", async ({ page }) => {
    await page.goto(fidelity);
    expect(await shown(page)).toBeGreaterThan(200);
    await expect(page.locator(".rows-filter")).toHaveCount(0);
  });
});
