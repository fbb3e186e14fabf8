"""What strangers can do to a task that trains: `python -m bench.rogue`. Writes bench/results/rogue.json.

    python -m bench.rogue [--messages 10000] [--steps 12]

On a stack with keys a tenant trains a task strictly on policy, first undisturbed, then while two others send what they may not: a tenant
with a valid key of its own, to every family of subjects, with requests and foreign reply subjects among them; and a client without a
key. A reader that hears everything in the services' account counts what arrived; it must hear the same text from the operator.
Compared are the digests of the task's last adapter and optimizer state, the time between its steps, and how long its own questions
(`ask.<tenant>.tasks`) take. Exit status 1 where a message arrived, or a digest differs.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nats
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from bench.harness import report
from bench.harness.services import local_stack
from bench.invariance import digests, subject
from common import streams
from common.access.claims import AccountLimits, tenant_token, tenant_user_token
from common.access.credentials import write_credentials
from common.access.folder import SYSTEM, SigningKeys, credentials_path, issue_key, open_folder
from common.access.keys import Kind, Seed
from common.access.rows import Permissions
from common.bus import Bus
from marlaas.client import Client
from marlaas.stack.state_files import Stack

NAME = "rogue"
VICTIM, ROGUE = "acme", "evil"
CANARY = b"canary-of-a-stranger"
BURST = 100
"""Messages in one go."""
ASK_EVERY_S = 0.1
HEARD_S = 10.0
"""Maximum time from a message to the listener."""
CONTROL = f"ask.{VICTIM}.tasks"
FOREIGN = (
    f"jobs.submit.{VICTIM}",
    f"jobs.cancel.{VICTIM}",
    f"ask.{VICTIM}.tasks",
    "jobs.set-tenant.admin",
    f"events.{VICTIM}.x",
    f"events.{ROGUE}.x",
    "prompts.check.math.x",
    "prompts.open.math.x.1",
    "prompts.sample.tiny.x.1",
    "trajectories.turn.math.x.1",
    "trajectories.checked.x",
    "trajectories.scored.x.1",
    "trajectories.batch.tiny.x",
    "weight-updated.tiny.x",
    "failed.jobs.x",
    streams.value_subject(streams.TASKS_BUCKET, "x"),
    streams.value_subject(streams.REPLICAS_BUCKET, "rollout.x"),
    f"$O.{streams.BLOBS_BUCKET}.C.x",
    "$JS.API.STREAM.PURGE.JOBS",
    "$JS.API.STREAM.DELETE.EVENTS",
    "$JS.ACK.JOBS.jobs.1.1.1.1.1",
    "$SYS.REQ.SERVER.PING",
    "_INBOX.scheduler.x",
    "_INBOX.trainer.x",
)
"""A subject of each family, none of which a tenant's key may use."""


@dataclass
class Keys:
    """The operator's side of a running stack."""

    url: str
    keys: SigningKeys

    async def tenant(self, name: str) -> Path:
        """Make a tenant's account known to NATS; returns the creds file of an owner."""
        account, at_s = self.keys.new_tenant(name), int(time.time())
        token = tenant_token(self.keys.operator, account.public, name, self.keys.services.public, at_s, limits=AccountLimits(), revoked={})
        async with await Bus.connect(self.url, "bench", creds=self.keys.credentials(SYSTEM)) as system:
            await system.accounts.push(token)
        async with await Bus.connect(self.url, "bench", creds=self.keys.credentials("scheduler")) as scheduler:
            await scheduler.own_jobs.declare([name])
        seed = Seed.new(Kind.USER)
        return self._written(name, tenant_user_token(account, seed.public, f"{name}-owner", name, "owner", at_s), seed)

    def listener(self) -> Path:
        """Creds file of a user of the services' account who hears everything there."""
        path = self.keys.credentials("bench-listener")
        issue_key(path, self.keys.services, "listener", Permissions((), (">",), "_INBOX"))
        return path

    def _written(self, name: str, token: str, seed: Seed) -> Path:
        path = self.keys.folder / "creds" / f"bench-{name}.creds"
        write_credentials(path, token, seed)
        return path


# ------------------------------------------------------------------------------------------------------------ strangers


@dataclass
class Strangers:
    """What strangers sent, and what became of it."""

    sent: int = 0
    refusals: int = 0
    connections: int = 0
    took_s: float = 0.0


async def with_a_key(url: str, creds: Path, messages: int, pause_s: float) -> Strangers:
    """Send to foreign subjects, every third time as a request whose answer would go to somebody else's subject."""
    done, began = Strangers(connections=1), time.monotonic()

    async def refused(error: Exception) -> None:
        done.refusals += "permissions violation" in str(error).lower()

    client = await nats.connect(url, user_credentials=str(creds), error_cb=refused)
    targets = cycle(FOREIGN)
    while done.sent < messages:
        for target in islice(targets, BURST):
            reply = f"events.{VICTIM}.x" if done.sent % 3 == 0 else ""
            await client.publish(target, CANARY, reply)
            done.sent += 1
        await client.flush()
        await asyncio.sleep(pause_s)
    await asyncio.sleep(1)  # the last refusals
    await client.close()
    done.took_s = round(time.monotonic() - began, 1)
    return done


async def without_a_key(url: str, messages: int, pause_s: float) -> Strangers:
    """Send as a client that names no key: the server closes each connection, so many are opened."""
    done, began = Strangers(), time.monotonic()
    where, targets = urlsplit(url), cycle(FOREIGN)
    while done.sent < messages:
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        await reader.readline()
        lines = [b'CONNECT {"verbose":false,"pedantic":false}\r\n']
        lines += [b"PUB %s %d\r\n%s\r\n" % (target.encode(), len(CANARY), CANARY) for target in islice(targets, BURST)]
        with suppress(ConnectionError):  # closed before everything was sent
            writer.write(b"".join(lines))
            await writer.drain()
            await asyncio.wait_for(reader.read(), 10)  # until the server closes it; TimeoutError where it does not
        done.refusals += BURST
        writer.close()
        done.sent, done.connections = done.sent + BURST, done.connections + 1
        await asyncio.sleep(pause_s)
    done.took_s = round(time.monotonic() - began, 1)
    return done


@dataclass
class Heard:
    messages: int = 0
    of_strangers: list[str] = field(default_factory=list[str])
    came: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once there is one of strangers."""


@asynccontextmanager
async def listening(url: str, creds: Path) -> AsyncGenerator[Heard]:
    """Everything that is published in the services' account, which is what services can receive and streams can store."""
    heard = Heard()

    async def note(message: Msg) -> None:
        heard.messages += 1
        if CANARY in message.data or CANARY in str(message.headers).encode():
            heard.of_strangers.append(message.subject)
            heard.came.set()

    client: NatsClient = await nats.connect(url, user_credentials=str(creds), pending_size=64 * 1024 * 1024)
    await client.subscribe(">", cb=note, pending_bytes_limit=-1, pending_msgs_limit=-1)
    await client.flush()
    try:
        yield heard
    finally:
        await client.drain()


async def control(url: str, creds: Path, heard: Heard) -> None:
    """The same text from the operator, who may send it: the listener must hear this one."""
    client = await nats.connect(url, user_credentials=str(creds))
    await client.publish(CONTROL, CANARY)
    await client.flush()
    with suppress(TimeoutError):  # `run` reports one that is not heard
        await asyncio.wait_for(heard.came.wait(), HEARD_S)
    await client.close()


# --------------------------------------------------------------------------------------------------------------- victim


async def train(stack: Stack, keys: Keys, creds: Path, steps: int) -> dict[str, Any]:
    """Digests of the victim's task, seconds between its steps, and milliseconds of its own questions meanwhile."""
    asked_ms: list[float] = []
    async with Client.connect(stack.nats_url, creds=creds) as client:

        async def ask() -> None:
            while True:
                began = time.monotonic()
                await client.tasks()
                asked_ms.append((time.monotonic() - began) * 1000)
                await asyncio.sleep(ASK_EVERY_S)

        task = await client.submit(subject(0, steps).model_copy(update={"tenant": VICTIM}))
        asking = asyncio.create_task(ask())
        events = [event async for event in client.watch(task)]
        asking.cancel()
    if events[-1].event != "finished":
        sys.exit(f"the task ended otherwise: {events[-1]}")
    at_s = [event.at_s for event in events if event.event == "step"]
    return {
        "digests": await digests(stack.nats_url, task, creds=credentials_path(keys.keys.folder, "operator")),
        "step_s": report.spread([later - earlier for earlier, later in pairwise(at_s)]),
        "ask_ms": report.spread(asked_ms) | {"asked": len(asked_ms)},
    }


Strange = Callable[[str, Path], Coroutine[Any, Any, dict[str, Strangers]]]


async def run(stack: Stack, folder: Path, steps: int, strangers: Strange | None) -> dict[str, Any]:
    keys = Keys(stack.nats_url, open_folder(folder))
    victim, rogue = await keys.tenant(VICTIM), await keys.tenant(ROGUE)
    async with listening(stack.nats_url, keys.listener()) as heard:
        disturbing = asyncio.create_task(strangers(stack.nats_url, rogue)) if strangers else None
        result = await train(stack, keys, victim, steps)
        if disturbing:
            result["strangers"] = {name: vars(one) for name, one in (await disturbing).items()}
        else:
            await control(stack.nats_url, keys.keys.credentials("operator"), heard)
    if not strangers and heard.of_strangers != [CONTROL]:
        sys.exit(f"the listener misses what arrives: {heard.of_strangers}")
    return result | {"heard": heard.messages, "heard_of_strangers": sorted(set(heard.of_strangers))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000, help="of each of the two")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--over", type=float, default=15.0, help="seconds that the messages are spread over")
    options = parser.parse_args()
    pause_s = options.over / (options.messages / BURST)

    async def strangers(url: str, creds: Path) -> dict[str, Strangers]:
        both = await asyncio.gather(with_a_key(url, creds, options.messages, pause_s), without_a_key(url, options.messages, pause_s))
        return dict(zip(("with a key", "without a key"), both, strict=True))

    result: dict[str, Any] = {"machine": report.machine(), "steps": options.steps, "subjects": len(FOREIGN)}
    for name, disturbed in (("quiet", None), ("disturbed", strangers)):
        with tempfile.TemporaryDirectory(prefix="marlaas-bench-keys-") as folder, local_stack(keys=Path(folder) / "keys") as stack:
            result[name] = asyncio.run(run(stack, Path(folder) / "keys", options.steps, disturbed))
        print(f"{name}: {result[name]}", file=sys.stderr, flush=True)
    result["equal"] = result["quiet"]["digests"] == result["disturbed"]["digests"]
    print(f"written: {report.write(NAME, result)}")
    sys.exit(not result["equal"] or bool(result["disturbed"]["heard_of_strangers"]))


if __name__ == "__main__":
    main()
