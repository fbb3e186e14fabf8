"""What a browser sees of a page: faults of access, complaints, focus."""

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

from tests.gateway.dashboard.site import Seen, Site


async def faults(page: Page) -> list[str]:
    """What axe finds, of WCAG and of good practice."""
    found = await Axe().run(page)
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found.response["violations"]]


async def complaints(page: Page, seen: Seen, site: Site) -> list[str]:
    """What a page did that it may not: reports of its policy, errors, requests elsewhere, being wider than the window."""
    found = [*await page.evaluate("window.violations"), *seen.console]
    found += [f"asked {host}" for host in seen.hosts if host != site.address.partition("//")[2]]
    if await page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        found.append("wider than the window")
    return found


async def unfold(page: Page) -> None:
    """Show what is folded."""
    await page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")


async def tab_to(page: Page, condition: str, key: str = "Tab") -> None:
    for _ in range(200):
        if await page.evaluate(condition):
            return
        await page.keyboard.press(key)
    raise AssertionError(f"no focus with {condition}")
