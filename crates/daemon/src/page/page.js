// The page of terraced. It reads /api/v1 every two seconds and changes nothing. Everything is put in as text, never as markup:
// names of processes are chosen by strangers.
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
    row.append(element("td", one.brake || "off"));
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
  const [width, height] = [600, 200];
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const points = timeline.points;
  svg.replaceChildren();
  const sums = points.map((point) => point.tier_bytes.reduce((sum, one) => sum + one, 0));
  const most = Math.max(1, ...sums);
  for (const share of [0.25, 0.5, 0.75]) svg.append(shape("line", { class: "axis", x1: 0, x2: width, y1: height * share, y2: height * share }));
  const across = (index) => (points.length < 2 ? 0 : (index / (points.length - 1)) * width);
  const below = points.map(() => 0);
  timeline.tiers.forEach((_, tier) => {
    const top = points.map((point, index) => below[index] + (point.tier_bytes[tier] || 0));
    const up = top.map((value, index) => `${across(index).toFixed(1)},${(height - (value / most) * height).toFixed(1)}`);
    const down = below.map((value, index) => `${across(index).toFixed(1)},${(height - (value / most) * height).toFixed(1)}`).reverse();
    svg.append(shape("polygon", { class: "f" + Math.min(tier, 4), points: [...up, ...down].join(" ") }));
    top.forEach((value, index) => { below[index] = value; });
  });
  const last = points[points.length - 1];
  byId("tiers-legend").replaceChildren(...timeline.tiers.map((name, tier) => {
    const item = document.createElement("li");
    const sign = shape("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" });
    sign.append(shape("rect", { class: "f" + Math.min(tier, 4), width: 10, height: 10 }));
    item.append(sign, `${name}: ${last ? bytes(last.tier_bytes[tier] || 0) : "–"}`);
    return item;
  }));
  const span = points.length > 1 ? Math.round(last.time - points[0].time) : 0;
  byId("tiers-text").textContent = last
    ? `The last ${span} seconds; the top of the figure is ${bytes(most)}. ${last.occupied_bytes ? "Compressed memory takes " + bytes(last.occupied_bytes) + ". " : ""}` +
      `Moved so far: ${bytes(last.demoted_pages * 4096)} to slower memory, ${bytes(last.promoted_pages * 4096)} to faster; ${last.refaults.toLocaleString("en")} pages came back by themselves.`
    : "Nothing is known yet.";
}

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
    byId("heat-text").textContent = "No walk of this class's memory has been made yet.";
    return;
  }
  const [wide, high] = [canvas.width / columns, canvas.height / rows];
  heat.cells.forEach((column, x) => column.forEach((share, y) => {
    if (share < 0) return;
    pen.fillStyle = `rgb(${colour(share).join(",")})`;
    pen.fillRect(Math.floor(x * wide), Math.floor(y * high), Math.ceil(wide), Math.ceil(high));
  }));
  if (state.at) {
    state.at = [Math.min(state.at[0], columns - 1), Math.min(state.at[1], rows - 1)];
    pen.lineWidth = 2;
    pen.strokeStyle = getComputedStyle(document.body).color;
    pen.strokeRect(state.at[0] * wide + 1, state.at[1] * high + 1, Math.max(wide - 2, 2), Math.max(high - 2, 2));
    pointAt(state.at);
  } else {
    byId("heat-text").textContent = `${rows} stretches of ${bytes(heat.rows[0].bytes)}, ${columns} columns. ` +
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
    showHeat(chosen && chosen.rounds > 0 ? await get("/api/v1/heat?class=" + encodeURIComponent(chosen.name)).catch(() => null) : null);
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
