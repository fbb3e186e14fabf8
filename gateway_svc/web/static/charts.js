// Draws each chart from its table: it draws only the table's values.
const HEIGHT = 220;
const drawn = new Map();

function read(table) {
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  const columns = names.map(() => []);
  for (const row of table.tBodies[0].rows) {
    for (let index = 0; index < names.length; index++) {
      const text = row.cells[index].textContent;
      columns[index].push(text === "–" ? null : Number(text));
    }
  }
  return { names, columns };
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Curves differ in colour and in dashes. A bound of an interval has the colour of its mean, and is thin.
const DASHES = [[], [8, 4], [2, 3], [12, 4, 2, 4]];
function styles(names) {
  const means = names.slice(1).filter((name) => !name.endsWith(" bound"));
  return names.slice(1).map((name) => {
    const owner = Math.max(means.findIndex((mean) => name === mean || name.startsWith(`${mean}, `)), 0);
    const stroke = colour(`--curve-${owner % 8}`);
    return name.endsWith(" bound") ? { label: name, stroke, dash: [3, 3], width: 1 } : { label: name, stroke, dash: DASHES[owner % 4], width: 2 };
  });
}

// Ticks with as many digits as distinguish them, small ones as 2e-4: uPlot's own end after three.
function ticks(plot, splits) {
  const gap = splits.length > 1 ? Math.abs(splits[1] - splits[0]) : Math.abs(splits[0]) || 1;
  let digits = 0;
  while (digits < 20 && Math.abs(Number(gap.toFixed(digits)) - gap) > 1e-6 * gap) digits++;
  return splits.map((value) => (digits > 3 ? short(Number(value.toFixed(digits))) : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })));
}

// A number with four significant digits.
function short(value) {
  if (value === null || value === undefined) return "–";
  const rounded = Number(value.toPrecision(4)), size = Math.abs(rounded);
  return size > 0 && size < 0.001 ? rounded.toExponential() : rounded.toLocaleString("en", { maximumSignificantDigits: Math.max(4, Math.ceil(Math.log10(size || 1))) });
}

// Room for the longest label.
function axisSize(plot, values) {
  return 24 + 7 * Math.max(3, ...(values ?? []).map((value) => String(value).length));
}

// Means over so many rows, of those that have a value: a curve of many points is noise, and the reader looks for its course.
function smoothed(column, width) {
  const reach = Math.floor(width / 2);
  return column.map((value, index) => {
    const near = value === null ? [] : column.slice(Math.max(index - reach, 0), index + reach + 1).filter((one) => one !== null);
    return near.length ? near.reduce((sum, one) => sum + one, 0) / near.length : null;
  });
}

// Behind the means of a long chart its rows, thin and pale.
function withMeans(columns, series) {
  const width = columns[0].length < 60 ? 1 : 2 * Math.floor(columns[0].length / 40) + 1;
  if (width === 1) return { data: columns, shown: series };
  const raw = series.slice(1).map((one) => ({ ...one, width: 1, alpha: 0.3, dash: [] }));
  const means = series.slice(1).map((one) => ({ ...one, label: `${one.label}, mean of ${width}` }));
  return { data: [...columns, ...columns.slice(1).map((column) => smoothed(column, width))], shown: [series[0], ...raw, ...means] };
}

function draw(plot) {
  const table = document.getElementById(`table-${plot.dataset.chart}`);
  const { names, columns } = read(table);
  const few = columns[0].length < 60;
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
  const series = [{ label: names[0], value: (_, value) => short(value) }, ...styles(names).map((style) => ({ ...style, value: (_, value) => short(value), spanGaps: true, points: { show: few, size: 5 } }))];
  const { data, shown } = withMeans(columns, series);
  const options = {
    padding: [8, 8 + 4 * short(data[0].at(-1)).length, 0, 0], // half of the last label, which is centred at the edge
    width: Math.max(plot.clientWidth, 200),
    height: HEIGHT,
    scales: { x: { time: false } },
    axes: [axis, { ...axis, size: axisSize, values: ticks }],
    series: shown,
  };
  drawn.get(plot)?.destroy();
  plot.replaceChildren();
  plot.classList.add("drawn");
  drawn.set(plot, new uPlot(options, data, plot));
}

function drawAll() {
  for (const plot of drawn.keys()) if (!plot.isConnected) { drawn.get(plot).destroy(); drawn.delete(plot); }
  document.querySelectorAll(".plot").forEach((plot) => { if (!drawn.has(plot)) draw(plot); });
  document.documentElement.dataset.drawn = String(drawn.size);
}

function redrawAll() {
  for (const plot of [...drawn.keys()]) if (plot.isConnected) draw(plot);
}

// What a user has unfolded stays so when the page reads its data again.
let open = new Set();
document.addEventListener("htmx:before:swap", () => {
  open = new Set([...document.querySelectorAll(".chart details[open] table")].map((table) => table.id));
});
document.addEventListener("htmx:after:swap", () => {
  for (const id of open) document.getElementById(id)?.closest("details")?.setAttribute("open", "");
  drawAll();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redrawAll(); } });
drawAll();
