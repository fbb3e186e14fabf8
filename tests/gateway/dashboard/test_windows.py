"""What is in sight in small windows and on pages of long tasks, in a headless Chromium."""

import pytest

from tests.gateway.dashboard.site import PAGES, Site, chromium, looking, settle

pytestmark = pytest.mark.slow

MEASURER = """
window.labels = [];
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  const half = this.textAlign === "center" ? this.measureText(text).width / 2 : 0;
  const right = this.getTransform().transformPoint({ x: x + half, y }).x;
  window.labels.push([this.canvas.closest(".plot")?.dataset.chart, text, right, this.canvas.width]);
  return write.call(this, text, x, y);
};
"""


async def test_curves_of_a_long_task_have_means_before_them_and_whole_labels(long: Site) -> None:
    async with chromium() as browser, looking(browser, long, "mk-reader", viewport={"width": 360, "height": 800}) as (page, seen):
        await page.context.add_init_script(MEASURER)
        await page.goto(f"{long.root}/tasks/letters-1")
        await settle(page)
        labels = await page.evaluate("window.labels")
        legend = await page.locator("[data-chart=staleness] .u-legend .u-label").all_text_contents()
        few = await page.locator("[data-chart=evaluations] .u-legend .u-label").all_text_contents()
        await page.goto(f"{long.root}/tasks/letters-1?over=tokens")
        await settle(page)
        labels += await page.evaluate("window.labels")

    assert legend == ["step", "mean", "highest", "mean, mean of 11", "highest, mean of 11"]
    assert few == ["step", "main", "main, lower bound", "main, upper bound"]
    assert len(labels) > 50 and [label for label in labels if label[2] > label[3]] == []
    assert seen.console == []


BELOW = "document.documentElement.scrollHeight - Math.max(document.querySelector('main').getBoundingClientRect().bottom, innerHeight)"
"""Pixels of a page below its content."""


async def test_on_a_phone_the_head_is_small_and_what_matters_is_in_sight(played: Site) -> None:
    right = "(one) => one.getBoundingClientRect().right"
    async with chromium() as browser, looking(browser, played, "mk-owner", viewport={"width": 360, "height": 800}) as (page, _):
        heads, below = [], []
        for path in (*PAGES, "/tasks/slow-1"):
            await page.goto(played.root + path)
            await settle(page)
            heads.append(await page.locator(".top").evaluate("(one) => one.offsetHeight"))
            below.append(await page.evaluate(BELOW))
        current = await page.locator(".top [aria-current]").evaluate(right)
        await page.goto(f"{played.root}/tasks/letters-1")
        links = [await one.evaluate(right) for one in await page.locator("#versions a[download]").all()]
        await page.goto(f"{played.root}/tasks")
        rewards = [await one.evaluate(right) for one in await page.locator("#listing .reward").all()]
        wider = "(one) => one.scrollWidth > one.clientWidth && getComputedStyle(one).backgroundAttachment"
        hints = await page.locator("#listing .scroll").evaluate(wider)

    assert max(heads) < 80 and current <= 360
    assert max(below) < 1, "nothing that is hidden makes a page longer"
    assert links and rewards and max(*links, *rewards) <= 360
    assert hints == "local, local, scroll, scroll", "a shadow where a table goes on"
