"""How fast the dashboard is in Chromium: `python -m bench.dashboard`. Writes bench/results/dashboard.json.

    python -m bench.dashboard [--tasks 100] [--steps 1000] [--rounds 5] [--changes 20]

A real scheduler, NATS, PostgreSQL and a gateway; so many tasks with so many steps each are rows that this program writes. Measured are the
timeline, from the arrival of its page until all is drawn, and from the request on; frames while it is zoomed in and out by keys, each
pressed after the frame before; and the seconds from the event of a task's change until its row has changed, while a task is paused
and resumed. The browser is the distribution's Chromium, headless and without a GPU.
"""

import argparse
import asyncio
import os
import statistics
import time
from pathlib import Path
from typing import Any, Literal

import psycopg

from bench.harness import report
from bench.harness.measures.scheduler_costs import run_tasks
from bench.harness.services import BenchError, Services, gateway, postgres, run_or_exit, services
from bench.harness.tenants import admin
from common import streams
from common.bus import Bus, Outgoing
from common.door.asking import Door
from common.messages import ControlTask
from marlaas.stack import servers

NAME = "dashboard"
CHROMIUM = "/usr/bin/chromium"
TENANT = "all"
CODE = ("gateway_svc", "scheduler_svc/ask", "scheduler_svc/store/asked", "common/formats/step_times.py")
CONTROLS: tuple[tuple[Literal["pause", "resume"], str], ...] = (("pause", "paused"), ("resume", "running"))
STEPS = """
INSERT INTO steps (task, version, state, reward, staleness_mean, staleness_max, sampled_tokens, adapter, checkpoint, first_admitted_at,
                   first_scored_at, last_scored_at, batched_at, started_at, finished_at, trained_at)
SELECT id, n, 'trained', 0, 0, 0, 1, jsonb_build_object('task', id, 'version', n + 1, 'rank', 4, 'blob', jsonb_build_object('name', id || n,
       'size_bytes', 1, 'sha256', repeat('0', 64)), 'canary', jsonb_build_object('ids', '', 'logprobs', '')),
       jsonb_build_object('name', id || 'c', 'size_bytes', 1, 'sha256', repeat('0', 64)), began,
       began + interval '1 s', began + interval '4 s' * (0.5 + r), began + interval '5 s' * (0.5 + r),
       began + interval '6 s' * (0.5 + r), began + interval '8 s' * (0.5 + r), began + interval '8.5 s' * (0.5 + r)
FROM (SELECT id, n, random() r, now() - interval '2 h' + interval '6 s' * (n + random()) AS began FROM tasks, generate_series(0, %d) n) made
"""
FRAMES = """async () => {
  const canvas = document.querySelector("#gantt .tasks"), times = [];
  canvas.focus();
  for (let index = 0; index < 120; index++) {
    const began = performance.now();
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key: index % 24 < 12 ? "+" : "-", bubbles: true }));
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    times.push(performance.now() - began, Number(canvas.dataset.took));
  }
  return times;
}"""
"""Two numbers a frame: milliseconds until the one after it began, which are two frames, and of the drawing itself."""
DRAWN = """() => {
  const page = performance.getEntriesByType("navigation")[0];
  return { drawn: window.drawnAt - page.responseEnd, whole: window.drawnAt };
}"""
NOTE_DRAWN = """new MutationObserver(() => {
  if (window.drawnAt || !document.querySelector("canvas.tasks[data-drawn]")) return;
  requestAnimationFrame(() => setTimeout(() => { window.drawnAt = performance.now(); }));
}).observe(document, { subtree: true, attributes: true, childList: true });"""
NOTE_STATE = """(row) => {
  const list = document.querySelector("main"), read = () => document.querySelector(row + " .state")?.textContent;
  let before = read();
  window.changes = [];
  new MutationObserver(() => {
    if (read() && read() !== before) window.changes.push([before = read(), Date.now() / 1000]);
  }).observe(list, { subtree: true, childList: true, characterData: true, attributes: true });
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--steps", type=int, default=1000, help="of each task")
    parser.add_argument("--rounds", type=int, default=5, help="times that the timeline is opened")
    parser.add_argument("--changes", type=int, default=20)
    options = parser.parse_args()
    machine = report.machine()
    with postgres() as (folder, server), services(folder, server, 8, {}) as running:
        asyncio.run(_tasks(running, options.tasks))
        with psycopg.connect(running.postgres_url, autocommit=True) as connection:
            connection.execute((STEPS % (options.steps - 1)).encode())
            connection.execute("ANALYZE")
        with gateway(running, folder) as address:
            found = asyncio.run(_measured(running, address, options))
    result: dict[str, object] = {"machine": machine, "tasks": options.tasks, "steps": options.steps, **found}
    print(f"{found}\nwritten: {report.write(NAME, result, CODE)}")


async def _tasks(running: Services, count: int) -> None:
    from scheduler_svc.store.database import Database

    passfile = Path(os.environ["PGPASSFILE"])
    url = servers.database_url(running.postgres_port, running.database, role=servers.APP, passfile=passfile)
    async with await Database.connect(url) as database:
        await run_tasks(database, count, one_tenant=True)


async def _measured(running: Services, address: str, options: argparse.Namespace) -> dict[str, Any]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright, await Bus.connect(running.nats_url, "bench", creds=running.creds) as bus:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            looking = await _logged_in(browser, address, await admin(running.nats_url, running.keys, [address]))
            return {
                "timeline": await _timeline(looking, address, options.rounds, options.tasks),
                "live": await _live(looking, address, bus, running, options.changes),
            }
        finally:
            await browser.close()


async def _logged_in(browser: Any, address: str, key: str) -> Any:
    context = await browser.new_context(viewport={"width": 1280, "height": 800}, bypass_csp=True)  # Playwright waits by eval
    page = await context.new_page()
    await page.goto(f"{address}/ui/login")
    await page.locator("input[name=key]").fill(key)
    await page.locator("main button.primary").click()
    await page.wait_for_url("**/ui/tasks*")
    await page.close()
    return context


async def _timeline(looking: Any, address: str, rounds: int, tasks: int) -> dict[str, Any]:
    page = await looking.new_page()
    await page.add_init_script(NOTE_DRAWN)
    drawn, whole, frames, drawing = list[float](), list[float](), list[float](), list[float]()
    for _ in range(rounds):
        await page.goto(f"{address}/ui/timeline?tenant={TENANT}")
        await page.wait_for_function("window.drawnAt", timeout=60_000)
        if await page.locator("#stages tbody tr").count() != tasks:
            raise BenchError("the page does not have every task")
        times = await page.evaluate(DRAWN)
        drawn.append(times["drawn"] / 1000)
        whole.append(times["whole"] / 1000)
        found = await page.evaluate(FRAMES)
        frames += [took / 2 for took in found[::2]]
        drawing += found[1::2]
    await page.close()
    return {
        "drawn_s": report.spread(drawn),
        "whole_s": report.spread(whole),
        "frame_ms": report.spread(frames),
        "frames_per_s": round(1000 / statistics.mean(frames), 1),
        "drawing_ms": report.spread(drawing),
    }


async def _live(looking: Any, address: str, bus: Bus, running: Services, changes: int) -> dict[str, Any]:
    """Seconds from the event, as a client of NATS gets it, until the row has changed."""
    door, task = Door(bus, running.nats_url, TENANT), "t00000"
    page = await looking.new_page()
    await page.goto(f"{address}/ui/tasks?tenant={TENANT}&text={task}")
    await page.locator("html[data-live='yes']").wait_for()
    await page.evaluate(NOTE_STATE, f"#row-{task}")
    took: list[float] = []
    async with door.listening(TENANT, task) as events:
        for number in range(changes):
            verb, state = CONTROLS[number % 2]
            await bus.publish(Outgoing(streams.control(verb, TENANT), ControlTask(task=task, tenant=TENANT), f"{verb}-{number}"))
            while (event := await door.next_event(events, 20.0)) is None or event.event not in ("paused", "resumed"):
                if event is None:
                    raise BenchError(f"no event after {verb}")
            at = time.time()
            await page.wait_for_function(f"window.changes.length > {number}", timeout=30_000)
            shown, shown_at = (await page.evaluate("window.changes"))[number]
            if shown != state:
                raise BenchError(f"the row says {shown}, not {state}")
            took.append(shown_at - at)
    return {"changes": changes, "row_s": report.spread(took)}


if __name__ == "__main__":
    run_or_exit("bench.dashboard", main)
