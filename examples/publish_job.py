"""Submit a task with nothing of MARLaaS installed: a NATS client and MessagePack, as any other program would.

    pip install 'nats-py[nkeys]' msgpack
    python publish_job.py letters.toml nats://127.0.0.1:4222 --creds acme.creds

The file is a key of the task's tenant: `marlaas keys create acme NAME --to acme.creds`. It names the subjects on which the key may hear
answers; the id of a task ends in digits that follow from its tenant's name, so that tenants' ids are never the same.

A job is one message on `jobs.submit.<tenant>`: docs/schemas/submit-task.1.json. NATS has stored it when the publication
is acknowledged; the answer, `accepted` or `rejected` with reasons, is the first event on `events.<tenant>.<task>`.

Events have numbers. Live ones may be lost where the connection is, or come twice: after a silence, or where a number is missing, the
program asks for those after the last that it has, and it drops what it has (docs/asking.md).
"""

import argparse
import asyncio
import hashlib
import re
import secrets
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgpack
import nats

LAST_EVENTS = ("finished", "failed", "cancelled", "rejected")
SILENCE_S = 15


async def main(task_file: Path, url: str, creds: str | None) -> int:
    spec = tomllib.loads(task_file.read_text())
    tenant = spec["tenant"]
    mark = hashlib.sha256(tenant.encode()).hexdigest()[:10]
    task = f"{spec['name'][:39]}-{secrets.token_hex(6)}-{mark}"  # the id is ours to make, and unique
    client = await nats.connect(url, user_credentials=creds, inbox_prefix=inbox_of(creds))
    try:
        events = await client.subscribe(f"events.{tenant}.{task}")
        await client.flush()  # the server listens for us before it has the job
        job = {"task": task, "tenant": tenant, "spec": spec}
        headers = {"Marlaas-Kind": "submit-task.1", "Nats-Msg-Id": f"submit:{task}"}  # sent twice, it is stored once
        await client.jetstream().publish(f"jobs.submit.{tenant}", msgpack.packb(job), headers=headers)
        print(f"submitted {task}", flush=True)
        seen = 0
        while True:
            try:
                message = await events.next_msg(timeout=SILENCE_S)
                arrived = [msgpack.unpackb(message.data)] if (message.headers or {}).get("Marlaas-Kind") == "event.1" else []
            except TimeoutError:
                arrived = []
            if not arrived or (arrived[0]["number"] or 0) > seen + 1:
                arrived = await events_after(client, tenant, task, seen)
            for event in arrived:
                if (number := event["number"] or seen + 1) <= seen:  # none: a refusal that is not stored
                    continue
                seen = number
                said = {name: value for name, value in event["data"].items() if name != "spec"}  # which is long
                print(event["event"], said, flush=True)
                if event["event"] in LAST_EVENTS:
                    return int(event["event"] != "finished")
    finally:
        await client.close()


def inbox_of(creds: str | None) -> str:
    """Beginning of the subjects on which the key may hear answers; the usual one without a key."""
    found = re.search(r"--inbox-prefix (\S+)", Path(creds).read_text()) if creds else None
    return found[1] if found else "_INBOX"


async def events_after(client: nats.NATS, tenant: str, task: str, number: int) -> list[dict[str, Any]]:
    """Stored events above a number; none while no scheduler answers."""
    try:
        answer = await client.request(f"ask.{tenant}.events", msgpack.packb({"task": task, "after": number}) or b"", timeout=12)
    except (TimeoutError, nats.errors.NoRespondersError):
        return []
    return msgpack.unpackb(answer.data).get("events", [])  # a refusal has none


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Submit a task, and print its events until it has ended.")
    parser.add_argument("task_file", type=Path)
    parser.add_argument("url", nargs="?", default="nats://127.0.0.1:4222")
    parser.add_argument("--creds", metavar="FILE", help="file with a key of the task's tenant")
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.task_file, given.url, given.creds)))
