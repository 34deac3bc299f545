"use strict";
// Sorting, filtering and expanding work on the tables as they stand in the page; only the chart is drawn here.
// Strings from result files reach the page through textContent and setAttribute, never as markup.

const data = JSON.parse(document.getElementById("data").textContent);

// ---- sorting: a click on a header sorts its table, a second click the other way round; missing values stay last

function sortBy(header) {
  const table = header.closest("table");
  const column = header.cellIndex;
  const up = header.getAttribute("aria-sort")
    ? header.getAttribute("aria-sort") === "descending"
    : header.dataset.first === "ascending";
  for (const other of header.parentNode.children) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", up ? "ascending" : "descending");
  const bodies = [...table.tBodies];
  const items = bodies.length > 1 ? bodies : [...bodies[0].rows];
  const value = (item) => (item.rows ? item.rows[0] : item).cells[column].dataset.value;
  const compare = (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
    const [m, n] = [Number(x), Number(y)];
    const order = Number.isNaN(m) || Number.isNaN(n) ? x.localeCompare(y, undefined, { numeric: true }) : m - n;
    return up ? order : -order;
  };
  const parent = bodies.length > 1 ? table : bodies[0];
  items.sort(compare).forEach((item) => parent.append(item));
  for (const row of table.querySelectorAll("tr.first")) row.classList.remove("first");
}

document.addEventListener("click", (event) => {
  const header = event.target.closest("th button");
  if (header) sortBy(header.parentNode);
  const expand = event.target.closest(".expand");
  if (expand) {
    const open = expand.getAttribute("aria-expanded") !== "true";
    expand.setAttribute("aria-expanded", open);
    document.getElementById(expand.getAttribute("aria-controls")).hidden = !open;
  }
});

// ---- filtering the leaderboard

const filters = document.getElementById("filters");

function filterRows() {
  const wanted = filters.elements.model.value.trim().toLowerCase();
  const rows = [...document.querySelectorAll("#leaderboard tbody.row")];
  for (const row of rows) {
    row.hidden = !(
      row.dataset.model.toLowerCase().includes(wanted) &&
      (!filters.elements.shots.value || row.dataset.shots === filters.elements.shots.value) &&
      (!filters.elements.method.value || row.dataset.method === filters.elements.method.value)
    );
  }
  document.getElementById("leaderboard").classList.toggle("one-shots", filters.elements.shots.value !== "");
  const shown = rows.filter((row) => !row.hidden).length;
  document.getElementById("shown").textContent = `${shown} of ${rows.length} rows`;
}

for (const kind of ["input", "change"]) filters.addEventListener(kind, filterRows);
filters.addEventListener("submit", (event) => event.preventDefault());
filterRows();

// ---- the chart: per model and dataset, raw and calibrated accuracy, and every seed of both

const choice = document.getElementById("chart-choice");
const chart = document.getElementById("chart");

function draw(parent, name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

function shorten(text, limit) {
  const name = [...text.textContent];
  while (name.length > 1 && text.getComputedTextLength() > limit) {
    name.pop();
    text.textContent = name.join("") + "…";
  }
}

const widest = (texts) => Math.ceil(Math.max(...texts.map((text) => text.getComputedTextLength())));

// ---- several prompts: a strip of dots for raw and one for the method, their means, and all prompts together

function ticks([low, high]) {
  const step = [0.05, 0.1, 0.2, 0.25].find((size) => (high - low) / size <= 5.5) ?? 0.5;
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor((high - low) / step + 1e-9) + 1 }, (_, k) => (first + k) * step)
    .filter((tick) => tick <= high + 1e-9);
}

function drawStrip(row, y, x, one, ensembles, kind) {
  const values = Object.values(one.by_seed);
  draw(row, "line", { class: "track", x1: x(Math.min(...values)), x2: x(Math.max(...values)), y1: y, y2: y });
  // Not all on one line, so that equal prompts are seen.
  values.forEach((value, k) => draw(row, "circle", { class: `prompt ${kind}`, cx: x(value), cy: y + 3 * ((k % 3) - 1), r: 3.5 }));
  draw(row, "line", { class: `mean ${kind}`, x1: x(one.mean), x2: x(one.mean), y1: y - 9, y2: y + 9 });
  for (const { mean } of ensembles) draw(row, "path", { class: `together ${kind}`, d: `M${x(mean)} ${y - 6}l6 6l-6 6l-6 -6z` });
}

function drawPrompts(figure, model, accuracies) {
  const method = choice.elements.method.value;
  const datasets = [...new Set(accuracies.map((one) => one.dataset))];
  const width = Math.max(240, figure.clientWidth);
  // On a phone the name of a dataset stands above its strips.
  const above = width < 480 ? 18 : 0;
  const [top, rowHeight] = [20, 50 + above];
  const height = top + datasets.length * rowHeight + 4;
  const svg = draw(figure, "svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${model}: raw and ${method} accuracy per dataset and prompt` });
  const grid = draw(svg, "g", {});
  const rows = datasets.map((dataset, k) => {
    const y = top + k * rowHeight;
    const row = draw(svg, "g", { "data-dataset": dataset });
    const label = draw(row, "text", above ? { x: 0, y: y + 15 } : { y: y + 29, "text-anchor": "end" }, dataset);
    shorten(label, (above ? 1 : 0.36) * width);
    const strips = [["raw", "raw"], [method, "calibrated"]].map(([name, kind], at) => {
      const found = accuracies.filter((one) => one.dataset === dataset && one.mean !== null);
      const one = found.find((other) => other.method === name);
      const ensembles = found.filter((other) => other.made_of === name);
      const together = ensembles.map(({ shown }) => ` ◆${shown}`).join("");
      const middle = y + above + 14 + 22 * at;
      const values = draw(row, "text", { y: middle + 4 }, `${one ? one.shown : "–"}${together}`);
      return { one, ensembles, kind, name, middle, values };
    });
    const said = ({ name, one, values }) => `${name} ${values.textContent}${one ? ` (${(100 * one.worst).toFixed(1)} to ${
      (100 * Math.max(...Object.values(one.by_seed))).toFixed(1)})` : ""}`;
    draw(row, "title", {}, `${dataset}: ${strips.map(said).join(" → ")}`);
    return { row, label, strips };
  });
  const left = above ? 8 : widest(rows.map(({ label }) => label)) + 14;
  const right = width - widest(rows.flatMap(({ strips }) => strips.map(({ values }) => values))) - 16;
  const [low, high] = data.scale;
  const x = (accuracy) => left + ((accuracy - low) / (high - low)) * (right - left);
  for (const tick of ticks(data.scale)) {
    draw(grid, "line", { class: "grid", x1: x(tick), x2: x(tick), y1: top, y2: height });
    draw(grid, "text", { class: "axis", x: x(tick), y: 12, "text-anchor": "middle" }, String(Math.round(100 * tick)));
  }
  for (const { row, label, strips } of rows) {
    if (!above) label.setAttribute("x", left - 14);
    for (const { one, ensembles, kind, middle, values } of strips) {
      values.setAttribute("x", right + 16);
      if (one) drawStrip(row, middle, x, one, ensembles, kind);
    }
  }
}

// ---- one prompt per run

function drawModel(figure, model, accuracies) {
  const method = choice.elements.method.value;
  const datasets = [...new Set(accuracies.map((one) => one.dataset))];
  const of = (dataset, name) => accuracies.find((one) => one.dataset === dataset && one.method === name && one.mean !== null);
  const [width, rowHeight, top] = [Math.max(240, figure.clientWidth), 30, 20];
  const height = top + datasets.length * rowHeight + 4;
  const svg = draw(figure, "svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${model}: raw and ${method} accuracy per dataset` });
  const grid = draw(svg, "g", {});
  // Words first: what they leave free, in whatever font the reader has, is the axis.
  const rows = datasets.map((dataset, k) => {
    const y = top + (k + 0.5) * rowHeight;
    const [raw, calibrated] = [of(dataset, "raw"), of(dataset, method)];
    const row = draw(svg, "g", { "data-dataset": dataset });
    const label = draw(row, "text", { y: y + 4, "text-anchor": "end" }, dataset);
    shorten(label, 0.36 * width);
    const change = `${raw ? raw.shown : "–"} → ${calibrated ? calibrated.shown : "–"}`;
    const direction = raw && calibrated ? (calibrated.mean >= raw.mean ? "up" : "down") : "";
    const values = draw(row, "text", { y: y + 4, class: direction }, change);
    draw(row, "title", {}, `${dataset}: raw ${change}`);
    return { row, y, raw, calibrated, label, values };
  });
  const left = widest(rows.map(({ label }) => label)) + 10;
  const right = width - widest(rows.map(({ values }) => values)) - 14;
  const x = (accuracy) => left + accuracy * (right - left);
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    draw(grid, "line", { class: "grid", x1: x(tick), x2: x(tick), y1: top, y2: height });
    draw(grid, "text", { class: "axis", x: x(tick), y: 12, "text-anchor": "middle" }, String(100 * tick));
  }
  for (const { row, y, raw, calibrated, label, values } of rows) {
    label.setAttribute("x", left - 10);
    values.setAttribute("x", right + 14);
    if (raw && calibrated) draw(row, "line", { class: "track", x1: x(raw.mean), x2: x(calibrated.mean), y1: y, y2: y });
    for (const [one, kind] of [[raw, "raw"], [calibrated, "calibrated"]]) {
      if (!one) continue;
      for (const value of Object.values(one.by_seed)) {
        draw(row, "line", { class: `seed ${kind}`, x1: x(value), x2: x(value), y1: y - 9, y2: y + 9 });
      }
      draw(row, "circle", { class: kind, cx: x(one.mean), cy: y, r: 5 });
    }
  }
}

function drawChart() {
  const shots = Number(choice.elements.shots.value);
  chart.replaceChildren();
  for (const name of data.models) {
    if (!data.accuracies.some((one) => one.model === name && one.shots === shots)) continue;
    const figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    caption.textContent = name;
    figure.append(caption);
    chart.append(figure);
  }
  for (const figure of chart.children) {
    const model = figure.firstChild.textContent;
    const drawn = data.accuracies.some((one) => one.prompts > 1) ? drawPrompts : drawModel;
    drawn(figure, model, data.accuracies.filter((one) => one.model === model && one.shots === shots));
  }
}

choice.addEventListener("change", drawChart);
let drawnWidth = 0;
new ResizeObserver(() => {
  if (chart.clientWidth !== drawnWidth) {
    drawnWidth = chart.clientWidth;
    drawChart();
  }
}).observe(chart);

// ---- light and dark: the system's choice until the reader makes one

const root = document.documentElement;
const remembered = (write) => { try { return write(localStorage); } catch { return null; } };
const theme = remembered((storage) => storage.getItem("lm-eval-proca-theme"));
if (theme) root.dataset.theme = theme;
document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  remembered((storage) => storage.setItem("lm-eval-proca-theme", root.dataset.theme));
});
