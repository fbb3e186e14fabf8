// A Gantt chart on a canvas: one row a task, one colour a stage. Sampling is above, the stages after it below, since steps overlap.
const ROW = 26, TOP = 24, LABEL = 190, MIN_WIDTH_S = 0.05;
const box = document.getElementById("gantt");
const canvas = box?.querySelector("canvas");
const tip = box?.querySelector(".tip");
let data, view, end, wanted = false;

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function colours() {
  return { stages: [0, 1, 2, 3, 4].map((stage) => css(`--stage-${stage}`)), text: css("--text"), line: css("--line"), soft: css("--soft") };
}

function label(width) {
  return Math.min(LABEL, width * 0.35);
}

function place(seconds, width) {
  const left = label(width);
  return left + ((seconds - view.from) / (view.to - view.from)) * (width - left);
}

function step(span) {
  const rough = span / 8, power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
}

function draw() {
  wanted = false;
  const width = canvas.clientWidth, height = TOP + ROW * data.tasks.length + 4, ratio = devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d"), look = colours();
  pen.scale(ratio, ratio);
  pen.font = "12px system-ui, sans-serif";
  axis(pen, look, width, height);
  data.tasks.forEach((task, index) => row(pen, look, width, task, TOP + index * ROW));
  canvas.dataset.drawn = String(Number(canvas.dataset.drawn || 0) + 1);
}

function axis(pen, look, width, height) {
  const every = step(view.to - view.from), left = label(width);
  pen.fillStyle = look.soft;
  pen.strokeStyle = look.line;
  for (let at = Math.ceil(view.from / every) * every; at <= view.to; at += every) {
    const x = place(at, width);
    if (x < left) continue;
    pen.beginPath();
    pen.moveTo(x, TOP - 6);
    pen.lineTo(x, height);
    pen.stroke();
    pen.fillText(`${Number(at.toPrecision(6))} s`, x + 3, 13);
  }
}

function row(pen, look, width, task, y) {
  const left = label(width);
  pen.save();
  pen.beginPath();
  pen.rect(left, y, width - left, ROW);
  pen.clip();
  const scale = (width - left) / (view.to - view.from), drawn = [-1, -1, -1, -1, -1]; // by stage, the last pixel
  for (const span of task.spans) {
    const stage = span[0], from = span[2], to = span[3];
    if (to < view.from || from > view.to) continue;
    const x = left + (from - view.from) * scale, w = Math.max((to - from) * scale, 1), pixel = Math.floor(x);
    if (w <= 1 && pixel === drawn[stage]) continue;
    drawn[stage] = pixel;
    pen.fillStyle = look.stages[stage];
    pen.fillRect(x, stage === 0 ? y + 2 : y + 12, w, stage === 0 ? 8 : 11);
  }
  pen.restore();
  pen.save();
  pen.beginPath();
  pen.rect(0, y, left - 6, ROW);
  pen.clip();
  pen.fillStyle = look.text;
  pen.fillText(task.task, 4, y + 16);
  pen.restore();
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

function point(event) {
  const frame = canvas.getBoundingClientRect(), y = event.clientY - frame.top - TOP, at = seconds(event);
  const task = data.tasks[Math.floor(y / ROW)], isUpper = y % ROW < 11;
  const found = task?.spans.find(([stage, , from, to]) => (stage === 0) === isUpper && from <= at && at <= to);
  tip.textContent = found
    ? `${task.task}, step to version ${found[1]}: ${data.stages[found[0]]}, ${(found[3] - found[2]).toFixed(2)} s from ${found[2].toFixed(2)} s on`
    : "";
}

function listen() {
  let held = null;
  box.querySelectorAll("button").forEach((button) => button.addEventListener("click", () => actions[button.dataset.do]()));
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
  canvas.addEventListener("pointerdown", (event) => { held = { x: event.clientX, view }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { held = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (!held) return point(event);
    const by = ((held.x - event.clientX) / (canvas.clientWidth - label(canvas.clientWidth))) * (held.view.to - held.view.from);
    return show(held.view.from + by, held.view.to + by);
  });
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

if (box) {
  data = await (await fetch(box.dataset.address)).json();
  end = Math.max(MIN_WIDTH_S, ...data.tasks.map((task) => task.spans.reduce((last, span) => Math.max(last, span[3]), 0)));
  box.querySelector(".tools").hidden = false;
  listen();
  show(0, end);
}
