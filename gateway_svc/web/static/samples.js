// Numbers of tokens under the pointer or by the arrow keys, and the switch of colours without a new page.
const box = document.getElementById("tokens");
const tip = document.getElementById("token");
const tokens = [...(box?.querySelectorAll(".s") ?? [])];
const MOVES = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity };
let current = -1;

function show(token) {
  tip.textContent = token.dataset.numbers;
}

function move(to) {
  tokens[current]?.classList.remove("current");
  current = Math.max(0, Math.min(tokens.length - 1, to));
  const token = tokens[current];
  token.classList.add("current");
  token.scrollIntoView({ block: "nearest" });
  show(token);
}

function choose(link, event) {
  event.preventDefault();
  for (const one of document.querySelectorAll("#bys a")) one.removeAttribute("aria-current");
  link.setAttribute("aria-current", "true");
  document.getElementById("samples").className = `by-${link.dataset.by}`;
  history.replaceState(null, "", link.href);
}

if (box && tokens.length) {
  tip.hidden = false;
  for (const token of tokens) {
    token.dataset.numbers = token.title;
    token.removeAttribute("title");
  }
  box.addEventListener("pointerover", (event) => {
    const token = event.target.closest(".s");
    if (token) show(token);
  });
  box.addEventListener("keydown", (event) => {
    if (event.key in MOVES && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      move(current + MOVES[event.key]);
    }
  });
  for (const link of document.querySelectorAll("#bys a")) link.addEventListener("click", (event) => choose(link, event));
}
