// A Gantt chart on a canvas: one row a task, one colour a stage. Sampling is above, the stages after it below, since steps overlap. Under it
// is how many steps are in each stage. A row is drawn as one colour a pixel, so that it takes no longer with more steps.
const ROW = 26, TOP = 24, LABEL = 190, STRIP = 44, MIN_WIDTH_S = 0.05, STAGES = 5;
const box = document.getElementById("gantt");
const canvas = box?.querySelector(".tasks");
const strips = box?.querySelector(".load");
const tip = box?.querySelector(".tip");
let data, load, view, end, wanted = false;

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function colours() {
  return { stages: [0, 1, 2, 3, 4].map((stage) => css(`--stage-${stage}`)), text: css("--text"), line: css("--line"), soft: css("--soft") };
}

function array(text, kind) {
  return new kind(Uint8Array.from(atob(text), (one) => one.charCodeAt(0)).buffer);
}

// Begins and ends of each step's stages, in seconds; NaN where a stage has not ended.
function unpack(task, missing) {
  const versions = array(task.versions, Int32Array), begins = array(task.begins, Float64Array), ms = array(task.ms, Int32Array);
  const from = new Float64Array(versions.length * STAGES), to = new Float64Array(versions.length * STAGES);
  for (let step = 0; step < versions.length; step++) {
    let before = begins[step];
    for (let stage = 0; stage < STAGES; stage++) {
      const at = step * STAGES + stage, after = ms[at] === missing ? NaN : begins[step] + ms[at] / 1000;
      from[at] = after === after ? before : NaN;
      to[at] = after === after && before === before ? Math.max(before, after) : NaN;
      before = after;
    }
  }
  return { task: task.task, address: task.address, versions, from, to };
}

// Of one stage: sorted begins and ends with their running sums, by which the mean number of steps in any interval is four look-ups.
function counter(stage) {
  const sides = ["from", "to"].map((side) => {
    const size = data.tasks.reduce((sum, task) => sum + task.versions.length, 0), times = new Float64Array(size);
    let used = 0;
    for (const task of data.tasks)
      for (let at = stage; at < task.from.length; at += STAGES) if (task.to[at] === task.to[at]) times[used++] = task[side][at];
    const sorted = times.subarray(0, used).sort(), sums = new Float64Array(used + 1);
    for (let at = 0; at < used; at++) sums[at + 1] = sums[at] + sorted[at];
    return { sorted, sums };
  });
  const area = (at) => sides.reduce((sum, { sorted, sums }, side) => {
    const before = below(sorted, at);
    return sum + (side ? -1 : 1) * (before * at - sums[before]);
  }, 0);
  return (from, to) => Math.max((area(to) - area(from)) / (to - from), 0);
}

function below(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

function label(width) {
  return Math.min(LABEL, Math.round(width * 0.35));
}

function place(seconds, width) {
  const left = label(width);
  return left + ((seconds - view.from) / (view.to - view.from)) * (width - left);
}

// Seconds between two labels of the axis, which need so many pixels each.
const LABEL_PX = 80;
function step(span, width) {
  const rough = span / Math.max(Math.floor(width / LABEL_PX), 1), power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
}

// A canvas of the size of its place: only what changes its size makes it anew.
function pen(of, height) {
  const width = of.clientWidth, ratio = devicePixelRatio || 1;
  if (of.width !== Math.round(width * ratio) || of.height !== Math.round(height * ratio)) {
    of.width = Math.round(width * ratio);
    of.height = Math.round(height * ratio);
    of.style.height = `${height}px`;
  }
  const found = of.getContext("2d");
  found.setTransform(ratio, 0, 0, ratio, 0, 0);
  found.font = "12px system-ui, sans-serif";
  found.clearRect(0, 0, width, height);
  return [found, width];
}

function draw() {
  wanted = false;
  const began = performance.now(), look = colours(), height = TOP + ROW * data.tasks.length + 4;
  const [on, width] = pen(canvas, height);
  axis(on, look, width, height);
  const seen = canvas.getBoundingClientRect(); // rows outside the window are drawn when they come in
  const first = Math.max(Math.floor((-seen.top - TOP) / ROW), 0), last = Math.min(Math.ceil((innerHeight - seen.top - TOP) / ROW), data.tasks.length);
  for (let index = first; index < last; index++) row(on, look, width, data.tasks[index], TOP + index * ROW);
  drawLoad(look);
  canvas.dataset.drawn = String(Number(canvas.dataset.drawn || 0) + 1);
  canvas.dataset.took = (performance.now() - began).toFixed(1);
}

function axis(on, look, width, height) {
  const left = label(width), every = step(view.to - view.from, width - left);
  on.fillStyle = look.soft;
  on.strokeStyle = look.line;
  for (let at = Math.ceil(view.from / every) * every; at <= view.to; at += every) {
    const x = place(at, width);
    if (x < left) continue;
    on.beginPath();
    on.moveTo(x, TOP - 6);
    on.lineTo(x, height);
    on.stroke();
    on.fillText(`${Number(at.toPrecision(6))} s`, x + 3, 13);
  }
}

function row(on, look, width, task, y) {
  const left = label(width), size = width - left, scale = size / (view.to - view.from);
  const upper = new Uint8Array(size), lower = new Uint8Array(size); // by pixel, the stage and one
  const { from, to } = task;
  for (let at = 0; at < from.length; at++) {
    if (!(to[at] >= view.from && from[at] <= view.to)) continue;
    const stage = at % STAGES, x = Math.max(Math.floor((from[at] - view.from) * scale), 0);
    (stage ? lower : upper).fill(stage + 1, x, Math.max(Math.ceil((to[at] - view.from) * scale), x + 1));
  }
  runs(on, look, upper, left, y + 2, 8);
  runs(on, look, lower, left, y + 12, 11);
  name(on, look, task.task, left, y);
}

function runs(on, look, pixels, left, y, height) {
  for (let x = 0; x < pixels.length;) {
    const stage = pixels[x], begin = x;
    while (x < pixels.length && pixels[x] === stage) x++;
    if (!stage) continue;
    on.fillStyle = look.stages[stage - 1];
    on.fillRect(left + begin, y, x - begin, height);
  }
}

function name(on, look, text, left, y) {
  on.save();
  on.beginPath();
  on.rect(0, y, left - 6, ROW);
  on.clip();
  on.fillStyle = look.text;
  on.fillText(fitted(on, text, left - 12), 4, y + 16);
  on.restore();
}

// What has no room loses its middle: ids of one maker begin alike.
function fitted(on, text, width) {
  let kept = text.length, shown = text;
  while (kept > 2 && on.measureText(shown).width > width) {
    kept--;
    shown = `${text.slice(0, kept - (kept >> 1))}…${text.slice(text.length - (kept >> 1))}`;
  }
  return shown;
}

function drawLoad(look) {
  strips.hidden = false;
  const [on, width] = pen(strips, STRIP * STAGES + 4), left = label(width), per = (view.to - view.from) / (width - left);
  load.forEach((mean, stage) => {
    const bottom = (stage + 1) * STRIP, values = [];
    for (let x = 0; x < width - left; x++) values.push(mean(view.from + x * per, view.from + (x + 1) * per));
    const highest = Math.max(...values);
    name(on, look, data.stages[stage], left, bottom - STRIP + 8);
    on.fillStyle = look.soft;
    on.fillText(highest ? `to ${Number(highest.toPrecision(3))}` : "none", 4, bottom - 4);
    on.fillStyle = look.stages[stage];
    values.forEach((value, x) => { if (value > 0) on.fillRect(left + x, bottom, 1, -Math.max((STRIP - 8) * (value / highest), 1)); });
    on.fillStyle = look.line;
    on.fillRect(left, bottom, width - left, 1);
  });
}

function redraw() {
  if (!wanted && data) {
    wanted = true;
    requestAnimationFrame(draw);
  }
}

function show(from, to) {
  const width = Math.min(Math.max(to - from, MIN_WIDTH_S), end);
  const start = Math.min(Math.max(from, 0), end - width);
  view = { from: start, to: start + width };
  redraw();
}

function zoom(factor, at = (view.from + view.to) / 2) {
  show(at - (at - view.from) * factor, at + (view.to - at) * factor);
}

function move(share) {
  const by = (view.to - view.from) * share;
  show(view.from + by, view.to + by);
}

const actions = { in: () => zoom(0.6), out: () => zoom(1 / 0.6), left: () => move(-0.25), right: () => move(0.25), all: () => show(0, end) };
const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all" };

function seconds(event) {
  const frame = canvas.getBoundingClientRect(), left = label(frame.width);
  return view.from + ((event.clientX - frame.left - left) / (frame.width - left)) * (view.to - view.from);
}

// The task and the place of the span under the mouse.
function under(event) {
  const y = event.clientY - canvas.getBoundingClientRect().top - TOP, at = seconds(event), task = data.tasks[Math.floor(y / ROW)];
  const isUpper = y % ROW < 11;
  return [task, task?.from.findIndex((from, span) => (span % STAGES === 0) === isUpper && from <= at && at <= task.to[span]) ?? -1];
}

function point(event) {
  const [task, span] = under(event);
  if (span < 0) return void (tip.textContent = "");
  const from = task.from[span], took = (task.to[span] - from).toFixed(2), version = task.versions[Math.floor(span / STAGES)];
  tip.textContent = `${task.task}, step to version ${version}: ${data.stages[span % STAGES]}, ${took} s from ${from.toFixed(2)} s on`;
}

function showStep(task, index) {
  const own = [...task.to.subarray(index * STAGES, (index + 1) * STAGES)].filter((one) => one === one), from = task.from[index * STAGES];
  if (!own.length) return void (tip.textContent = "The step has no stage that has ended.");
  const width = Math.max(...own) - from;
  tip.textContent = `${task.task}, step to version ${task.versions[index]}: ${width.toFixed(2)} s from ${from.toFixed(2)} s on`;
  return show(from - 0.1 * width, from + 1.1 * width);
}

function find(event) {
  event.preventDefault();
  const fields = new FormData(event.target), task = data.tasks.find((one) => one.task === fields.get("task"));
  const index = task?.versions.indexOf(Number(fields.get("version"))) ?? -1;
  if (index < 0) tip.textContent = "There is no step to this version here.";
  else showStep(task, index);
}

function listen() {
  let held = null;
  box.querySelectorAll("button[data-do]").forEach((button) => button.addEventListener("click", () => actions[button.dataset.do]()));
  box.querySelector("form").addEventListener("submit", find);
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    actions[keys[event.key]]();
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, seconds(event));
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => {
    const [task, span] = under(event);
    if (span >= 0) showStep(task, Math.floor(span / STAGES));
  });
  canvas.addEventListener("pointerdown", (event) => { held = { x: event.clientX, view }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { held = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (!held) return point(event);
    const by = ((held.x - event.clientX) / (canvas.clientWidth - label(canvas.clientWidth))) * (held.view.to - held.view.from);
    return show(held.view.from + by, held.view.to + by);
  });
  for (const change of ["resize", "scroll"]) addEventListener(change, redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

if (box) {
  data = JSON.parse(box.dataset.drawn);
  data.tasks = data.tasks.map((task) => unpack(task, data.missing));
  load = Array.from({ length: STAGES }, (_, stage) => counter(stage));
  end = Math.max(MIN_WIDTH_S, ...data.tasks.map((task) => task.to.reduce((last, one) => (one > last ? one : last), 0)));
  box.querySelector(".tools").hidden = false;
  listen();
  show(0, end);
}
