"""Pages in a headless Chromium, with a real scheduler behind them."""

import asyncio
import re
from collections.abc import Sequence
from itertools import permutations

import pytest
from playwright.async_api import Page, Route

from common import streams
from common.bus import Outgoing
from common.messages import DeadLetter
from gateway_svc.web.text import visible
from tests.gateway.dashboard.browsing import complaints, faults, tab_to, unfold
from tests.gateway.dashboard.hostile import LONG, TEXTS
from tests.gateway.dashboard.site import KEYS, PAGES, Site, chromium, looking, settle
from tests.support.scheduler.stages import spec

pytestmark = pytest.mark.slow
FOR_OWNERS = ("/usage", "/webhooks", "/keys")
FOR_MEMBERS = ("/new", "/new?form=toml")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("key", ["mk-reader", "mk-owner"])
async def test_every_page_is_clean(played: Site, key: str, scheme: str) -> None:
    role = KEYS[key][1]
    forbidden = (*FOR_OWNERS, *FOR_MEMBERS) if role == "reader" else ()
    found: dict[str, list[str]] = {}
    async with chromium() as browser:
        for width in (1280, 360):
            async with looking(browser, played, key, color_scheme=scheme, viewport={"width": width, "height": 800}) as (page, seen):
                for path in (*PAGES, "/tasks/slow-1"):
                    if path in forbidden:
                        continue
                    await page.goto(played.root + path)
                    await settle(page)
                    await unfold(page)
                    found[f"{path} at {width}"] = [*await faults(page), *await complaints(page, seen, played)]
                    seen.console.clear()

    assert len(found) >= 2 * (len(PAGES) + 1 - len(forbidden))
    assert {path: what for path, what in found.items() if what} == {}


async def test_login_page_and_errors_are_clean_and_a_planted_fault_is_found(site: Site) -> None:
    async with chromium() as browser:
        for scheme in ("light", "dark"):
            page = await (await browser.new_context(color_scheme=scheme)).new_page()
            await page.goto(f"{site.root}/login")
            assert await faults(page) == []
            await page.fill("#key", "mk-wrong")
            await page.click("button.primary")
            await page.get_by_text("This key is not valid").wait_for()
            assert await faults(page) == []
            await page.goto(f"{site.root}/nothing")
            assert await faults(page) == []
            await page.evaluate("document.querySelector('p').style.color = '#888888'; document.body.append(new Image())")
            assert {fault.partition(":")[0] for fault in await faults(page)} >= {"image-alt"}


async def test_charts_and_timeline_are_drawn_and_moved_by_keyboard(played: Site) -> None:
    async with chromium() as browser, looking(browser, played, "mk-reader") as (page, seen):
        await page.goto(f"{played.root}/tasks/letters-1")
        await settle(page)
        charts, tables = await page.locator(".plot canvas").count(), await page.locator(".chart details table").count()
        await page.goto(f"{played.root}/timeline")
        await settle(page)
        canvas = page.locator("#gantt .tasks")
        await canvas.focus()
        pictures = [await picture(page)]
        for key in ("+", "0"):
            await page.keyboard.press(key)
            pictures.append(await picture(page))
        await tab_to(page, "document.activeElement.name === 'version'", "Shift+Tab")
        await page.keyboard.type("2")
        await page.keyboard.press("Enter")
        pictures.append(await picture(page))
        tip = await page.locator("#gantt .tip").text_content()
        await page.keyboard.type("9")
        await page.keyboard.press("Enter")
        absent = await page.locator("#gantt .tip").text_content()
        shown = await page.locator("#gantt .load").is_visible()
    before, zoomed, whole, of_step = pictures

    assert charts == tables == 6
    assert before != zoomed
    assert before == whole
    assert of_step not in (before, zoomed)
    assert re.fullmatch(r"letters-\d, step to version 2: .* s from .* s on", tip or "")
    assert absent == "There is no step to this version here."
    assert shown
    assert seen.console == []


RECORDER = """
window.said = [];
const fill = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
  window.said.push([this.canvas.closest(".plot")?.dataset.chart, this.textAlign, text]);
  return fill.call(this, text, ...at);
};
"""
SMALLER = """
window.said = [];
document.querySelectorAll("#table-kl td").forEach((cell) => { cell.textContent = String(Number(cell.textContent) / 100); });
"""


async def test_ticks_of_small_values_differ(played: Site) -> None:
    """KL of the played tasks is 0.001 to 0.006; then a hundredth of it."""
    async with chromium() as browser, looking(browser, played, "mk-reader", color_scheme="light") as (page, _):
        await page.context.add_init_script(RECORDER)
        await page.goto(f"{played.root}/tasks/letters-1")
        await settle(page)
        found = await ticks(page, "kl")
        await page.evaluate(SMALLER)
        await page.emulate_media(color_scheme="dark")  # draws the charts again
        smaller = await ticks(page, "kl")

    assert len(found) == len(set(found)) > 2 and all(re.fullmatch(r"0\.00\d+", one) for one in found), found
    assert len(smaller) == len(set(smaller)) > 2 and all(re.fullmatch(r"0|\d(\.\d+)?e-5", one) for one in smaller), smaller


async def ticks(page: Page, chart: str) -> list[str]:
    """Labels of the vertical axis, once they are drawn."""
    found = f"window.said.filter((one) => one[0] === '{chart}' && one[1] === 'right').map((one) => one[2])"
    await page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return await page.evaluate(found)


async def picture(page: Page) -> str:
    """Of the timeline, once it is drawn as it is now."""
    await page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return await page.locator("#gantt .tasks").evaluate("canvas => canvas.toDataURL()")


async def test_list_and_task_change_by_themselves(site: Site) -> None:
    await site.world.run("slow-1", spec(name="slow"), until="accepted")
    async with chromium() as browser, looking(browser, site, "mk-member") as (tasks, seen):
        await tasks.locator("html[data-live='yes']").wait_for()
        task = await tasks.context.new_page()
        await task.goto(f"{site.root}/tasks/slow-1")
        await tasks.locator("#row-slow-1 .state-running").wait_for()
        await site.world.control("pause", "slow-1", until="paused")
        await task.locator(".facts .state-paused").wait_for(timeout=20_000)
        await task.locator("#actions [data-verb=resume]").wait_for()
        assert [await task.locator(f"#actions [data-verb={verb}]").is_visible() for verb in ("pause", "cancel")] == [False, True]
        await tasks.bring_to_front()
        await tasks.locator("#row-slow-1 .state-paused").wait_for(timeout=20_000)
        await site.world.run("new-1", spec(name="new", steps=1))
        await tasks.locator("#row-new-1 .state-finished").wait_for(timeout=20_000)
    assert seen.console == []


SCRIPTS = ("live.js", "htmx.min.js", "hx-sse.min.js")


async def test_page_becomes_live_in_whatever_order_its_scripts_come(site: Site) -> None:
    async with chromium() as browser:
        for order in permutations(SCRIPTS):
            async with looking(browser, site, "mk-reader") as (page, seen):
                await delay(page, order)
                await page.reload()
                await page.locator("html[data-live='yes']").wait_for()
                assert seen.console == [], order


async def delay(page: Page, order: Sequence[str]) -> None:
    """Let each script come some time after the one before it has."""
    came = {name: asyncio.Event() for name in order}

    async def hold(route: Route) -> None:
        place = order.index(route.request.url.rpartition("/")[2])
        if place:
            await came[order[place - 1]].wait()
            await asyncio.sleep(0.2)
        await route.continue_()
        came[order[place]].set()

    for name in order:
        await page.route(f"**/{name}", hold)


async def test_page_without_its_stream_says_that_it_is_not_live(site: Site) -> None:
    async def refuse(route: Route) -> None:
        await route.abort()

    async with chromium() as browser, looking(browser, site, "mk-reader") as (page, _):
        await page.route("**/hx-sse.min.js", refuse)
        await page.reload()
        await page.locator("#not-live").wait_for(timeout=20_000)


async def test_page_says_when_it_is_not_live(site: Site) -> None:
    async with chromium() as browser, looking(browser, site, "mk-reader") as (page, _):
        await page.locator("html[data-live='yes']").wait_for()
        assert not await page.locator("#not-live").is_visible()

        async def refuse(route: Route) -> None:
            await route.abort()

        await page.route("**/live*", refuse)
        site.keys.end("mk-reader")
        await page.locator("#not-live").wait_for(timeout=20_000)
        await page.unroute("**/live*")
        await page.locator("#not-live").wait_for(state="hidden", timeout=20_000)


async def test_task_is_made_watched_and_cancelled_by_keyboard_alone(site: Site) -> None:
    async with chromium() as browser, looking(browser, site, "mk-member") as (page, seen):
        await page.goto(f"{site.root}/tasks")
        await press_to(page, "New task")
        for name, text in (("name", "slow"), ("pool", "tiny"), ("steps", "2"), ("environment.name", "toy")):
            await tab_to(page, f"document.activeElement.name === '{name}'")
            await page.keyboard.type(text)
        await press_to(page, "Submit")
        await page.get_by_text("The task is accepted.").wait_for()
        await tab_to(page, "document.activeElement.textContent === 'Cancel…'")
        await page.keyboard.press("Enter")
        await press_to(page, "Cancel slow")
        await page.get_by_text("The scheduler is asked to cancel the task.").wait_for()
        task = page.url.rpartition("/")[2].partition("?")[0]
        await site.world.status_becomes(task, lambda status: status.state in ("cancelled", "finished"))
    assert seen.console == []


async def press_to(page: Page, text: str) -> None:
    """Go to a link or button by keyboard, and press it: another page follows."""
    await tab_to(page, f"document.activeElement.textContent.trim().startsWith('{text}')")
    async with page.expect_navigation():
        await page.keyboard.press("Enter")


async def test_hostile_texts_are_shown_as_text(site: Site) -> None:
    await site.world.run("slow-1", spec(name="slow", environment={"name": "toy", "options": {"texts": TEXTS}}), until="accepted")
    for number, text in enumerate([*TEXTS, LONG]):
        letter = DeadLetter(
            stage="sample", subject="prompts.sample.tiny.slow-1", reason=text[:4000], attempts=1, headers={}, body=b"", sequence=1
        )
        await site.world.bus.publish(Outgoing(streams.failed("sample", "slow-1"), letter, f"letter-{number}"))
    await site.world.status_becomes("slow-1", lambda status: status.dead_letters == len(TEXTS) + 1)
    async with chromium() as browser, looking(browser, site, "mk-owner") as (page, seen):
        for path in ("/tasks/slow-1", "/tasks", "/new?from=slow-1"):
            await page.goto(site.root + path)
            await settle(page)
            await unfold(page)
            assert await page.evaluate("window.broken") is None
            assert await complaints(page, seen, site) == []
        await page.goto(f"{site.root}/tasks/slow-1")
        shown = await page.locator("#failures tbody tr td:nth-child(3)").all_text_contents()

    assert set(shown[: len(TEXTS)]) == {visible(text) for text in TEXTS}
    assert len(shown) == len(TEXTS) + 1


@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without"])
async def test_missing_field_is_marked_and_reached(site: Site, scripts: bool) -> None:
    async with chromium() as browser, looking(browser, site, "mk-member", java_script_enabled=scripts) as (page, _):
        await page.goto(f"{site.root}/new")
        await page.fill("#f-name", "sums")
        await page.get_by_role("button", name="Submit").click()
        await page.locator("#f-pool:focus").wait_for()
        wrong = [await one.get_attribute("id") for one in await page.locator("[aria-invalid=true]").all()]
        said = [await page.locator(f"#{name}".replace("f-", "e-").replace(".", r"\.")).text_content() for name in wrong if name]

    assert wrong == ["f-pool", "f-steps", "f-environment.name"]
    assert said == ["required, but not given"] * 3


async def test_long_ids_need_no_more_room_than_there_is(site: Site) -> None:
    task = "once-3fc9b689459d738f8c88a3a48aa9e335"
    await site.world.run(task, spec(name="letters", steps=1))
    found: dict[str, tuple[int, int]] = {}
    async with chromium() as browser, looking(browser, site, "mk-owner", viewport={"width": 1280, "height": 800}) as (page, _):
        for path in ("/tasks", "/timeline", "/usage"):
            await page.goto(site.root + path)
            await settle(page)
            widths = "[...document.querySelectorAll('.scroll')].map((one) => [one.scrollWidth, one.clientWidth])"
            found |= {f"{path} {number}": (inner, outer) for number, (inner, outer) in enumerate(await page.evaluate(widths))}
        await page.set_viewport_size({"width": 360, "height": 800})
        await page.context.add_init_script(RECORDER)
        await page.goto(f"{site.root}/timeline")
        await settle(page)
        labels = await page.evaluate("window.said.map((one) => one[2])")

    assert found and {place: one for place, one in found.items() if one[0] > one[1]} == {}
    [label] = {one for one in labels if one.startswith("once")}
    assert label.endswith("335") and "…" in label


async def test_pages_work_without_scripts(played: Site) -> None:
    async with chromium() as browser, looking(browser, played, "mk-owner", java_script_enabled=False) as (page, _):
        await page.goto(f"{played.root}/tasks?state=running")
        assert await page.locator("tbody tr").count() == 1
        await page.get_by_role("link", name="slow-1").click()
        await page.locator("summary", has_text="Pause").click()
        await page.get_by_role("button", name="Pause slow-1").click()
        await page.get_by_text("The scheduler is asked to pause the task.").wait_for()
        await page.click(".who summary")
        await page.select_option("#theme", "dark")
        await page.get_by_role("button", name="Set colours").click()
        assert await page.locator("html").get_attribute("data-theme") == "dark"
