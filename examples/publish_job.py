"""Submit a task with nothing of MARLaaS installed: a NATS client and MessagePack, as any other program would.

    pip install nats-py msgpack
    python publish_job.py letters.toml nats://user:password@127.0.0.1:4222

A job is one message on `jobs.submit.<tenant>`: docs/schemas/submit-task.1.json. NATS has stored it when the publication
is acknowledged; the answer, `accepted` or `rejected` with reasons, is the first event on `events.<tenant>.<task>`.
"""

import asyncio
import secrets
import sys
import tomllib
from pathlib import Path

import msgpack
import nats

LAST_EVENTS = ("finished", "failed", "cancelled", "rejected")


async def main(task_file: str, url: str) -> int:
    spec = tomllib.loads(Path(task_file).read_text())
    tenant, task = spec["tenant"], f"{spec['name']}-{secrets.token_hex(4)}"  # the id is ours to make, and unique
    client = await nats.connect(url)
    stream = client.jetstream()
    try:
        job = {"task": task, "tenant": tenant, "spec": spec}
        headers = {"Marlaas-Kind": "submit-task.1", "Nats-Msg-Id": f"submit:{task}"}  # sent twice, it is stored once
        await stream.publish(f"jobs.submit.{tenant}", msgpack.packb(job), headers=headers)
        print(f"submitted {task}", flush=True)
        # From the first event on: one that was published before we listened is not missed.
        events = await stream.subscribe(f"events.{tenant}.{task}", ordered_consumer=True)
        async for message in events.messages:
            event = msgpack.unpackb(message.data)
            print(event["event"], {name: value for name, value in event["data"].items() if name != "spec"}, flush=True)  # the spec is long
            if event["event"] in LAST_EVENTS:
                return int(event["event"] != "finished")
        return 1
    finally:
        await client.close()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "nats://127.0.0.1:4222")))
