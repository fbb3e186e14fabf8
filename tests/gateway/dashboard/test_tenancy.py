"""Files, webhooks, keys and deletions: who sees and does what."""

import json
from typing import Any

import httpx
import pytest

from common.client_api.asking import Door, result_of
from common.client_api.tenancy.files import Files
from common.client_api.tenancy.webhooks import Webhooks
from common.messages import NewKey, SetAccess
from gateway_svc.web.text import one_line
from tests.gateway.dashboard.hostile import TEXTS
from tests.gateway.dashboard.reading import cells, texts_of
from tests.gateway.dashboard.site import Site, csrf_of, session
from tests.support.scheduler.stages import spec

ROWS = b"".join(json.dumps({"messages": [{"role": "user", "content": f"{number}?"}]}).encode() + b"\n" for number in range(3))
HOOK = {"name": "pager", "url": "https://hooks.example.com/x", "event.finished": "on"}


async def token(browser: httpx.AsyncClient) -> dict[str, str]:
    return {"csrf": csrf_of((await browser.get("/tasks")).text)}


async def upload(browser: httpx.AsyncClient, rows: bytes = ROWS, name: str = "rows.jsonl", **fields: str) -> httpx.Response:
    return await browser.post("/upload", data=fields or await token(browser), files={"file": (name, rows)})


async def stored(site: Site, tenant: str = "acme") -> list[str]:
    return [one.file for one in await Files(Door(site.world.bus, site.keys.url, tenant)).all()]


async def test_file_is_uploaded_fetched_and_deleted(site: Site) -> None:
    async with session(site, "mk-member") as browser:
        done = await upload(browser)
        page = (await browser.get(done.headers["location"].removeprefix("/ui"))).text
        [file] = await stored(site)
        content = await browser.get(f"/files/{file}/content?tenant=acme")
        wrong = await upload(browser, b'{"messages": 1}\n')
        deleted = await browser.post(f"/files/{file}/delete?tenant=acme", data=await token(browser))

    assert done.status_code == 303 and "its rows can be used" in page
    assert cells(page, "files")[0][:3] == ["rows.jsonl", "usable", "3"]
    assert (content.content, content.headers["content-disposition"]) == (ROWS, f'attachment; filename="{file}.jsonl"')
    assert wrong.status_code == 400 and "line 1" in texts_of(wrong.text) and "Upload" in wrong.text
    assert (deleted.status_code, await stored(site)) == (303, [])


async def test_files_are_the_tenants_alone(site: Site) -> None:
    async with session(site, "mk-owner") as owner:
        await upload(owner)
        [file] = await stored(site)
        forged = [await upload(owner, b"x", **fields) for fields in ({"csrf": "0" * 64}, {"other": ""})]
    async with session(site, "mk-reader") as reader:
        page = (await reader.get("/files")).text
        refused = [await upload(reader), await reader.post(f"/files/{file}/delete", data=await token(reader))]
    async with session(site, "mk-foreign") as foreign:
        seen = (await foreign.get("/files")).text
        absent = [await foreign.get(f"/files/{one}/content") for one in (file, f"file-{'0' * 64}")]
        gone = await foreign.post(f"/files/{file}/delete", data=await token(foreign))
        named = [
            await foreign.get("/files?tenant=acme"),
            await foreign.post(f"/files/{file}/delete?tenant=acme", data=await token(foreign)),
        ]

    assert file in page and ">Upload<" not in page and "Delete" not in page
    assert [one.status_code for one in (*forged, *refused)] == [403] * 4
    assert file not in seen and [one.status_code for one in absent] == [404, 404] and absent[0].content == absent[1].content
    assert gone.status_code == 404 and [one.status_code for one in named] == [403, 403]
    assert await stored(site) == [file]


async def test_hostile_names_of_files_are_text(site: Site) -> None:
    name = " ".join(TEXTS[:6]).replace('"', "'")[:200]
    async with session(site, "mk-admin") as browser:
        without = await upload(browser)
        done = await browser.post("/upload?tenant=acme", data=await token(browser), files={"file": (name, ROWS)})
        page = (await browser.get("/files")).text

    assert without.status_code == 400 and done.status_code == 303
    assert one_line(cells(page, "files")[0][0]) and "<script>window" not in page and "<img" not in page


async def test_webhook_is_set_changed_and_deleted_and_its_secret_is_shown_once(site: Site) -> None:
    await site.world.run("letters-1", spec(steps=1))
    async with session(site, "mk-owner") as browser:
        made = await browser.post("/webhooks", data=HOOK | await token(browser))
        again = (await browser.get("/webhooks")).text
        changed = await browser.post("/webhooks", data=HOOK | {"event.budget": "on"} | await token(browser))
        wrong = [await browser.post("/webhooks", data=HOOK | one | await token(browser)) for one in ({"url": "ftp://x"}, {"name": "A b"})]
        none = await browser.post("/webhooks", data={"name": "b", "url": HOOK["url"]} | await token(browser))
        deleted = await browser.post("/webhooks/pager/delete?tenant=acme", data=await token(browser))
        after = (await browser.get("/webhooks")).text

    assert made.status_code == 200 and "whsec_" in made.text and "whsec_" not in again and "whsec_" not in changed.text
    assert cells(changed.text, "webhooks")[0][:3] == ["pager", "https://hooks.example.com/x", "finished, budget"]
    assert [one.status_code for one in (*wrong, none)] == [400] * 3 and 'role="alert"' in wrong[0].text and 'value="A b"' in wrong[1].text
    assert deleted.status_code == 303 and "No webhook is set." in after


async def test_webhooks_are_for_owners_of_the_tenant(site: Site) -> None:
    await site.world.run("letters-1", spec(steps=1))
    webhooks = Webhooks(Door(site.world.bus, site.keys.url, "acme"))
    await webhooks.set("pager", 'https://x.example/"><script>window.broken=1</script>', tenant="acme")
    for key in ("mk-reader", "mk-member"):
        async with session(site, key) as browser:
            assert "/webhooks" not in (await browser.get("/tasks")).text
            sent = await token(browser)
            answers = [await browser.get("/webhooks"), await browser.post("/webhooks", data=HOOK | sent)]
            answers.append(await browser.post("/webhooks/pager/delete", data=sent))
            assert [one.status_code for one in answers] == [403] * 3
    async with session(site, "mk-foreign") as browser:
        seen = (await browser.get("/webhooks")).text
        gone = await browser.post("/webhooks/pager/delete", data=await token(browser))
    async with session(site, "mk-admin") as browser:
        page = (await browser.get("/webhooks")).text

    assert "pager" not in texts_of(seen) and gone.status_code == 404
    assert [one.name for one in await webhooks.all()] == ["pager"]
    assert cells(page, "webhooks")[0][0] == "pager" and "<script>window" not in page and "Choose a tenant" in page


async def test_keys_of_a_tenant_are_listed_for_its_owners(site: Site) -> None:
    door = Door(site.world.bus, site.keys.url)
    for number, tenant in enumerate(("acme", "globex")):
        access: dict[str, Any] = {
            "account": "A" + "BC"[number] * 55,
            "add": NewKey(key="U" + "BC"[number] * 55, name=f"ci-{tenant}", role="member"),
        }
        job = SetAccess(tenant=tenant, request=f"r{number}", **access)
        await result_of(door, "set-access", tenant, job, job.request, 60)
    found = {}
    for key in ("mk-reader", "mk-member", "mk-owner", "mk-foreign", "mk-admin"):
        async with session(site, key) as browser:
            page = await browser.get("/keys")
            found[key] = (page.status_code, "ci-acme" in page.text, "ci-globex" in page.text)
            if key == "mk-owner":
                assert cells(page.text, "keys-acme")[0][:4] == ["ci-acme", "member", "yes", "NATS"]

    assert found == {
        "mk-reader": (403, False, False),
        "mk-member": (403, False, False),
        "mk-owner": (200, True, False),
        "mk-foreign": (200, False, True),
        "mk-admin": (200, True, True),
    }


async def test_ended_task_is_deleted_by_its_owner_alone(played: Site) -> None:
    statuses = {}
    for key in ("mk-reader", "mk-member", "mk-foreign"):
        async with session(played, key) as browser:
            assert "Delete letters-1" not in (await browser.get("/tasks/letters-1")).text
            statuses[key] = (await browser.post("/tasks/letters-1/delete", data=await token(browser))).status_code
    async with session(played, "mk-owner") as browser:
        running = (await browser.get("/tasks/slow-1")).text, await browser.post("/tasks/slow-1/delete", data=await token(browser))
        page = (await browser.get("/tasks/letters-1")).text
        deleted = await browser.post("/tasks/letters-1/delete", data=await token(browser), follow_redirects=True)
        gone = await browser.get("/tasks/letters-1")

    assert statuses == {"mk-reader": 403, "mk-member": 403, "mk-foreign": 404}
    assert "Delete slow-1" not in running[0] and running[1].status_code == 409
    assert "Delete letters-1" in page
    assert "The task is deleted." in deleted.text and "letters-1" not in deleted.text
    assert gone.status_code == 404


@pytest.mark.parametrize("form", ["", "from"])
async def test_environments_that_are_offered_can_be_chosen(site: Site, form: str) -> None:
    await site.world.run("letters-1", spec(steps=1))
    async with session(site, "mk-member") as browser:
        page = (await browser.get(f"/new?{form}=letters-1" if form else "/new")).text

    assert 'list="l-environment.name"' in page and '<datalist id="l-environment.name"><option value="toy">' in page
