// The pages of reports, which are files: each plot asks one question and is answered above, nothing is wider than the screen, letters can be
// read, on light and dark paper. TERRACE_REPORTS names the folder that has them, a folder each.
import { expect, test } from "@playwright/test";
import { readdirSync } from "node:fs";

const folder = process.env.TERRACE_REPORTS;
const shots = process.env.TERRACE_SHOTS ?? "test-results";
const reports = folder ? readdirSync(folder) : [];

test("there are reports to look at", () => {
  test.skip(!folder, "TERRACE_REPORTS names no folder");
  expect(reports.length).toBeGreaterThan(0);
});

// Relative luminance and contrast as of WCAG 2.
const contrast = () => {
  const light = (colour) => {
    const [red, green, blue] = colour.match(/[\d.]+/g).map(Number).map((part) => part / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const ratio = (ink) => (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  const shown = (element) => element.getClientRects().length > 0;
  const words = [...document.querySelectorAll("h1, h2, h3, p, th, td, figcaption, li, summary, footer")].filter(shown)
    .map((element) => [element.tagName + " " + element.textContent.slice(0, 40), ratio(light(getComputedStyle(element).color))]);
  const drawn = [...document.querySelectorAll(".plot text")].filter(shown)
    .map((element) => ["text " + element.textContent.trim(), ratio(light(getComputedStyle(element).fill))]);
  return [...words, ...drawn].filter(([, ratio]) => ratio < 4.5);
};

for (const report of reports) for (const scheme of ["light", "dark"]) for (const width of [1280, 400]) {
  test(`${report}: ${scheme}, ${width} pixels`, async ({ page }) => {
    await page.emulateMedia({ colorScheme: scheme });
    await page.setViewportSize({ width, height: 900 });
    await page.goto(`file://${folder}/${report}/report.html`);
    await page.screenshot({ path: `${shots}/${report}-${scheme}-${width}.png`, fullPage: true });
    // The page does not scroll sideways, and neither does a plot.
    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(width);
    const wide = await page.evaluate(() => [...document.querySelectorAll(".plot")]
      .filter((plot) => plot.scrollWidth > plot.clientWidth).map((plot) => plot.parentElement.id));
    expect(wide).toEqual([]);
    // The answer stands between the question and the drawing, in sight.
    const figures = await page.evaluate(() => [...document.querySelectorAll("figure")].map((figure) => {
      const drawings = [...figure.querySelectorAll(".plot > svg")].filter((svg) => svg.getClientRects().length > 0);
      const answer = figure.querySelector("figcaption, h3 + p");
      return {
        id: figure.id,
        question: figure.querySelector("h3")?.textContent ?? "",
        answer: answer?.textContent ?? "",
        drawings: drawings.length,
        drawn: figure.querySelector(".plot") !== null,
        above: !drawings[0] || (answer?.getBoundingClientRect().bottom ?? Infinity) <= drawings[0].getBoundingClientRect().top,
        letters: Math.min(...drawings.flatMap((svg) => [...svg.querySelectorAll("text")].map((text) => {
          const box = text.getBoundingClientRect();
          // A line's height, whichever way it runs: the shortest texts are higher than wide.
          return Math.max(box.width, box.height);
        })).filter((height) => height > 0)),
        units: drawings.every((svg) => /\(.+\)|second|idle|range/.test(svg.textContent)),
      };
    }));
    expect(figures.length).toBeGreaterThan(0);
    for (const figure of figures) {
      expect(figure.question, figure.id).toMatch(/\?$/);
      expect(figure.question, figure.id).not.toContain(" and ");
      expect(figure.answer, figure.id).toMatch(/^[^?]{8,}\.$/);
      expect(figure.above, `${figure.id}: the answer stands above`).toBe(true);
      if (figure.drawn) {
        expect(figure.drawings, `${figure.id}: one drawing is in sight`).toBe(1);
        expect(figure.letters, `${figure.id}: height of letters`).toBeGreaterThan(12);
        expect(figure.units, `${figure.id}: an axis names its unit`).toBe(true);
      }
    }
    expect(await page.evaluate(contrast)).toEqual([]);
  });
}
