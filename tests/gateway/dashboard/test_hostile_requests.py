"""Pages between hostile texts, keys, forms and requests."""

import re

from common import streams
from common.bus import Outgoing
from common.client_api.asking import Door
from common.messages import AskTask, DeadLetter, StatusAnswer
from tests.gateway.dashboard.hostile import TEXTS
from tests.gateway.dashboard.reading import cells
from tests.gateway.dashboard.site import PAGES, Site, csrf_of, session
from tests.support.gateway.serving import client
from tests.support.scheduler.stages import spec

CSP = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"


async def test_hostile_texts_are_text_everywhere(site: Site) -> None:
    """In reasons, options and dead letters; names and ids are checked before they are stored."""
    world = site.world
    options = {"texts": [text.replace("\x00", "") for text in TEXTS]}
    await world.run("slow-1", spec(name="slow", environment={"name": "toy", "options": options}), until="accepted")
    for number, text in enumerate(TEXTS):
        letter = DeadLetter(stage="sample", subject="prompts.sample.tiny.slow-1", reason=text, attempts=1, headers={}, body=b"", sequence=1)
        await world.bus.publish(Outgoing(streams.failed("sample", "slow-1"), letter, f"letter-{number}"))
    await world.status_becomes("slow-1", lambda status: status.dead_letters == len(TEXTS))
    await world.control("cancel", "slow-1", reason=" ".join(TEXTS[:10]), until="cancelled")
    async with session(site, "mk-owner") as browser:
        pages = {path: (await browser.get(path)).text for path in ("/tasks/slow-1", "/new?from=slow-1", "/tasks", "/compare?task=slow-1")}
        posted = {"csrf": csrf_of(pages["/tasks"]), "name": TEXTS[4], "text": "\n".join(TEXTS)}
        pages["form"] = (await browser.post("/new", data={name: value for name, value in posted.items() if name != "text"})).text
        pages["file"] = (await browser.post("/new/toml", data=posted)).text

    failures = cells(pages["/tasks/slow-1"], "failures")
    assert len(failures) == len(TEXTS)
    for path, page in pages.items():
        scripts = re.findall(r"<script\b[^>]*>", page)
        assert all('src="/ui/static/' in script for script in scripts), path
        assert not re.search(r"<(img|iframe|style|base|object|svg/|math|template|plaintext|xmp)\b", page), path
        assert not set(page) & set("\u202e\u2066\u200b\x1b\x9b\x07\u2028\ufeff"), path


async def test_session_ends_with_its_key_and_by_logging_out(site: Site) -> None:
    async with session(site, "mk-reader") as browser:
        cookie = browser.cookies["marlaas_session"]
        inside = await browser.get("/tasks")
        out = await browser.post("/logout", data={"csrf": csrf_of(inside.text)})
        after = await browser.get("/tasks")
        async with browser.stream("GET", "/live", headers={"Cookie": f"marlaas_session={cookie}"}) as stream:
            assert stream.status_code == 200
            lines = stream.aiter_lines()
            assert await anext(lines) == "event: news"
            site.keys.revoke("mk-reader")
            rest = "\n".join([line async for line in lines])
        revoked = await browser.get("/tasks", headers={"Cookie": f"marlaas_session={cookie}"})

    assert (inside.status_code, out.status_code, after.status_code) == (200, 303, 303)
    assert after.headers["location"] == "/ui/login"
    assert "event: error" in rest
    assert (revoked.status_code, revoked.headers["location"]) == (303, "/ui/login")


async def test_cookie_is_for_this_site_alone_and_no_key_is_shown(site: Site) -> None:
    async with client(site.root) as browser:
        page = await browser.get("/login")
        token = {"csrf": csrf_of(page.text)}
        wrong = [await browser.post("/login", data=token | {"key": key}) for key in ("mk-nobody", "", "x" * 10_000, "é")]
        right = await browser.post("/login", data=token | {"key": "mk-owner"})

    assert [one.status_code for one in wrong] == [401] * 4
    assert len({re.sub(r"[0-9a-f]{64}", "", one.text) for one in wrong}) == 1
    said = right.headers["set-cookie"]
    assert all(part in said for part in ("HttpOnly", "SameSite=strict", "Max-Age=43200", "Path=/ui"))
    assert "mk-owner" not in said and "mk-owner" not in right.headers["location"]


CHANGING = (
    *("/tasks/slow-1/cancel", "/tasks/letters-1/delete", "/new", "/new/toml", "/logout", "/theme", "/tasks/slow-1/failures/1/resend"),
    *("/webhooks", "/webhooks/pager/delete", f"/files/file-{'0' * 64}/delete"),
)


async def test_forms_without_the_token_of_their_session_change_nothing(played: Site) -> None:
    async with session(played, "mk-owner") as browser, session(played, "mk-member") as other:
        foreign = csrf_of((await other.get("/tasks")).text)
        own = csrf_of((await browser.get("/tasks")).text)
        statuses, forged = {}, ({"other": ""}, {"csrf": foreign}, {"csrf": own + "0"})
        for path in CHANGING:
            statuses[path] = [(await browser.post(path, data=data)).status_code for data in forged]
        as_json = await browser.post("/tasks/slow-1/cancel", json={"csrf": own})
        by_get = await browser.get("/tasks/slow-1/cancel")

    assert statuses == {path: [403] * 3 for path in statuses}
    assert (as_json.status_code, by_get.status_code) == (415, 405)
    status = (await Door(played.world.bus, played.keys.url, "acme").ask("status", AskTask(task="slow-1"), StatusAnswer)).status
    assert status.state == "running"


async def test_every_page_has_its_headers_and_wants_a_session(played: Site) -> None:
    async with session(played, "mk-owner") as browser, client(played.root) as nobody:
        for path in PAGES:
            inside, outside = await browser.get(path), await nobody.get(path)
            assert (inside.status_code, inside.headers["content-security-policy"]) == (200, CSP), path
            assert inside.headers["cache-control"] == "no-store"
            assert inside.headers["x-content-type-options"] == "nosniff"
            assert (outside.status_code, outside.headers["location"]) == (303, "/ui/login"), path
        missing = await browser.get("/nothing")
    assert (missing.status_code, missing.headers["content-security-policy"]) == (404, CSP)
    assert missing.headers["content-type"].startswith("text/html")


async def test_garbage_is_refused(site: Site) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    async with session(site, "mk-owner") as browser:
        token = csrf_of((await browser.get("/new")).text)
        bodies: list[tuple[bytes, int]] = [
            (b"csrf=%ff", 400),
            (b"csrf=%00" + token.encode(), 400),
            (b"\xff", 400),
            (b"&".join(b"a%d=1" % number for number in range(400)), 400),
            (b"csrf=" + b"x" * 2_000_000, 413),
            (b"", 403),
        ]
        answers = [(await browser.post("/new", content=body, headers=form)).status_code for body, _ in bodies]
        odd = ["/tasks/UPPER", "/tasks/a/versions/x/adapter.tar", f"/tasks/{'a' * 64}", "/tasks/a?over=odd", "/static/0/dashboard.css"]
        paths = [(await browser.get(path)).status_code for path in odd]

    assert answers == [status for _, status in bodies]
    assert paths == [400, 400, 400, 400, 404]
