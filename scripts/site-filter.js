// Filters the rows of docs/fidelity.md on the site: by paper, by verdict, and by words in the row.
//
// In: the tables of a page whose columns include `row` and `verdict`, each below a heading with its paper. Out: two selects and a box above the first of
// them; rows, and sections of which no row is left, are hidden. Must not: change or fetch anything; without it the page shows all rows.
"use strict";

(() => {
  const text = (element) => element.textContent.replace(/\s+/g, " ").trim();

  // The sections: heading, table, and for each row its verdict and words.
  const sections = [...document.querySelectorAll("main table")].flatMap((table) => {
    const columns = [...table.querySelectorAll("thead th")].map(text);
    const at = columns.indexOf("verdict");
    if (at < 0 || columns[0] !== "row") return [];
    // The printed book has all pages on one: only what stands before the table counts.
    const heading = [...document.querySelectorAll("main h2")]
      .filter((one) => one.compareDocumentPosition(table) & Node.DOCUMENT_POSITION_FOLLOWING).pop();
    const rows = [...table.querySelectorAll("tbody tr")]
      .map((row) => ({ row, verdict: text(row.cells[at]), words: text(row).toLowerCase() }));
    return heading ? [{ paper: text(heading), heading, table, rows }] : [];
  });
  const all = sections.flatMap((section) => section.rows);
  if (all.length === 0 || /(^|\/)print(\.html)?$/.test(location.pathname)) return;

  const element = (name, properties, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };
  const choice = (label, every, options) => {
    const select = element("select", {}, element("option", { value: "" }, every),
      ...options.map(([value, rows]) => element("option", { value }, `${value} (${rows})`)));
    form.append(element("label", {}, `${label} `, select));
    return select;
  };
  const form = element("form", { className: "rows-filter" });
  form.setAttribute("role", "search");
  form.setAttribute("aria-label", "Rows of the papers");
  form.style.cssText = "display: flex; flex-wrap: wrap; gap: 0.5em 1.5em; align-items: baseline; margin: 1em 0";
  const papers = choice("Paper", "all papers", sections.map(({ paper, rows }) => [paper, rows.length]));
  const verdicts = new Map();
  for (const { verdict } of all) verdicts.set(verdict, (verdicts.get(verdict) ?? 0) + 1);
  const verdict = choice("Verdict", "all verdicts", [...verdicts].sort(([, few], [, many]) => many - few));
  const words = element("input", { type: "search", placeholder: "such as silo memtis" });
  // Terms that all must occur; keys typed here must not turn the book's pages.
  words.addEventListener("keydown", (event) => event.stopPropagation());
  form.append(element("label", {}, "Words ", words));
  const count = element("output", {});
  form.append(count);

  const apply = () => {
    const terms = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { paper, heading, table, rows } of sections) {
      let left = 0;
      for (const one of rows) {
        const fits = (papers.value === "" || papers.value === paper) && (verdict.value === "" || verdict.value === one.verdict)
          && terms.every((term) => one.words.includes(term));
        one.row.hidden = !fits;
        left += fits;
      }
      heading.hidden = table.hidden = left === 0;
      shown += left;
    }
    count.textContent = `${shown} of ${all.length} rows`;
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  sections[0].heading.before(form);
  apply();
})();
