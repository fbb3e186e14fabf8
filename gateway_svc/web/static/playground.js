// Sends the playground's form once for each model, and shows the answers as they come. The server makes the requests of the form.
const form = document.getElementById("playground");
const stop = document.getElementById("stop");
const columns = document.getElementById("columns");
let running = null; // what ends all requests

// As the server shows hostile text: characters without a glyph by their code points.
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\u115f\u1160\u3164\uffa0\u2800\u034f]|(?! )\p{Zs}/gu;
function visible(text) {
  return text.replace(INVISIBLE, (one) => (one === "\n" || one === "\t" ? one : `⟨U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`));
}

const quoted = (token) => `“${visible(token).replaceAll("\n", "⏎").replaceAll("\t", "⇥")}”`;
const percent = (logprob) => `${(100 * Math.exp(logprob)).toPrecision(3)} %`;

function add(place, text) {
  place.append(document.createTextNode(visible(text)));
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "", part; !(part = await reader.read()).done;) {
    const lines = (rest + part.value).split("\n\n");
    rest = lines.pop();
    for (const one of lines) if (one.startsWith("data: ")) yield one.slice(6);
  }
}

// Tokens of one answer, of which one at a time has the focus. Its numbers are shown below them, also under the mouse.
class Tokens {
  constructor(column, model) {
    this.list = document.createElement("div");
    this.list.className = "tokens text";
    this.list.setAttribute("role", "listbox");
    this.list.setAttribute("aria-label", `Tokens of ${model}; the arrow keys go from one to another`);
    this.tip = document.createElement("p");
    this.tip.className = "tip";
    this.tip.setAttribute("role", "status");
    this.of = new Map();
    column.append(this.list, this.tip);
    this.list.addEventListener("keydown", (event) => this.go(event));
    this.list.addEventListener("focusin", (event) => this.tell(event.target));
    this.list.addEventListener("pointerover", (event) => this.tell(event.target));
  }

  add(found) {
    const token = document.createElement("span");
    token.setAttribute("role", "option");
    token.setAttribute("aria-selected", "false");
    token.tabIndex = this.of.size ? -1 : 0;
    token.className = `token p${Math.min(Math.floor(5 * Math.exp(found.logprob)), 4)}`;
    add(token, found.token || "∅");
    this.of.set(token, found);
    this.list.append(token);
  }

  tell(token) {
    const found = this.of.get(token);
    if (!found) return;
    const others = found.top_logprobs.map((one) => `${quoted(one.token)} ${percent(one.logprob)}`).join(", ");
    this.tip.textContent = `${quoted(found.token)}: ${percent(found.logprob)}${others ? `. Most probable: ${others}` : ""}`;
  }

  go(event) {
    const now = document.activeElement, keys = {
      ArrowRight: now.nextElementSibling, ArrowLeft: now.previousElementSibling, Home: this.list.firstElementChild, End: this.list.lastElementChild,
    };
    const next = keys[event.key];
    if (!this.of.has(now) || !next) return;
    event.preventDefault();
    now.tabIndex = -1;
    now.setAttribute("aria-selected", "false");
    next.tabIndex = 0;
    next.setAttribute("aria-selected", "true");
    next.focus();
  }
}

class Column {
  constructor(model) {
    this.at = document.getElementById("column").content.firstElementChild.cloneNode(true);
    this.model = model;
    this.find(".model").textContent = visible(model);
    this.at.setAttribute("aria-label", visible(model));
    this.at.setAttribute("aria-busy", "true");
    this.began = performance.now();
    columns.append(this.at);
  }

  find(name) {
    return this.at.querySelector(name);
  }

  fail(text) {
    const error = this.find(".error");
    error.textContent = visible(text);
    error.hidden = false;
  }

  take(chunk) {
    if (chunk.error) return this.fail(chunk.error.message);
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices[0];
    this.find(".model").textContent = visible(chunk.model);
    if (!choice) return;
    const { delta, logprobs } = choice;
    if (this.first === undefined && (delta.content || delta.reasoning_content || logprobs)) this.first = performance.now() - this.began;
    if (delta.reasoning_content) {
      this.find(".reasoning").hidden = false;
      add(this.find(".reasoning p"), delta.reasoning_content);
    }
    if (delta.content) add(this.find(".answer"), delta.content);
    for (const token of logprobs?.content ?? []) (this.tokens ??= new Tokens(this.at, visible(this.model))).add(token);
    this.reason = choice.finish_reason ?? this.reason;
  }

  end(isStopped) {
    const parts = [];
    if (this.usage) parts.push(`${this.usage.completion_tokens} tokens after ${this.usage.prompt_tokens}`);
    if (isStopped) parts.push("stopped");
    else if (this.reason) parts.push(`it ended by ${this.reason}`);
    if (this.first !== undefined) parts.push(`first token after ${(this.first / 1000).toFixed(2)} s`);
    this.find(".figures").textContent = parts.join("; ");
    this.at.removeAttribute("aria-busy");
  }
}

async function refusal(answer) {
  const later = answer.headers.get("retry-after");
  const text = await answer.json().then((found) => found.error.message, () => answer.statusText);
  return `${answer.status}: ${text}${later ? ` (again in ${later} s)` : ""}`;
}

async function ask(number, model, fields, signal) {
  const column = new Column(model);
  try {
    const answer = await fetch(`${form.dataset.columns}${number}${form.dataset.query}`, { method: "POST", body: fields, signal });
    if (!answer.ok) column.fail(await refusal(answer));
    else for await (const data of events(answer.body)) if (data !== "[DONE]") column.take(JSON.parse(data));
  } catch (error) {
    if (!signal.aborted) column.fail("The connection is lost.");
  }
  column.end(signal.aborted);
}

async function send() {
  running?.abort();
  const control = running = new AbortController();
  const fields = new URLSearchParams(new FormData(form));
  const models = [0, 1, 2, 3].map((number) => [number, fields.get(`model.${number}`)?.trim()]).filter(([, model]) => model);
  columns.replaceChildren();
  document.getElementById("answers").hidden = !models.length;
  stop.hidden = false;
  columns.dataset.state = "running";
  await Promise.all(models.map(([number, model]) => ask(number, model, fields, control.signal)));
  if (running !== control) return;
  if (document.activeElement === stop) form.querySelector("button.primary").focus();
  stop.hidden = true;
  columns.dataset.state = "done";
  running = null;
}

if (form) {
  form.addEventListener("submit", (event) => {
    if (event.submitter && event.submitter.value !== "send") return;
    event.preventDefault();
    send();
  });
  stop.addEventListener("click", () => running?.abort());
}
