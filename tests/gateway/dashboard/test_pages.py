"""Pages as a browser without scripts gets them, from a real scheduler."""

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import unescape
from typing import Any

import pytest

from common.bus import Bus
from common.client_api.asking import Door
from common.client_api.tenancy.tenants import Billing
from common.client_api.training.progress import read_steps, read_versions
from common.messages import AskTask, StatusAnswer
from gateway_svc.access import Caller
from gateway_svc.http.application import all_families, described
from tests.gateway.dashboard.reading import cells, texts_of
from tests.gateway.dashboard.site import Site, csrf_of, session
from tests.support.gateway.serving import client, gateway
from tests.support.scheduler.stages import spec


async def test_pages_show_what_the_scheduler_answers(played: Site) -> None:
    door = Door(played.world.bus, played.keys.url, "acme")
    steps, versions = await read_steps(door, "letters-1"), (await read_versions(door, "letters-1")).versions
    status = (await door.ask("status", AskTask(task="letters-1"), StatusAnswer)).status
    ledger = await Billing(door).invoice()
    async with session(played, "mk-owner") as browser:
        task, tasks = (await browser.get("/tasks/letters-1")).text, (await browser.get("/tasks")).text
        timeline, usage = (await browser.get("/timeline")).text, (await browser.get("/usage")).text
        table = (await browser.get("/usage.csv")).text
    data = drawn(timeline)

    assert [tuple(map(float, row)) for row in cells(task, "table-reward")] == [
        (step.version, float(f"{step.reward:.5g}")) for step in steps
    ]
    assert [float(row[1]) for row in cells(task, "table-entropy")] == [step.metrics["entropy"] for step in steps]
    shown = [int(row[0].split()[0]) for row in cells(task, "versions")]
    kept = [one.version for one in (await read_versions(door, "letters-1")).versions[::-1]]  # earlier ones may be deleted meanwhile
    assert shown == [one.version for one in versions[::-1]][: len(shown)]
    assert shown[: len(kept)] == kept
    assert f"{status.version} of {status.steps}" in texts_of(task)
    assert f"{status.reward:.3f} " in texts_of(tasks)
    assert {re.sub(" .*", "", row[0]) for row in cells(timeline, "stages")} == {"letters-1", "letters-2"}
    totals = next(row for row in cells(timeline, "stages") if row[0] == "letters-1")
    assert float(totals[2]) == pytest.approx(sum(step.durations.sampling_s for step in steps), abs=0.005 + 0.001 * len(steps))
    assert len(data["tasks"]) == 2
    assert data["begun_s"] <= steps[0].times.first_admitted_s
    assert [row[4].replace(",", "") for row in cells(usage, "days")] == [str(line.quantity) for line in ledger]
    assert len(table.splitlines()) == len(ledger) + 1


def drawn(page: str) -> Any:
    """What the timeline's script draws."""
    return json.loads(unescape(page.partition('data-drawn="')[2].partition('"')[0]))


async def test_view_of_the_timeline_asks_for_steps_once_and_has_them_whole(
    world: Any, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway_svc.web.text.MAX_CHARS", 50)  # of a text; the data of a timeline are longer with some hundred steps
    await world.run("a")
    async with world.bus.requests.listening("ask.*.timeline") as asked, gateway(world.bus, nats_url) as address, client(address) as browser:
        page = (await browser.get("/ui/timeline")).text
        for used in re.findall(r'data-address="([^"]+)"', page):  # what its script would fetch
            await browser.get(unescape(used))
        assert [one["task"] for one in drawn(page)["tasks"]] == ["a"]
        questions = [await asked.next(5), await asked.next(0.5)]
    assert [one is not None for one in questions] == [True, False]


async def test_tasks_are_filtered_sorted_and_compared(played: Site) -> None:
    async with session(played, "mk-reader") as browser:
        running = texts_of((await browser.get("/tasks", params={"state": "running"})).text)
        found = texts_of((await browser.get("/tasks", params={"text": "LETTERS", "sort": "-reward"})).text)
        none = texts_of((await browser.get("/tasks", params={"pool": "other"})).text)
        wrong = [await browser.get("/tasks", params=one) for one in ({"state": "odd"}, {"sort": "odd"}, {"cursor": "///"})]
        compared = (await browser.get("/compare", params={"task": "letters-1 letters-2"})).text
        too_many = await browser.get("/compare", params={"task": ",".join(f"t-{one}" for one in range(9))})

    assert "slow-1" in running and "letters-1" not in running
    assert "letters-1" in found and "slow-1" not in found
    assert "No task is like that" in none
    assert [one.status_code for one in wrong] == [400, 400, 400]
    assert cells(compared, "differences") == [["optimizer.learning_rate", "0.001", "0.01"]]
    assert too_many.status_code == 400


async def test_roles_see_and_do_what_they_may(played: Site) -> None:
    seen = {}
    for key in ("mk-reader", "mk-member", "mk-owner", "mk-admin"):
        async with session(played, key) as browser:
            page = (await browser.get("/tasks/slow-1")).text
            posted = await browser.post("/tasks/slow-1/pause", data={"csrf": csrf_of(page)})
            if posted.status_code == 303:
                await played.world.status_becomes("slow-1", lambda status: status.state == "paused")
            await browser.post("/tasks/slow-1/resume", data={"csrf": csrf_of(page)})
            await played.world.status_becomes("slow-1", lambda status: status.state == "running")
            statuses = [(await browser.get(path)).status_code for path in ("/usage", "/usage.csv", "/new", "/tasks/foreign-1")]
            seen[key] = (page.count("Pause slow-1"), "/usage" in page, "/new" in page, posted.status_code, statuses)

    assert seen["mk-reader"] == (0, False, False, 403, [403, 403, 403, 404])
    assert seen["mk-member"] == (1, False, True, 303, [403, 403, 200, 404])
    assert seen["mk-owner"] == (1, True, True, 303, [200, 200, 200, 404])
    assert seen["mk-admin"] == (1, True, True, 303, [200, 200, 200, 200])


async def test_admin_sees_one_tenant_or_all(played: Site) -> None:
    found: dict[str, dict[str, tuple[bool, bool]]] = {}
    async with session(played, "mk-admin") as browser:
        for query in ("", "?tenant=", "?tenant=acme", "?tenant=globex", "?tenant=none"):
            pages = {path: (await browser.get(path + query)).text for path in ("/tasks", "/timeline", "/usage")}
            found[query] = {path: ("letters-1" in page, "foreign-1" in page) for path, page in pages.items()}
        lines = [(await browser.get(f"/usage.csv{query}")).text.count("\n") for query in ("", "?tenant=acme", "?tenant=globex")]
        page = (await browser.get("/tasks?tenant=acme&sort=id")).text
        named = [(await browser.get(f"/stages{query}")).status_code for query in ("?tenant=acme", "?tenant=../x")]
        async with browser.stream("GET", "/live?tenant=acme") as stream:
            assert await _news(stream.aiter_lines())
    async with session(played, "mk-owner") as browser:
        own, other = await browser.get("/tasks?tenant=acme"), [await browser.get(f"{path}?tenant=globex") for path in FILTERED]

    assert found[""] == found["?tenant="] == dict.fromkeys(found[""], (True, True))
    assert found["?tenant=acme"] == dict.fromkeys(found[""], (True, False))
    assert found["?tenant=globex"] == dict.fromkeys(found[""], (False, True))
    assert found["?tenant=none"] == dict.fromkeys(found[""], (False, False))
    assert lines[0] == lines[1] + lines[2] - 1 and min(lines) > 1
    assert 'href="/ui/timeline?tenant=acme"' in page and "&amp;tenant=acme" in page and 'connect="/ui/live?tenant=acme"' in page
    assert named == [200, 400]
    assert (own.status_code, [one.status_code for one in other]) == (200, [403] * len(FILTERED))


FILTERED = ("/tasks", "/timeline", "/stages", "/live", "/playground")


async def test_foreign_and_absent_are_one_page(played: Site) -> None:
    async with session(played, "mk-foreign") as browser:
        for path in ("/tasks/{}", "/new?from={}", "/compare?task={}", "/tasks/{}/versions/1/adapter.tar"):
            foreign, absent = [await browser.get(path.format(task)) for task in ("letters-1", "letters-9")]
            assert (foreign.status_code, foreign.content) == (404, absent.content), path
        page = (await browser.get("/tasks")).text
        for verb in ("pause", "resume", "cancel"):
            posted = [await browser.post(f"/tasks/{task}/{verb}", data={"csrf": csrf_of(page)}) for task in ("slow-1", "none-1")]
            assert [one.status_code for one in posted] == [404, 404]

    assert "letters-1" not in page and "foreign-1" in page


async def test_task_is_paused_resumed_and_cancelled(played: Site) -> None:
    async with session(played, "mk-member") as browser:
        for verb, state in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
            page = (await browser.get("/tasks/slow-1")).text
            assert f"{verb.capitalize()} slow-1" in page
            answer = await browser.post(f"/tasks/slow-1/{verb}", data={"csrf": csrf_of(page)}, follow_redirects=True)
            assert f"The scheduler is asked to {verb} the task." in answer.text
            await played.world.status_becomes("slow-1", lambda status, state=state: status.state == state)
        ended = await browser.post("/tasks/slow-1/pause", data={"csrf": csrf_of(page)})

    assert ended.status_code == 409
    assert "cancelled already" in texts_of(ended.text)


async def test_new_task_is_checked_corrected_and_submitted(site: Site) -> None:
    fields = {"name": "sums", "pool": "tiny", "steps": "0", "environment.name": "toy", "algorithm.group_size": "two"}
    async with session(site, "mk-member") as browser:
        token = {"csrf": csrf_of((await browser.get("/new")).text)}
        wrong = await browser.post("/new", data=fields | token | {"action": "check"})
        fields |= {"steps": "1", "algorithm.group_size": "2", "algorithm.groups_per_step": "2"}
        checked = await browser.post("/new", data=fields | token | {"action": "check"})
        nothing = texts_of((await browser.get("/tasks")).text)
        submitted = await browser.post("/new", data=fields | token | {"action": "submit"}, follow_redirects=True)
        task = submitted.url.path.rpartition("/")[2]
        again = (await browser.get("/new", params={"from": task})).text

    assert wrong.status_code == 400
    for field in ("steps", "algorithm.group_size"):
        assert f'id="e-{field}"' in wrong.text and f'aria-describedby="e-{field}' in wrong.text
    assert 'value="two"' in wrong.text
    assert (checked.status_code, "It would be accepted" in checked.text) == (200, True)
    assert "No task is like that" in nothing
    assert "The task is accepted." in submitted.text
    assert 'name="steps" value="1"' in again
    await site.world.event(task, "finished")


async def test_missing_field_is_marked_where_it_is(site: Site) -> None:
    async with session(site, "mk-member") as browser:
        token = {"csrf": csrf_of((await browser.get("/new")).text)}
        page = (await browser.post("/new", data=token | {"seed": "x", "action": "check"})).text

    for field in ("name", "steps", "environment.name"):
        assert f'<p class="error" id="e-{field}">required, but not given</p>' in page
        [given] = re.findall(rf'<input id="f-{field}"[^>]*>', page)
        assert 'aria-invalid="true"' in given and f'aria-describedby="e-{field}' in given
        assert ("autofocus" in given) == (field == "name")
    assert re.search(r'<select id="f-pool"[^>]* aria-invalid="true"', page)
    assert '<p class="error" id="e-seed">must be a whole number, not' in page
    assert 'role="alert"' not in page, "everything is said at its field"


async def test_long_ids_are_shortened_where_many_stand(site: Site) -> None:
    task = "once-3fc9b689459d738f8c88a3a48aa9e335"
    await site.world.run(task, spec(name="letters", steps=1))
    async with session(site, "mk-owner") as browser:
        pages = {path: (await browser.get(path)).text for path in ("/tasks", "/timeline", "/usage")}
        whole = (await browser.get(f"/tasks/{task}")).text

    for path, page in pages.items():
        assert f'title="{task}"><span aria-hidden="true">once-3fc9b6…a48aa9e335</span><span class="hidden">{task}</span></a>' in page, path
    assert f"<h1>{task}</h1>" in whole


async def test_task_file_as_text(site: Site) -> None:
    toml = 'name = "sums"\npool = "tiny"\nsteps = 1\n[environment]\nname = "toy"\n[algorithm]\ngroup_size = 2\ngroups_per_step = 2\n'
    async with session(site, "mk-owner") as browser:
        token = {"csrf": csrf_of((await browser.get("/new?form=toml")).text)}
        answers = [await browser.post("/new/toml", data=token | {"text": text}) for text in ("= nothing", "stepps = 1\n" + toml, toml)]
        foreign = await browser.post("/new/toml", data=token | {"text": 'tenant = "globex"\n' + toml, "action": "submit"})
        submitted = await browser.post("/new/toml", data=token | {"text": toml, "action": "submit"})

    assert [one.status_code for one in answers] == [400, 400, 200]
    assert "not TOML" in answers[0].text
    assert "did you mean" in answers[1].text and "stepps = 1" in answers[1].text
    assert foreign.status_code == 403
    assert submitted.status_code == 303


async def test_used_up_budget_is_said_at_the_form(site: Site) -> None:
    await site.world.run("first", spec(steps=1))
    async with site.world.database.transaction() as tx:
        await tx.connection.exec_driver_sql("INSERT INTO limits (tenant, max_tokens) VALUES ('acme', 5)")
    fields = {"name": "sums", "pool": "tiny", "steps": "1", "environment.name": "toy"}
    text = {"text": 'name = "sums"\npool = "tiny"\nsteps = 1\n[environment]\nname = "toy"\n'}
    async with session(site, "mk-member") as browser:
        token = {"csrf": csrf_of((await browser.get("/new")).text)}
        checked = await browser.post("/new", data=fields | token | {"action": "check"})
        refused = [
            await browser.post(path, data=of_it | token | {"action": "submit"}) for path, of_it in (("/new", fields), ("/new/toml", text))
        ]
    assert checked.status_code == 200
    for page in refused:
        assert page.status_code == 402
        assert "the budget of 5 tokens in all is used up" in texts_of(page.text) and "sums" in page.text


async def test_admin_names_the_tenant_of_a_new_task(site: Site) -> None:
    fields = {"name": "sums", "pool": "tiny", "steps": "1", "environment.name": "toy", "action": "submit"}
    async with session(site, "mk-admin") as browser:
        token = {"csrf": csrf_of((await browser.get("/new")).text)}
        without = await browser.post("/new", data=fields | token)
        named = await browser.post("/new", data=fields | token | {"tenant": "globex"})

    assert 'id="e-tenant"' in without.text
    assert named.status_code == 303
    assert named.headers["location"].endswith("?done=submitted")


async def test_adapter_is_downloaded_with_the_session(played: Site) -> None:
    door = Door(played.world.bus, played.keys.url, "acme")
    version = (await read_versions(door, "letters-1")).versions[-1]
    async with session(played, "mk-reader") as browser:
        answer = await browser.get(f"/tasks/letters-1/versions/{version.version}/adapter.tar")
        absent = await browser.get("/tasks/letters-1/versions/99/adapter.tar")

    assert answer.status_code == 200
    assert len(answer.content) == version.adapter_bytes
    assert answer.headers["etag"] == f'"{version.sha256}"'
    assert "attachment" in answer.headers["content-disposition"]
    assert absent.status_code == 404


@dataclass(frozen=True)
class Impatient:
    """Access to a scheduler that is waited for hardly at all."""

    door: Door

    @asynccontextmanager
    async def entered(self, bearer: str | None) -> AsyncGenerator[Caller]:
        yield Caller(self.door, None, "admin", "")


async def test_scheduler_away_is_a_page(bus: Bus, nats_url: str) -> None:
    impatient = Impatient(Door(bus, nats_url, patience_s=0.1))
    async with gateway(bus, nats_url, access=impatient, until_ready=False) as address, client(f"{address}/ui") as browser:
        answer = await browser.get("/stages")

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert "does not answer" in texts_of(answer.text)


async def test_server_without_keys_has_no_login(world: Any, nats_url: str) -> None:
    async with gateway(world.bus, nats_url) as address, client(f"{address}/ui") as browser:
        login, page, home = await browser.get("/login"), await browser.get("/tasks"), await browser.get(address)
        refused = await browser.post("/theme", data={"theme": "dark"})
        chosen = await browser.post("/theme", data={"theme": "dark", "back": "//evil.example", "csrf": csrf_of(page.text)})
        dark = await browser.get("/tasks")

    assert (login.status_code, login.headers["location"], home.headers["location"]) == (303, "/ui/tasks", "/ui/tasks")
    assert (page.status_code, refused.status_code) == (200, 403)
    assert "Log out" not in page.text and "all tenants" in page.text
    assert chosen.headers["location"] == "/ui/tasks"
    assert 'data-theme="dark"' in dark.text


async def test_prefix_of_a_proxy_is_in_every_address(world: Any, nats_url: str) -> None:
    async with gateway(world.bus, nats_url, trusted_proxies=("127.0.0.1",)) as address, client(address) as browser:
        page = await browser.get("/ui/tasks", headers={"X-Forwarded-Prefix": "/marlaas"})

    addresses = re.findall(r'(?:href|src|action|hx-get|hx-sse:connect)="([^"#]+)"', page.text)
    assert addresses and all(one.startswith("/marlaas/ui") for one in addresses), addresses


async def test_live_page_is_told_of_every_change(site: Site) -> None:
    async with session(site, "mk-reader") as browser, browser.stream("GET", "/live") as stream:
        lines = stream.aiter_lines()
        assert await _news(lines)
        await site.world.run("a-1", spec(steps=2))
        assert await _news(lines)


async def _news(lines: AsyncIterator[str]) -> bool:
    """Waits for an event."""
    async for line in lines:
        if line == "event: news":
            return True
    return False


def test_pages_are_not_in_the_description_of_the_interface() -> None:
    assert not [path for path in described(all_families()).openapi()["paths"] if path.startswith("/ui") or path == "/"]
