"""The playground, with a source of made-up tokens in place of samplers."""

import ast
import json
import shlex
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from html import unescape
from typing import Any

import httpx
import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

from gateway_svc.openai.sampling.choices import Choice
from gateway_svc.web.playground import Playground, Turn, as_code, first_playground, read_playground
from tests.gateway.dashboard.browsing import tab_to
from tests.gateway.dashboard.hostile import TEXTS
from tests.gateway.dashboard.reading import texts_of
from tests.gateway.dashboard.site import Keys, Site, chromium, csrf_of, looking, session
from tests.support.gateway.deltas import Part, Source, deltas, failing
from tests.support.gateway.serving import gateway
from tests.support.scheduler.stages import World, spec
from tests.support.waiting import eventually

MARKUP = "<img src=x onerror=window.broken=1>\u202e"


def _reply(choice: Choice) -> Any:
    return deltas([Part("Hello"), Part(", "), Part(MARKUP)], logprobs=choice.sampling.top_logprobs)


@asynccontextmanager
async def _site(world: World, nats_url: str, source: Source) -> AsyncGenerator[Site]:
    keys = Keys(world.bus, nats_url)
    async with gateway(world.bus, nats_url, access=keys, session_secret="s" * 32, sampler=source) as address:
        yield Site(address, keys, world)


def _form(*models: str, **changes: str) -> dict[str, str]:
    named = {f"model.{number}": model for number, model in enumerate(models)}
    return {"system": "Be short.", "role.0": "user", "text.0": "Hi", "action": "send"} | named | changes


async def _token(browser: httpx.AsyncClient) -> dict[str, str]:
    return {"csrf": csrf_of((await browser.get("/playground")).text)}


async def test_without_scripts_a_form_brings_the_answers_of_all_models(world: World, nats_url: str) -> None:
    await world.run("letters-1", spec(name="letters", steps=2))
    source = Source(_reply)
    async with _site(world, nats_url, source) as site, session(site, "mk-member") as browser:
        task = (await browser.get("/tasks/letters-1")).text
        first = (await browser.get("/playground", params={"model": "letters-1@2"})).text
        token = await _token(browser)
        answer = await browser.post("/playground", data=_form("tiny", "letters-1@2", "none-1@1", top_logprobs="2", seed="7") | token)
        wrong = await browser.post("/playground", data=_form("tiny", temperature="9") | token)

    read = texts_of(answer.text)
    assert "/ui/playground?model=letters-1@2" in task and 'value="letters-1@2"' in first
    assert read.count("Hello, <img src=x onerror=window.broken=1>⟨U+202E⟩") == 2
    assert "<img" not in answer.text
    assert read.count("3 tokens after 7; it ended by stop") == 2
    assert "404: no model 'none-1@1'" in read
    assert "50.0 %" in read and "22.3 %" in read
    assert (wrong.status_code, "400: temperature: " in texts_of(wrong.text)) == (200, True)
    assert {target.model for _, _, target in source.choices} == {"tiny", "letters-1@2"}
    assert len({request for request, _, _ in source.choices}) == 2
    prompt, sampling = source.choices[0][1].prompt, source.choices[0][1].sampling
    assert [(one.role, one.content) for one in prompt.messages or ()] == [("system", "Be short."), ("user", "Hi")]
    assert (sampling.seed, sampling.top_logprobs) == (7, 2)


async def test_who_may_sample_and_for_whom(world: World, nats_url: str) -> None:
    await world.run("letters-1", spec(name="letters", steps=1))
    await world.run("theirs", spec(tenant="globex", steps=1))
    source = Source(_reply)
    async with _site(world, nats_url, source) as site:
        async with session(site, "mk-reader") as browser:
            page = (await browser.get("/playground")).text
            token = {"csrf": csrf_of(page)}
            refused = [
                (await browser.post(path, data=_form("tiny") | token)).status_code for path in ("/playground", "/playground/columns/0")
            ]
        async with session(site, "mk-foreign") as browser:
            token = await _token(browser)
            foreign = await browser.post("/playground/columns/0", data=_form("letters-1@1") | token)
            other = await browser.post("/playground/columns/0", params={"tenant": "acme"}, data=_form("letters-1@1") | token)
        async with session(site, "mk-admin") as browser:
            token = await _token(browser)
            unnamed = await browser.post("/playground/columns/0", data=_form("tiny") | token)
            named = await browser.post("/playground/columns/0", params={"tenant": "acme"}, data=_form("tiny") | token)
    assert "needs a key of the role owner, member or admin. Yours has the role reader." in texts_of(page)
    assert "<textarea" not in page
    assert refused == [403, 403]
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (404, "model_not_found")
    assert other.status_code == 403
    assert (unnamed.status_code, unnamed.json()["error"]["code"], named.status_code) == (400, "tenant_required", 200)
    assert [target.tenant for _, _, target in source.choices] == ["acme"]


async def test_a_column_is_of_this_session_and_of_a_form_that_is_right(world: World, nats_url: str) -> None:
    source = Source(_reply)
    async with _site(world, nats_url, source) as site, session(site, "mk-member") as browser:
        token = await _token(browser)
        forged = await browser.post("/playground/columns/0", data=_form("tiny"))
        absent = [await browser.post(f"/playground/columns/{number}", data=_form("tiny") | token) for number in ("1", "4", "x")]
        elsewhere = await browser.post("/playground/columns/0", data=_form("tiny") | token, headers={"Sec-Fetch-Site": "cross-site"})
        as_json = await browser.post("/playground/columns/0", json=_form("tiny") | token)
        large = await browser.post("/playground/columns/0", data=_form("tiny", system="x" * 9_000_000) | token)
        site.keys.revoke("mk-member")
        after = await browser.post("/playground/columns/0", data=_form("tiny") | token)
    assert forged.json()["error"]["code"] == "csrf"
    assert [one.status_code for one in absent] == [400, 400, 400]
    assert [one.status_code for one in (forged, elsewhere, as_json, large, after)] == [403, 403, 415, 413, 401]
    assert after.json()["error"]["message"] == "the session has ended; log in again"
    assert source.choices == []


async def test_columns_count_as_requests_of_the_tenant(world: World, nats_url: str) -> None:
    async with world.database.transaction() as tx:
        await tx.connection.exec_driver_sql("INSERT INTO tenants (id) VALUES ('acme')")
        await tx.connection.exec_driver_sql("INSERT INTO limits (tenant, requests_per_minute) VALUES ('acme', 3)")
    source = Source(_reply)
    async with _site(world, nats_url, source) as site, session(site, "mk-member") as browser:
        token = await _token(browser)
        whole = await browser.post("/playground", data=_form("tiny", "tiny") | token)
        streamed = [await browser.post("/playground/columns/0", data=_form("tiny") | token) for _ in range(2)]
        late = await browser.post("/playground", data=_form("tiny") | token)
    said = "429: requests_per_minute: "
    assert said not in texts_of(whole.text)  # digests in its markup may have 429
    assert [one.status_code for one in streamed] == [200, 429]
    assert streamed[1].json()["error"]["code"] == "rate_limit_exceeded"
    assert (late.status_code, said in texts_of(late.text)) == (200, True)
    assert len(source.choices) == 3


def test_form_as_code_is_the_same_request() -> None:
    text = f'it\'s "{MARKUP}" ü 😀\nline'
    settings = {"temperature": "0.5", "top_k": "3", "top_logprobs": "1"}
    shown = Playground(["tiny", "", "a-1@2", ""], "", [Turn("user", text)], settings, "END\n\n")
    code = as_code(shown, "http://127.0.0.1:8000/v1")

    first, _ = code["curl"].split("\ncurl", 1)
    body = json.loads(shlex.split(first)[shlex.split(first).index("-d") + 1])
    assert body == {**shown.request(0), "stream": True}
    assert body["messages"] == [{"role": "user", "content": text}] and body["stop"] == ["END"]
    calls = [node for node in ast.walk(ast.parse(code["Python"])) if isinstance(node, ast.Call) and len(node.keywords) > 3]
    given = {one.arg: ast.literal_eval(one.value) for one in calls[0].keywords if one.arg != "model"}
    assert given.pop("extra_body") == {"top_k": 3}
    assert given == {name: value for name, value in body.items() if name not in ("model", "top_k")}
    assert "\u202e" not in code["curl"] + code["Python"]
    assert "for model in ['tiny', 'a-1@2']" in code["Python"]


def test_messages_are_added_and_removed() -> None:
    shown = first_playground(["tiny"])
    more = shown.with_turns(1).with_turns(1)
    assert [turn.role for turn in more.turns] == ["user", "assistant", "user"]
    for _ in range(30):
        more = more.with_turns(1)
    assert len(more.turns) == 20
    assert len(shown.with_turns(-1).turns) == 1
    assert read_playground({"text.0": "a", "role.0": "system"}).turns == [Turn("user", "a")]


# ------------------------------------------------------------------------------------------------------------- Chromium


async def _filled(page: Page, site: Site, *models: str) -> None:
    await page.goto(f"{site.root}/playground")
    for number, model in enumerate(models):
        if await page.locator(f"[name='model.{number}'] option[value='{model}']").count():
            await page.select_option(f"[name='model.{number}']", model)
        else:
            await page.fill("[name='model.3']", model)
    await page.fill("[name='text.0']", "Hi")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_answers_come_side_by_side_and_are_clean(world: World, nats_url: str, scheme: str) -> None:
    await world.run("letters-1", spec(name="letters", steps=1))
    source = Source(_reply)
    async with _site(world, nats_url, source) as site, chromium() as browser:
        for width in (1280, 360):
            async with looking(browser, site, "mk-member", color_scheme=scheme, viewport={"width": width, "height": 800}) as (page, seen):
                await _filled(page, site, "tiny", "letters-1@1", "none-1@1")
                await page.click("button[value='send']")
                await page.locator("#columns[data-state='done']").wait_for()
                answers = await page.locator(".column .answer").all_text_contents()
                errors = await page.locator(".column .error:visible").all_text_contents()
                await page.click("button[value='code']")
                await page.locator("#code pre").first.wait_for()
                await page.click("button[value='add']")
                await page.locator("[name='role.1']").wait_for()
                await page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
                found = (await Axe().run(page)).response["violations"]
                kept = await page.locator(".column").count(), await page.input_value("[name='text.0']")
                assert [(one["id"], one["nodes"][0]["html"]) for one in found] == []
                assert await page.evaluate("[window.broken ?? null, window.violations]") == [None, []]
                assert not await page.evaluate("document.documentElement.scrollWidth > innerWidth")
                assert answers == ["Hello, <img src=x onerror=window.broken=1>⟨U+202E⟩"] * 2 + [""]
                assert len(errors) == 1 and errors[0].startswith("404: no model 'none-1@1'")
                assert kept == (3, "Hi")
                assert [one for one in seen.console if "404" not in one] == []


@pytest.mark.slow
async def test_by_keyboard_alone_tokens_are_read_and_a_stop_ends_the_request(world: World, nats_url: str) -> None:
    await world.run("letters-1", spec(name="letters", steps=1))
    source = Source(lambda choice: deltas([Part("a"), Part("b"), Part("c")], logprobs=choice.sampling.top_logprobs), hold_after=2)
    async with _site(world, nats_url, source) as site, chromium() as browser, looking(browser, site, "mk-member") as (page, seen):
        await page.goto(f"{site.root}/playground")
        for name, text in (("model.0", "tiny"), ("model.1", "tiny"), ("text.0", "Hi")):
            await tab_to(page, f"document.activeElement.name === '{name}'")
            await page.keyboard.type(text)
            await page.keyboard.press("Escape")
        await tab_to(page, "document.activeElement.textContent === 'Send'")
        await page.keyboard.press("Enter")
        await page.locator(".column:nth-child(2) .token:nth-child(2)").wait_for()
        begun = len(source.open)
        await tab_to(page, "document.activeElement.className.startsWith('token')")
        first = await page.locator(".column:first-child .tip").text_content()
        await page.keyboard.press("ArrowRight")
        second = await page.locator(".column:first-child .tip").text_content()
        await tab_to(page, "document.activeElement.id === 'stop'", "Shift+Tab")
        await page.keyboard.press("Enter")
        await eventually(lambda: not source.open)
        await page.locator("#columns[data-state='done']").wait_for()
        figures = await page.locator(".figures").all_text_contents()

    assert begun == 2
    assert (first or "").startswith("“a”: 50.0 %. Most probable: “a0” 22.3 %")
    assert (second or "").startswith("“b”: 50.0 %")
    assert all(text.startswith("stopped; first token after") for text in figures)
    assert seen.console == []


@pytest.mark.slow
async def test_failures_are_shown_at_their_column(world: World, nats_url: str) -> None:
    def reply(choice: Choice) -> Any:
        return failing("overdue") if choice.sampling.seed == 1 else failing("engine_lost", [Part("begun")])

    await world.run("letters-1", spec(name="letters", steps=1))
    async with _site(world, nats_url, Source(reply)) as site, chromium() as browser, looking(browser, site, "mk-member") as (page, _):
        await _filled(page, site, "tiny")
        await page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        shown = []
        for seed in ("1", "2"):
            await page.fill("#s-seed", seed)
            await page.click("button[value='send']")
            await page.locator(".column .error:visible").wait_for()
            await page.locator("#columns[data-state='done']").wait_for()
            shown.append((await page.locator(".error").first.text_content(), await page.locator(".answer").first.text_content()))
        site.keys.revoke("mk-member")
        await page.click("button[value='send']")
        await page.get_by_text("the session has ended").wait_for()

    assert shown == [("503: as the test wants it (again in 2 s)", ""), ("as the test wants it", "begun")]


@pytest.mark.slow
async def test_hostile_replies_and_models_are_text(world: World, nats_url: str) -> None:
    texts = [text for text in TEXTS if "\x00" not in text]
    source = Source(lambda choice: deltas([Part(text) for text in texts], logprobs=choice.sampling.top_logprobs))
    async with _site(world, nats_url, source) as site, chromium() as browser, looking(browser, site, "mk-member") as (page, _):
        await _filled(page, site, "tiny", "<b>x</b>\u202e")
        await page.click("button[value='send']")
        await page.locator("#columns[data-state='done']").wait_for()
        content = await page.locator("#columns").text_content() or ""
        broken = await page.evaluate(
            "[window.broken ?? null, window.violations, document.querySelectorAll('#columns img, #columns b').length]"
        )

    assert broken == [None, [], 0]
    assert not set(content) & set("\u202e\u2066\u200b\x1b\x9b\x07\u2028\ufeff")
    assert "⟨U+202E⟩" in unescape(content)
