"""The page of samples, from a real scheduler and the real tokenizer."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from playwright.async_api import Page

from common.messages import KeptAttempt, SamplesAnswer
from gateway_svc.web.text import visible
from gateway_svc.web.views.samples import MAX_ALIGNED, differences, samples_page
from rollout_svc.text.chat import Chat
from tests.gateway.conversations import conversation
from tests.gateway.dashboard.browsing import complaints, faults, tab_to, unfold
from tests.gateway.dashboard.hostile import TEXTS
from tests.gateway.dashboard.reading import cells, texts_of
from tests.gateway.dashboard.site import Site, chromium, looking, session
from tests.support.samples import MODEL, keep, kept_attempt, step_samples, texts_replica
from tests.support.waiting import eventually


async def test_page_shows_attempts_conversation_and_numbers(played: Site) -> None:
    async with texts_replica(played.world.bus) as chat, session(played, "mk-reader") as browser, session(played, "mk-foreign") as foreign:
        none = texts_of((await browser.get("/tasks/letters-1/samples")).text)
        ids, sampled = await conversation(chat)
        other = [*ids[:-3], ids[-1], ids[-2], ids[-1]]
        attempts = [kept_attempt(ids, sampled, turns=2), kept_attempt(other, sampled, member=1, reward=0.0), kept_attempt(group=9)]
        await keep(played.world.bus, step_samples("letters-1", 5, attempts, left_out=1), step_samples("letters-1", 6))
        await eventually(lambda: _has_texts(played), 60)
        page = (await browser.get("/tasks/letters-1/samples?step=5&attempt=0&with=1&by=difference")).text
        last = (await browser.get("/tasks/letters-1/samples")).text
        task = (await browser.get("/tasks/letters-1")).text
        refused = [await foreign.get("/tasks/letters-1/samples"), await browser.get("/tasks/letters-1/samples?step=4")]
        wrong = await browser.get("/tasks/letters-1/samples?by=odd")

    assert "No step has samples" in none
    assert re.findall(r"<option( selected)?>(\d+)", last) == [(" selected", "6"), ("", "5")]
    assert [row[0] for row in cells(page, "attempts")] == ["group 3, member 0", "group 3, member 1", "group 9, member 0"]
    assert cells(page, "attempts")[1][1:3] == ["0.0000", "0.7500"]
    roles = re.findall(r'<div class="said" data-role="(\w+)"', page)
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert "calls search" in texts_of(page) and "1 more had no room" in texts_of(page)
    tokens = re.findall(r'<span class="t s l(\d) d(\w+) a(\w+)" title="([^"]+)">', page.partition('id="tokens"')[2])
    assert len(tokens) == sum(sampled)
    assert tokens[0][:3] == ("1", "p2", "p2")
    assert tokens[0][3] == f"id {ids[sampled.index(1)]}, sampler -0.5000, trainer -0.6250, difference 0.1250, advantage 0.7500"
    assert 'id="samples" class="by-difference"' in page
    rows = cells(page, "numbers")
    assert len(rows) == sum(sampled) and rows[0][3:] == ["-0.5000", "-0.6250", "0.1250"]
    diff = page.partition('id="diff"')[2]
    assert "<del>" in diff and "<ins>" in diff and "You help." in diff
    assert "/tasks/letters-1/samples" in task
    assert [answer.status_code for answer in (*refused, wrong)] == [404, 404, 400]


async def _has_texts(site: Site) -> bool:
    async with session(site, "mk-reader") as browser:
        return "No live replica" not in (await browser.get("/tasks/letters-1/samples")).text


async def test_ids_are_shown_without_a_replica(played: Site) -> None:
    await keep(played.world.bus, step_samples("letters-1", 6, [kept_attempt(), kept_attempt([5, 6, 9, 8], member=1)]))
    async with session(played, "mk-reader") as browser:
        page = (await browser.get("/tasks/letters-1/samples?attempt=0&with=1")).text
    assert "No live replica of the pool serves" in texts_of(page)
    assert re.findall(r'<div class="said" data-role="(\w+)"', page) == ["prompt", "assistant"]
    assert "<del>7 </del><ins>9 </ins>" in page


CHAT = Chat.load(MODEL)


def encoded(text: str) -> list[int]:
    return list(CHAT._tokenizer.encode(text, add_special_tokens=False))


async def test_hostile_tokens_and_names_are_text(played: Site) -> None:
    text = "\n".join(TEXTS)
    ids = [5, *encoded(text), 6, *encoded(text)]
    sampled = [0] * (len(ids) // 2) + [1] * (len(ids) - len(ids) // 2)
    attempts = [
        kept_attempt(ids, sampled, components={one[:100]: 1.0 for one in TEXTS}),
        kept_attempt([5, *encoded(text)[::-1]], [0, *[1] * len(encoded(text))], member=1),
    ]
    await keep(played.world.bus, step_samples("letters-1", 6, attempts))
    async with texts_replica(played.world.bus), session(played, "mk-reader") as browser:
        await eventually(lambda: _has_texts(played), 60)
        page = (await browser.get("/tasks/letters-1/samples?attempt=0&with=1")).text

    body = page.partition("<main")[2].partition("</main>")[0]
    assert not re.search(r"<(img|iframe|svg|base|style|form action=http|object|plaintext|b>)", body)
    assert not set(body) & {"\u202e", "\u2066", "\x1b", "\u200b", "\ufeff", "\x07", "\x7f"}
    assert body.count("<script") == 0
    assert visible("\u202egnp.exe") in body


def test_attempts_are_compared_by_tokens() -> None:
    first, second = kept_attempt([1, 2, 3, 4, 5], [0, 0, 1, 1, 1]), kept_attempt([1, 2, 9, 4, 8, 5], [0, 0, 1, 1, 1, 1], member=1)
    answer = SamplesAnswer(task="a", steps=[1], samples=step_samples("a", 1, [first, second]))
    page = samples_page(answer, None, 0, 1, "logprob")
    assert [(part.kind, part.text) for part in page.parts] == [
        ("both", "1 2 "), ("first", "3 "), ("second", "9 "), ("both", "4 "), ("second", "8 "), ("both", "5 "),
    ]  # fmt: skip
    assert samples_page(answer, None, 99, 99, "logprob").parts == []
    assert samples_page(SamplesAnswer(task="a", steps=[], samples=None), None, 0, None, "logprob").chosen is None


@pytest.mark.parametrize("size", [0, 1, MAX_ALIGNED, 20_000])
def test_comparison_is_quick_and_has_all_tokens(size: int) -> None:
    first, second = kept_attempt([0, *[1, 2] * size], [0, *[1, 1] * size]), kept_attempt([0, *[2, 1, 1] * size], [0, *[1, 1, 1] * size])
    answer = SamplesAnswer(task="a", steps=[1], samples=step_samples("a", 1, [first, second.model_copy(update={"member": 1})]))
    parts = samples_page(answer, None, 0, 1, "logprob").parts
    kept = ["".join(part.text for part in parts if part.kind != skipped).split() for skipped in ("second", "first")]
    assert [len(one) for one in kept] == [1 + 2 * size, 1 + 3 * size]
    assert differences([], []) == []


@asynccontextmanager
async def kept(site: Site) -> AsyncGenerator[str]:
    """Path of a page with a conversation, and another attempt to compare it with."""
    async with texts_replica(site.world.bus) as chat:
        ids, sampled = await conversation(chat)
        place = sampled.index(1)
        logprobs = [-0.05, -0.3, -0.7, -1.5, -3.0, -6.0]
        attempts = [kept_attempt(ids, sampled, turns=2), kept_attempt([*ids[:-2], ids[-2], ids[-2]], sampled, member=1, advantage=-1.75)]
        attempts = [_with_numbers(one, logprobs, place) for one in attempts]
        await keep(site.world.bus, step_samples("letters-1", 6, attempts))
        await eventually(lambda: _has_texts(site), 60)
        yield "/tasks/letters-1/samples?attempt=0&with=1"


def _with_numbers(one: KeptAttempt, logprobs: list[float], place: int) -> KeptAttempt:
    """The first sampled tokens have these log-probabilities, and differences of every level."""
    sampler_T, trainer_T = one.tokens.logprobs_T().copy(), np.frombuffer(one.trainer_logprobs, "<f4").copy()
    sampler_T[place : place + len(logprobs)] = logprobs
    trainer_T[place : place + len(logprobs)] = [a - b for a, b in zip(logprobs, [0, 0.05, 0.5, 2, -0.5, -2], strict=True)]
    tokens = one.tokens.model_copy(update={"logprobs": sampler_T.tobytes()})
    return one.model_copy(update={"tokens": tokens, "trainer_logprobs": trainer_T.tobytes()})


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_page_is_clean_in_all_colours(played: Site, scheme: str) -> None:
    found: dict[str, list[str]] = {}
    async with kept(played) as path, chromium() as browser:
        for width in (1280, 360):
            options = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}}
            async with looking(browser, played, "mk-reader", **options) as (page, seen):
                for by in ("logprob", "difference", "advantage"):
                    await page.goto(f"{played.root}{path}&by={by}")
                    await unfold(page)
                    found[f"{by} at {width}"] = [*await faults(page), *await complaints(page, seen, played)]
    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.slow
async def test_tokens_are_read_by_keyboard_and_pointer_and_colours_switched_in_place(played: Site) -> None:
    async with kept(played) as path, chromium() as browser, looking(browser, played, "mk-reader") as (page, seen):
        await page.goto(played.root + path)
        await tab_to(page, "document.activeElement.id === 'tokens'")
        await page.keyboard.press("ArrowRight")
        first = await page.locator("#token").text_content()
        await page.keyboard.press("ArrowRight")
        second = await page.locator("#token").text_content()
        await page.keyboard.press("End")
        last = await page.locator("#tokens .current").count()
        await page.locator("#tokens .s").first.hover()
        hovered = await page.locator("#token").text_content()
        before = await _ground(page)
        await page.evaluate("window.stayed = true")
        await page.get_by_role("link", name="advantage", exact=True).press("Enter")
        after, stayed = await _ground(page), await page.evaluate("window.stayed")
        shown = await page.locator(".heat:visible").count()
        address = page.url

    assert "sampler -0.0500, trainer -0.0500" in (first or "") and "sampler -0.3000, trainer -0.3500" in (second or "")
    assert (last, hovered) == (1, first)
    assert before != after and stayed is True
    assert shown == 1 and "by=advantage" in address
    assert seen.console == []


async def _ground(page: Page) -> str:
    return await page.locator("#tokens .s").first.evaluate("token => getComputedStyle(token).backgroundColor")


@pytest.mark.slow
async def test_colours_and_numbers_are_there_without_scripts(played: Site) -> None:
    async with (
        kept(played) as path,
        chromium() as browser,
        looking(browser, played, "mk-reader", java_script_enabled=False) as (page, _),
    ):
        await page.goto(played.root + path)
        await page.get_by_role("link", name="advantage", exact=True).click()
        title = await page.locator("#tokens .s").first.get_attribute("title")
        await page.get_by_role("link", name="group 3, member 1").click()
        await page.locator("h2", has_text="Group 3, member 1").wait_for()
        rows = await page.locator("#numbers tbody tr").count()
    assert title is not None and "advantage 0.7500" in title
    assert rows > 2
