// Whether the page is live: the stream of news is connected. What changed is read again by htmx, which begins once the document is complete,
// and so after this script and htmx's extension, in whatever order they come.
const PATIENCE_MS = 5000; // for the first connection, after which the page says that it is not live
const banner = document.getElementById("not-live");
const stream = document.getElementById("live");

function show(isLost) {
  banner.hidden = !isLost;
  document.documentElement.dataset.live = isLost ? "no" : "yes";
}

if (stream && banner) {
  stream.addEventListener("htmx:sse:after:connection", () => show(false));
  stream.addEventListener("htmx:sse:after:message", () => show(false));
  stream.addEventListener("htmx:sse:before:connection", (event) => {
    if (event.detail.connection.attempt > 0 && !document.hidden) show(true);
  });
  stream.addEventListener("htmx:sse:error", () => show(true));
  stream.addEventListener("htmx:error", () => show(true));
  addEventListener("load", () => setTimeout(() => { if (!document.documentElement.dataset.live) show(true); }, PATIENCE_MS));
}

// On a phone the links to pages are one line, in which the present page's may be out of sight.
document.querySelector(".top nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });

// A task's actions are outside the part that is reread, so that no half-given confirmation is closed.
document.addEventListener("htmx:after:swap", () => {
  const allowed = document.querySelector("#task[data-controls]")?.dataset.controls.split(" ");
  if (allowed) document.querySelectorAll("#actions [data-verb]").forEach((one) => { one.hidden = !allowed.includes(one.dataset.verb); });
});
