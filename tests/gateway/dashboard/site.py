"""A gateway with keys, and browsers that look at its dashboard."""

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from playwright.async_api import Browser, ConsoleMessage, Page, Request, async_playwright

from common.bus import Bus
from common.client_api.asking import Door
from common.messages import GroupContext
from common.messages.tenancy.access import Role
from gateway_svc.access import Caller, Unauthorized
from tests.support.scheduler.stages import World, spec

CHROMIUM = "/usr/bin/chromium"
KEYS: Mapping[str, tuple[str | None, Role]] = {
    "mk-owner": ("acme", "owner"),
    "mk-member": ("acme", "member"),
    "mk-reader": ("acme", "reader"),
    "mk-admin": (None, "admin"),
    "mk-foreign": ("globex", "owner"),
}
PAGES = (
    "/tasks",
    "/tasks/letters-1",
    "/new",
    "/new?form=toml",
    "/timeline",
    "/compare?task=letters-1&task=letters-2",
    "/stages",
    "/usage",
    "/playground",
    "/tasks/letters-1/samples",
    "/files",
    "/webhooks",
    "/keys",
)
SPEC = {"evaluation": {"every": 2, "prompts": 2}, "steps": 6}
STEPS = 1629
"""Of the task of `fill`."""
FILL = f"""
INSERT INTO steps (task, version, state, reward, staleness_mean, staleness_max, sampled_tokens, adapter, checkpoint, first_admitted_at,
                   first_scored_at, last_scored_at, batched_at, started_at, finished_at, trained_at, metrics)
SELECT task, n, 'trained', 0.123456789 * n, random(), 1, 10, jsonb_set(adapter, '{{version}}', to_jsonb(n + 1)), checkpoint,
       first_admitted_at, first_scored_at, last_scored_at, batched_at, started_at, finished_at, trained_at, metrics
FROM steps, generate_series(6, {STEPS - 1}) n WHERE task = 'letters-1' AND version = 5;
UPDATE tasks SET version = {STEPS}, steps = {STEPS} WHERE id = 'letters-1';
INSERT INTO stored_blobs (name, task, kind, version, bytes)
SELECT 'of-' || n, 'letters-1', 'adapter', n, 1 FROM generate_series(100, 219) n;
"""


@dataclass
class Keys:
    """Access by five keys, each of which may be revoked."""

    bus: Bus
    url: str
    revoked: set[str] = field(default_factory=set)
    callers: list[tuple[str, Caller]] = field(default_factory=list)

    @asynccontextmanager
    async def entered(self, bearer: str | None) -> AsyncGenerator[Caller]:
        if bearer not in KEYS or bearer in self.revoked:
            raise Unauthorized("no valid key")
        tenant, role = KEYS[bearer]
        caller = Caller(Door(self.bus, self.url, tenant, patience_s=4), tenant, role, bearer)
        self.callers.append((bearer, caller))
        yield caller

    def revoke(self, key: str) -> None:
        self.revoked.add(key)
        self.end(key)

    def end(self, key: str) -> None:
        """End streams of the key."""
        for bearer, caller in self.callers:
            if bearer == key:
                caller.ended.set()


@dataclass
class Site:
    address: str
    keys: Keys
    world: World

    @property
    def root(self) -> str:
        return f"{self.address}/ui"


@asynccontextmanager
async def session(site: Site, key: str) -> AsyncGenerator[httpx.AsyncClient]:
    """A browser without scripts, logged in."""
    async with httpx.AsyncClient(base_url=site.root, timeout=60) as client:
        page = await client.get("/login")
        answer = await client.post("/login", data={"csrf": csrf_of(page.text), "key": key})
        assert answer.status_code == 303, answer.text
        yield client


def csrf_of(page: str) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', page)
    assert found is not None, page
    return found[1]


def reward(group: GroupContext, member: int) -> float:
    """One that rises, and differs within a group."""
    return 0.1 * member + 0.05 * (group.group % 100)


def metrics(version: int) -> Mapping[str, float]:
    return {
        "kl_sampler": 0.001 * version,
        "entropy": 2.0 - 0.1 * version,
        "response_length": 10.0 + version,
        "response_length_max": 20.0 + version,
    }


async def play(world: World) -> None:
    """Two tasks that finish, and one whose groups never end; one of another tenant."""
    await world.submit("letters-1", spec(name="letters", **SPEC))
    await world.submit("letters-2", spec(name="letters", optimizer={"learning_rate": 0.01}, **SPEC))
    await world.submit("slow-1", spec(name="slow"))
    await world.submit("foreign-1", spec(name="foreign", tenant="globex", steps=1))
    for task in ("letters-1", "letters-2"):
        await world.event(task, "finished")
    await world.event("slow-1", "accepted")
    await world.event("foreign-1", "finished", "globex")


async def fill(world: World) -> None:
    """The task `letters-1` of STEPS steps, some of whose adapters are stored."""
    await world.run("letters-1", spec(name="letters", keep={"adapters": "all"}, **SPEC))
    async with world.database.transaction() as tx:
        for statement in FILL.split(";")[:-1]:
            await tx.connection.exec_driver_sql(statement)


@dataclass
class Seen:
    """What a page did besides showing itself."""

    console: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def watch(self, page: Page) -> None:
        def said(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                self.console.append(message.text)

        def requested(request: Request) -> None:
            self.hosts.add(request.url.split("/")[2])

        page.on("console", said)
        page.on("pageerror", lambda error: self.console.append(str(error)))
        page.on("request", requested)


VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (one) => window.violations.push(`${one.violatedDirective} ${one.blockedURI}`));
"""


@asynccontextmanager
async def chromium() -> AsyncGenerator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def looking(browser: Browser, site: Site, key: str, **options: Any) -> AsyncGenerator[tuple[Page, Seen]]:
    """A page of a browser that is logged in. `options`: of Playwright's context, such as `color_scheme`."""
    context = await browser.new_context(**options)
    await context.add_init_script(VIOLATIONS)
    page, seen = await context.new_page(), Seen()
    seen.watch(page)
    try:
        await page.goto(f"{site.root}/login")
        await page.fill("#key", key)
        await page.click("button.primary")
        await page.wait_for_url("**/tasks")
        yield page, seen
    finally:
        await context.close()


async def settle(page: Page) -> None:
    """Wait until charts and timelines are drawn."""
    await page.wait_for_load_state("load")
    if await page.locator(".plot").count():
        await page.locator("html[data-drawn]").wait_for()
    if await page.locator("#gantt").count():
        await page.locator("canvas[data-drawn]").wait_for()
