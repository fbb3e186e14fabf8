"""Pictures of the dashboard in `docs/images`, of a real stack that trains the demo's tasks: `python -m docs.pictures`. Needs Chromium."""

import asyncio
import shutil
import tempfile
from pathlib import Path

from playwright.async_api import Browser, Page, async_playwright

from marlaas.client import Client
from marlaas.demo import demo_tasks
from marlaas.stack import control
from marlaas.stack.state_files import Stack

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
CHROMIUM = shutil.which("chromium") or "chromium"
STEPS = 60
RUNNING = 0.6
"""Share of the steps after which the list is shown, while its tasks run."""
VIEW = {"width": 1280, "height": 760}
SETTLE_S = 1.5
"""Seconds that charts take to be drawn."""


async def take(stack: Stack) -> None:
    url = f"{stack.gateway.url}/ui"
    async with Client.connect(stack.nats_url) as client, async_playwright() as playwright:
        tasks = [await client.submit(spec) for spec in demo_tasks(ROOT / "examples", 0, STEPS)]
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        while min([(await client.status(task)).version for task in tasks]) < RUNNING * STEPS:  # noqa: ASYNC110  nothing else tells it
            await asyncio.sleep(0.2)
        await _picture(browser, f"{url}/tasks", "tasks")
        for task in tasks:
            await client.wait(task)
        await _picture(browser, f"{url}/tasks/{tasks[0]}", "task")
        await _picture(browser, f"{url}/timeline", "timeline", scheme="dark")
        await _picture(browser, f"{url}/tasks/{tasks[0]}/samples", "samples", height=1200)
        await browser.close()


async def _picture(browser: Browser, address: str, name: str, *, scheme: str = "light", height: int = VIEW["height"]) -> None:
    page: Page = await browser.new_page(viewport=VIEW | {"height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    await page.goto(address, wait_until="load")
    await asyncio.sleep(SETTLE_S)
    await page.screenshot(path=str(IMAGES / f"dashboard-{name}.png"))
    await page.close()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="marlaas-pictures-") as folder:
        data = Path(folder)
        try:
            plan = control.make_plan(data, ROOT / "pools.toml", without_keys=True)
            asyncio.run(take(control.wait_until_ready(control.start(plan, end_with_parent=True), lambda _: None)))
        finally:
            control.stop(data)


if __name__ == "__main__":
    main()
