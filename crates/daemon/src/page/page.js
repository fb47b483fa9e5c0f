// The web interface of terraced. It reads /api/v1 every two seconds and changes nothing. Everything is inserted as text, never as
// markup: other users choose the names of processes.
"use strict";

const PACE = 2000;
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);
const state = { last: 0, heat: null, at: null, feed: [], failures: 0, timer: null };

function bytes(amount) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (amount >= 1024 && unit < units.length - 1) { amount /= 1024; unit += 1; }
  return (unit === 0 || amount >= 100 ? amount.toFixed(0) : amount.toFixed(1)) + " " + units[unit];
}
const percent = (share, digits = 1) => (share === null || share === undefined ? "–" : (share * 100).toFixed(digits) + " %");

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

async function get(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(8000) });
  if (!answer.ok) throw new Error(path + " answers " + answer.status);
  return answer.json();
}

// States of page-outs in words. While they are limited pages leave; while they are stopped none do.
const PAGE_OUTS = {
  free: "not limited",
  limited_to_bound: "limited to the bound",
  stopped_came_back: "stopped because pages came back",
  stopped_compression: "stopped because data hardly compress",
  stopped_promotions: "stopped at max_promotions",
};

function showStatus(status) {
  const processes = status.classes.reduce((sum, one) => sum + one.processes, 0);
  byId("line").textContent = `${status.state}: ${processes} processes in ${status.classes.length} classes; Terrace itself uses ` +
    `${percent(status.own.cpu_share, 2)} of one core and ${bytes(status.own.resident_bytes)}; version ${status.version}`;
  const body = byId("classes").tBodies[0];
  body.replaceChildren(...status.classes.map((one) => {
    const row = document.createElement("tr");
    const head = element("th", one.name);
    head.scope = "row";
    const stateCell = element("td", one.state, ["failed", "stopped"].includes(one.state) ? "bad" : "");
    if (one.reason) stateCell.title = one.reason;
    row.append(head, stateCell, element("td", `${one.goal} (${one.policy})`));
    const numbers = [one.processes, bytes(one.fast_bytes), bytes(one.slow_bytes), bytes(one.active_bytes), bytes(one.granted_bytes),
      bytes(one.floor_bytes), percent(one.hit_share), one.refaults.toLocaleString("en"), percent(one.stall_share, 2)];
    for (const number of numbers) row.append(element("td", String(number), "number"));
    row.append(element("td", PAGE_OUTS[one.page_outs] || one.page_outs));
    return row;
  }));
  const budget = status.budget;
  const rows = [
    ["fast memory", `${bytes(budget.fast_used_bytes)} of ${bytes(budget.fast_bytes)}`],
    ["moves", budget.bandwidth_bytes_per_second ? `${bytes(budget.bandwidth_bytes_per_second)} a second` : "no bound"],
    ["Terrace's own CPU", `${percent(status.own.cpu_share, 2)} of ${percent(budget.cpu_share, 2)}`],
    ["of that, watching", percent(budget.cpu_overhead_share, 2)],
    ["Terrace's memory", bytes(status.own.resident_bytes)],
    ["state of pages", bytes(status.own.page_state_bytes)],
    ["new processes", status.process_events.split(":")[0]],
  ];
  byId("budget").replaceChildren(...rows.flatMap(([name, value]) => [element("dt", name), element("dd", value)]));
  const select = byId("heat-class");
  const names = status.classes.map((one) => one.name);
  if ([...select.options].map((option) => option.value).join() !== names.join()) {
    const chosen = select.value;
    select.replaceChildren(...names.map((name) => new Option(name, name, false, name === chosen)));
  }
  const others = [
    ...status.rivals.map((one) => `${one.name} (${one.state}): ${one.effect}`),
    ...status.refused.map((one) => `pid ${one.pid} (${one.name}) of class ${one.class} is not managed: ${one.reason}`),
    ...status.notes,
  ];
  byId("others").hidden = others.length === 0;
  byId("others-list").replaceChildren(...others.map((text) => element("li", text)));
}

function showTimeline(timeline) {
  const svg = byId("tiers");
  const points = timeline.points;
  const sums = points.map((point) => point.tier_bytes.reduce((sum, one) => sum + one, 0));
  const most = Math.max(1, ...sums);
  measure(svg, 190);
  const up = (amount) => BOX.bottom - (amount / most) * (BOX.bottom - BOX.top);
  // A mark at each whole number of KiB, MiB or GiB that is a power of two, four of them at most.
  const step = 2 ** Math.ceil(Math.log2(most / 4));
  const marks = [];
  for (let amount = step; amount <= most; amount += step) marks.push({ y: up(amount), text: bytes(amount) });
  const last = points[points.length - 1];
  const span = points.length > 1 ? Math.round(last.time - points[0].time) : 0;
  const across = (index) => BOX.left + (points.length < 2 ? 0 : (index / (points.length - 1)) * (BOX.right - BOX.left));
  svg.replaceChildren();
  const below = points.map(() => 0);
  timeline.tiers.forEach((_, tier) => {
    const top = points.map((point, index) => below[index] + (point.tier_bytes[tier] || 0));
    const above = top.map((value, index) => `${across(index).toFixed(1)},${up(value).toFixed(1)}`);
    const under = below.map((value, index) => `${across(index).toFixed(1)},${up(value).toFixed(1)}`).reverse();
    svg.append(shape("polygon", { class: "f" + Math.min(tier, 4), points: [...above, ...under].join(" ") }));
    top.forEach((value, index) => { below[index] = value; });
  });
  frame(svg, marks, "");
  if (span > 0) label(svg, BOX.left, BOX.bottom + 16, ago(span), "");
  label(svg, BOX.right, BOX.bottom + 16, "now", "end");
  byId("tiers-legend").replaceChildren(...timeline.tiers.map((name, tier) => {
    const text = `${name}: ${last ? bytes(last.tier_bytes[tier] || 0) : "–"}`;
    return sign("f" + Math.min(tier, 4), text);
  }));
  byId("tiers-text").textContent = last
    ? (last.occupied_bytes ? `Compressed memory takes ${bytes(last.occupied_bytes)}. ` : "") +
      `Moved so far: ${bytes(last.demoted_pages * 4096)} to slower memory, ${bytes(last.promoted_pages * 4096)} to faster; ${last.refaults.toLocaleString("en")} pages came back by themselves.`
    : "No data yet.";
}

const ago = (seconds) => (seconds < 120 ? `${seconds} seconds ago` : `${Math.round(seconds / 60)} minutes ago`);

// From not used to all used; both ends can be told from the background and from each other without colour, by lightness.
function colour(share) {
  const stops = [[46, 60, 99], [52, 111, 158], [78, 166, 150], [178, 205, 96], [250, 230, 110]];
  const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2);
  return stops[low].map((value, index) => Math.round(value + (stops[low + 1][index] - value) * (at - low)));
}

function showHeat(heat) {
  state.heat = heat;
  const canvas = byId("heat");
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, canvas.width, canvas.height);
  const [columns, rows] = [heat ? heat.columns.length : 0, heat ? heat.rows.length : 0];
  canvas.dataset.cells = String(columns * rows);
  if (columns * rows === 0) {
    state.at = null;
    byId("heat-text").textContent = "The memory of this class has not been scanned yet.";
    byId("heat-from").textContent = "";
    return;
  }
  byId("heat-from").textContent = ago(Math.round(Date.now() / 1000 - heat.columns[0]));
  const [wide, high] = [canvas.width / columns, canvas.height / rows];
  heat.cells.forEach((column, x) => column.forEach((share, y) => {
    if (share < 0) return;
    pen.fillStyle = `rgb(${colour(share).join(",")})`;
    pen.fillRect(Math.floor(x * wide), Math.floor(y * high), Math.ceil(wide), Math.ceil(high));
  }));
  // A line where one process ends and the next begins.
  pen.fillStyle = getComputedStyle(document.body).color;
  const pids = heat.rows.map((row) => row.pid).filter((pid, y, all) => y === 0 || all[y - 1] !== pid);
  heat.rows.forEach((row, y) => { if (y > 0 && heat.rows[y - 1].pid !== row.pid) pen.fillRect(0, Math.floor(y * high) - 1, canvas.width, 2); });
  if (state.at) {
    state.at = [Math.min(state.at[0], columns - 1), Math.min(state.at[1], rows - 1)];
    pen.lineWidth = 2;
    pen.strokeStyle = getComputedStyle(document.body).color;
    pen.strokeRect(state.at[0] * wide + 1, state.at[1] * high + 1, Math.max(wide - 2, 2), Math.max(high - 2, 2));
    pointAt(state.at);
  } else {
    const named = pids.slice(0, 8).join(", ") + (pids.length > 8 ? ` and ${pids.length - 8} more` : "");
    const stretches = heat.rows[0].bytes < 2 ** 46 ? `${rows} stretches of ${bytes(heat.rows[0].bytes)}` : "one row a process";
    const out = heat.processes_left_out ? `; ${heat.processes_left_out} more processes are not shown` : "";
    byId("heat-text").textContent = `From the top: pid ${named}; ${stretches}${out}. ` +
      "Point at the map, or move over it with the arrow keys.";
  }
}

function pointAt([x, y]) {
  const { heat } = state;
  const [row, share] = [heat.rows[y], heat.cells[x][y]];
  const seconds = Math.round(Date.now() / 1000 - heat.columns[x]);
  byId("heat-text").textContent = `pid ${row.pid}, ${bytes(row.bytes)} from 0x${row.address.toString(16)}, ${seconds} seconds ago: ` +
    (share < 0 ? "not looked at" : percent(share, 0) + " of the pages used");
}

// Where a chart lies in its picture, in pixels of the screen, so that its letters are as large on a telephone as on a desk. Room for
// text is left below and on the left.
const BOX = { left: 66, right: 510, top: 16, bottom: 222 };
function measure(svg, bottom) {
  const wide = Math.max(Math.round(svg.parentElement.clientWidth), 240);
  BOX.right = wide - 20;
  BOX.bottom = bottom;
  svg.setAttribute("viewBox", `0 0 ${wide} ${bottom + 22}`);
}

// Its axes with their marks, and what stands below in as many lines as it needs.
function frame(svg, marks, unit) {
  for (const { y, text } of marks) {
    svg.append(shape("line", { class: "axis", x1: BOX.left, x2: BOX.right, y1: y, y2: y }));
    label(svg, BOX.left - 6, y + 4, text, "end");
  }
  svg.append(shape("line", { class: "axis", x1: BOX.left, x2: BOX.right, y1: BOX.bottom, y2: BOX.bottom }));
  const [wide, lines] = [BOX.right + 20, [""]];
  for (const word of unit.split(" ")) {
    const longer = `${lines[lines.length - 1]} ${word}`.trim();
    // A letter of 12 pixels is hardly ever wider than 6.5.
    if (longer.length * 6.5 <= wide) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  if (unit) lines.forEach((line, index) => label(svg, wide / 2, BOX.bottom + 34 + 15 * index, line, "middle"));
  svg.setAttribute("viewBox", `0 0 ${wide} ${BOX.bottom + (unit ? 26 + 15 * lines.length : 22)}`);
}

function label(svg, x, y, text, kind) {
  const made = shape("text", { x, y, class: kind });
  made.textContent = text;
  svg.append(made);
}

const plain = (value) => (Math.abs(value) >= 10 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(2));

// How pages spread over the policy's score, in the same colours as the tiers; by decades, since nearly all may lie in one bin.
function showBins(view) {
  const svg = byId("bins");
  const body = byId("bins-table").tBodies[0];
  if (!view || view.bins.length === 0) {
    svg.replaceChildren();
    body.replaceChildren();
    byId("bins-legend").replaceChildren();
    svg.dataset.bars = "0";
    byId("bins-text").textContent = view && view.note ? view.note : "The memory of this class has not been scanned yet.";
    return;
  }
  svg.replaceChildren();
  measure(svg, 222);
  const least = 4096;
  const most = Math.max(least * 1024, ...view.bins.map((bin) => bin.bytes));
  const height = (amount) => (amount <= least ? 0 : (Math.log(amount / least) / Math.log(most / least)) * (BOX.bottom - BOX.top));
  const marks = [];
  for (let amount = 65536; amount <= most; amount *= 16) marks.push({ y: BOX.bottom - height(amount), text: bytes(amount) });
  frame(svg, marks, view.ranked_by);
  const wide = (BOX.right - BOX.left) / view.bins.length;
  let bars = 0;
  const bar = (x, width, amount, kind) => {
    const high = height(amount);
    if (high <= 0) return;
    bars += 1;
    svg.append(shape("rect", { class: kind, x: x.toFixed(1), y: (BOX.bottom - high).toFixed(1), width: width.toFixed(1), height: high.toFixed(1) }));
  };
  const every = Math.ceil(view.bins.length / Math.max(Math.floor((BOX.right - BOX.left) / 55), 2));
  view.bins.forEach((bin, index) => {
    const x = BOX.left + index * wide;
    if (bin.fast_bytes === null) {
      bar(x + wide * 0.15, wide * 0.7, bin.bytes, "f2");
    } else {
      bar(x + wide * 0.1, wide * 0.4, bin.fast_bytes, "f0");
      bar(x + wide * 0.5, wide * 0.4, bin.bytes - bin.fast_bytes, "f1");
    }
    if (index % every === 0) label(svg, x, BOX.bottom + 16, plain(bin.from), "middle");
  });
  const place = (at) => {
    const found = view.bins.findIndex((bin) => bin.to === null || at < bin.to);
    const bin = view.bins[found];
    const inside = bin.to === null ? 0 : (at - bin.from) / (bin.to - bin.from);
    return BOX.left + (found + Math.max(inside, 0)) * wide;
  };
  for (const line of view.thresholds) {
    const x = place(line.at);
    svg.append(shape("line", { class: "limit", x1: x, x2: x, y1: BOX.top - 4, y2: BOX.bottom }));
    label(svg, x + 4, BOX.top + 6, line.name, "named");
  }
  svg.dataset.bars = String(bars);
  const legend = view.bins[0].fast_bytes === null ? [["f2", "in any tier"]] : [["f0", "in fast memory"], ["f1", "in slower memory"]];
  byId("bins-legend").replaceChildren(...legend.map(([kind, name]) => sign(kind, name)));
  body.replaceChildren(...view.bins.map((bin) => {
    const row = document.createElement("tr");
    const head = element("th", plain(bin.from));
    head.scope = "row";
    const [fast, slow] = bin.fast_bytes === null ? ["any tier: " + bytes(bin.bytes), "–"] : [bytes(bin.fast_bytes), bytes(bin.bytes - bin.fast_bytes)];
    row.append(head, element("td", fast, "number"), element("td", slow, "number"));
    return row;
  }));
  const lines = view.thresholds.map((line) => `${line.name} at ${plain(line.at)}`).join(", ");
  byId("bins-text").textContent = `Policy ${view.policy}. Each mark upwards is sixteen times as much. Lines: ${lines || "none"}.` +
    (view.looked_at_share < 0.999 ? ` Scaled up from ${percent(view.looked_at_share, 0)} of the pages.` : "");
}

function sign(kind, text) {
  const item = document.createElement("li");
  const drawn = shape("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" });
  drawn.append(shape("rect", { class: kind, width: 10, height: 10 }));
  item.append(drawn, text);
  return item;
}

// The loss that was observed at each share of fast memory, and where the class is held.
function showSizing(view, chosen) {
  const svg = byId("sizing");
  const body = byId("sizing-table").tBodies[0];
  svg.dataset.points = "0";
  const nothing = !view || view.decisions.length === 0;
  for (const part of [svg, byId("sizing-more")]) part.toggleAttribute("hidden", nothing);
  if (nothing) {
    svg.replaceChildren();
    body.replaceChildren();
    byId("sizing-text").textContent = !chosen || !chosen.tuned
      ? `The goal is not tuned. With class.${chosen ? chosen.name : "NAME"}.goal = "tuned" and max_slowdown = "5%" the least fast memory is found at which the class is at most 5 % slower.`
      : chosen.tuned.waits || "The first window has not ended yet.";
    return;
  }
  svg.replaceChildren();
  measure(svg, 222);
  const seen = view.decisions.map((one, index) => [index > 0 ? view.decisions[index - 1].fast_share : 1, one.observed_loss])
    .filter(([, loss]) => loss !== null);
  const most = Math.max(view.max_slowdown * 3, ...seen.map(([, loss]) => Math.min(loss, view.max_slowdown * 10)));
  const across = (share) => BOX.left + share * (BOX.right - BOX.left);
  const up = (loss) => BOX.bottom - (Math.min(Math.max(loss, 0), most) / most) * (BOX.bottom - BOX.top);
  // Marks at 1, 2 or 5 times a power of ten, five of them at most.
  const tenth = 10 ** Math.floor(Math.log10(most / 2));
  const step = [1, 2, 5, 10].map((times) => times * tenth).find((one) => most / one <= 5.01);
  const marks = [];
  for (let count = 1; count * step <= most * 1.001; count += 1) marks.push({ y: up(count * step), text: percent(count * step, step < 0.001 ? 2 : step < 0.01 ? 1 : 0) });
  frame(svg, marks, "share of its memory that is fast; upwards: how much slower");
  for (const share of [0, 0.25, 0.5, 0.75, 1]) label(svg, across(share), BOX.bottom + 16, percent(share, 0), "middle");
  for (const [share, loss] of seen) svg.append(shape("circle", { class: "seen", cx: across(share).toFixed(1), cy: up(loss).toFixed(1), r: 3 }));
  svg.append(shape("line", { class: "limit", x1: BOX.left, x2: BOX.right, y1: up(view.max_slowdown), y2: up(view.max_slowdown) }));
  label(svg, BOX.left + 4, up(view.max_slowdown) - 5, `target ${percent(view.max_slowdown)}`, "named");
  svg.append(shape("line", { class: "now", x1: across(view.fast_share), x2: across(view.fast_share), y1: BOX.top, y2: BOX.bottom }));
  const right = view.fast_share > 0.8;
  label(svg, across(view.fast_share) + (right ? -4 : 4), BOX.top + 6, `now ${percent(view.fast_share, 0)}`, right ? "named end" : "named");
  svg.dataset.points = String(seen.length);
  // The latest first.
  body.replaceChildren(...seen.slice(-10).reverse().map(([share, loss]) => {
    const row = document.createElement("tr");
    const head = element("th", percent(share, 1));
    head.scope = "row";
    row.append(head, element("td", percent(loss, 2), "number"));
    return row;
  }));
  const last = view.decisions[view.decisions.length - 1];
  byId("sizing-text").textContent = "Dots: what was observed in the latest windows. " +
    (last ? `Last decision: ${last.action.replace("_", " ")}, ${percent(last.fast_share, 0)} stay fast; loss ${percent(last.observed_loss, 2)} observed.` : "");
}

function showScale() {
  const pen = byId("heat-scale").getContext("2d");
  for (let x = 0; x < 160; x += 1) {
    pen.fillStyle = `rgb(${colour(x / 159).join(",")})`;
    pen.fillRect(x, 0, 1, 12);
  }
}

function showFeed(news) {
  if (news.length > 0) {
    state.last = news[news.length - 1].number;
    state.feed = [...state.feed, ...news].slice(-400);
  }
  const kind = byId("feed-kind").value;
  const wanted = state.feed.filter((one) => !kind || one.kind === kind).slice(-100).reverse();
  byId("feed").replaceChildren(...wanted.map((one) => {
    const item = element("li", undefined, ["fault", "rival"].includes(one.kind) ? "bad" : "");
    const time = element("time", new Date(one.time * 1000).toLocaleTimeString("en-GB"));
    time.dateTime = new Date(one.time * 1000).toISOString();
    item.append(time, element("b", one.class || one.kind), one.text);
    return item;
  }));
}

async function update() {
  clearTimeout(state.timer);
  try {
    const [status, timeline, news] = await Promise.all(
      [get("/api/v1/status"), get("/api/v1/timeline"), get("/api/v1/history?limit=400&after=" + state.last)]);
    showStatus(status);
    showTimeline(timeline);
    showFeed(news);
    const chosen = status.classes.find((one) => one.name === byId("heat-class").value);
    const of = async (picture, there) =>
      (chosen && there ? get(`/api/v1/${picture}?class=${encodeURIComponent(chosen.name)}`).catch(() => null) : null);
    const walked = chosen && chosen.rounds > 0;
    const [heat, bins, sizing] = await Promise.all(
      [of("heat", walked), of("bins", walked), of("sizing", walked && chosen.tuned && !chosen.tuned.waits)]);
    showHeat(heat);
    showBins(bins);
    showSizing(sizing, chosen);
    state.failures = 0;
    byId("trouble").hidden = true;
    document.body.dataset.updates = String(Number(document.body.dataset.updates || 0) + 1);
  } catch (error) {
    state.failures += 1;
    byId("trouble").textContent = `terraced does not answer (${error.message}); what stands here is old. It is asked again.`;
    byId("trouble").hidden = false;
  }
  if (!byId("still").checked) state.timer = setTimeout(update, PACE * Math.min(1 + state.failures, 10));
}

byId("still").addEventListener("change", (event) => {
  clearTimeout(state.timer);
  if (!event.target.checked) update();
});
byId("heat-class").addEventListener("change", () => { state.at = null; update(); });
byId("feed-kind").addEventListener("change", () => showFeed([]));
byId("heat").addEventListener("pointermove", (event) => {
  if (!state.heat || state.heat.columns.length * state.heat.rows.length === 0) return;
  const box = event.target.getBoundingClientRect();
  const x = Math.min(Math.floor(((event.clientX - box.left) / box.width) * state.heat.columns.length), state.heat.columns.length - 1);
  const y = Math.min(Math.floor(((event.clientY - box.top) / box.height) * state.heat.rows.length), state.heat.rows.length - 1);
  pointAt([Math.max(x, 0), Math.max(y, 0)]);
});
byId("heat").addEventListener("keydown", (event) => {
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (!step || !state.heat || state.heat.columns.length * state.heat.rows.length === 0) return;
  event.preventDefault();
  const [x, y] = state.at || [state.heat.columns.length - 1, 0];
  state.at = [Math.min(Math.max(x + step[0], 0), state.heat.columns.length - 1), Math.min(Math.max(y + step[1], 0), state.heat.rows.length - 1)];
  showHeat(state.heat);
});
showScale();
update();
