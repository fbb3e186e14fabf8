"""A deployment as it is used, for a long time, while its services are killed. Writes bench/results/endurance.json.

    python -m bench.endurance [--minutes 40] [--kill-every 60] [--steps 8]

With keys; two tenants train one task after the other, each version an adapter of more than 40 MB, and chat with their versions by HTTP
meanwhile. Every `--kill-every` seconds the next service is killed with its children. At the end: no death but those ordered, each of
them an event; no refusal by NATS; every task finished; and `marlaas doctor --strict` finds nothing. If not, the exit status is 1.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import psycopg

from bench.harness import report
from bench.harness.models import SMALL, write_model
from bench.harness.services import BenchError, local_stack, run_or_exit
from common.messages.lives import WORKED_S
from common.spec import parse_spec
from marlaas.client import Client
from marlaas.stack.state_files import Stack, StackPlan, read_stack

NAME = "endurance"
POOL = "random"
TENANTS = ("acme", "globex")
RANK = 256
"""With it an adapter of this model has 50 MiB."""
MODEL = SMALL | {"num_hidden_layers": 5, "vocab_size": 1024}
MIN_ADAPTER_BYTES = 40_000_000
READY_S = 400.0
TASK_S = 900.0
"""Time limit of one task, kills of every service on its way."""
CHAT_S = 60.0
SWEEP_S = 30.0
"""So that blobs of a trainer that was killed before its announcement are gone when the doctor looks, which allows none of them."""
FORBIDDEN = re.compile(r'"nats_forbids"|may not (?:publish|subscribe)')
MARLAAS = str(Path(sys.executable).parent / "marlaas")
DEATHS = "SELECT data->>'replica', data->>'cause' FROM events WHERE event = 'death' ORDER BY id"


@dataclass
class Seen:
    """What the tenants and the killer saw."""

    finished: int = 0
    ended_otherwise: list[str] = field(default_factory=list[str])
    chats: Counter[str] = field(default_factory=Counter[str])
    """By HTTP status, or `cut`."""
    retry_after: int = 0
    """Of the refused chats, those that said when to try again."""
    newest: dict[str, str] = field(default_factory=dict[str, str])
    """Each tenant's last task that has finished."""
    kills: Counter[str] = field(default_factory=Counter[str])
    ready_again_s: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Seconds from a kill until all services were ready, by the one that was killed."""
    answered_again_s: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Seconds from a kill until a chat that began after it was answered."""
    killed: tuple[str, float] | None = None
    """The last one, and when, until such a chat was answered."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--kill-every", type=float, default=60.0, help="seconds from one service's recovery to the next kill")
    parser.add_argument("--steps", type=int, default=8, help="of each task")
    options = parser.parse_args()
    machine = report.machine()
    result: dict[str, Any] = {"machine": machine, **run(options)}
    print(f"written: {report.write(NAME, result)}")
    print(json.dumps({name: value for name, value in result.items() if name != "machine"}, indent=2))
    if result["complaints"]:
        raise BenchError("; ".join(result["complaints"]))


def run(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    plans: list[StackPlan] = []

    def noted(plan: StackPlan) -> StackPlan:
        plans.append(plan)
        return plan

    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as name:
        folder = Path(name)
        model = write_model(MODEL, torch.float32, folder / "model")
        pools = folder / "pools.toml"
        pools.write_text(
            f'[{POOL}]\nmodel = "{model}"\ncontext_tokens = 512\nmax_rank = {RANK}\nadapters = 4\nsequences = 16\nkv_cache_gib = 0.25\n'
            f"train_tokens = 4096\n\n[{POOL}.serving]\nsequences = 4\nadapters = 2\n"
        )
        settings = {"MARLAAS_SCHEDULER_SWEEP_S": str(SWEEP_S)}
        with local_stack(pools, settings, keys=folder / "keys", changed=noted) as stack:
            data = plans[0].data
            keys = {tenant: made_keys(data, tenant, folder) for tenant in TENANTS}
            seen = asyncio.run(endured(stack, data, keys, options))
            return judged(stack, data, seen) | {"minutes": options.minutes, "rank": RANK}


def made_keys(data: Path, tenant: str, folder: Path) -> tuple[Path, str]:
    """A tenant with two keys of its owner: a file for NATS, and a line for HTTP."""
    creds = folder / f"{tenant}.creds"
    marlaas(data, "tenants", "create", tenant)
    marlaas(data, "keys", "create", tenant, "nats", "--role", "owner", "--to", str(creds))
    return creds, marlaas(data, "keys", "create", tenant, "http", "--role", "owner", "--http").strip().splitlines()[-1]


def marlaas(data: Path, *arguments: str) -> str:
    done = subprocess.run([MARLAAS, *arguments, "--data", str(data)], capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise BenchError(f"marlaas {' '.join(arguments)}: {done.stderr or done.stdout}")
    return done.stdout


async def endured(stack: Stack, data: Path, keys: dict[str, tuple[Path, str]], options: argparse.Namespace) -> Seen:
    """Train, chat and kill for so many minutes; returns once the last tasks have ended, and no service is new."""
    seen, until_s = Seen(), time.monotonic() + 60 * options.minutes
    chatting = [asyncio.create_task(chat(stack, tenant, key, seen)) for tenant, (_, key) in keys.items()]
    training = [train(stack, tenant, creds, options.steps, seen, until_s) for tenant, (creds, _) in keys.items()]
    await asyncio.gather(*training, kill_in_turn(data, options.kill_every, seen, until_s))
    for one in chatting:
        one.cancel()
    await asyncio.gather(*chatting, return_exceptions=True)
    await asyncio.sleep(1.2 * WORKED_S)  # a service that was killed three times is faulty until it has worked for so long
    return seen


async def train(stack: Stack, tenant: str, creds: Path, steps: int, seen: Seen, until_s: float) -> None:
    number = 0
    async with Client.connect(stack.nats_url, tenant, creds=creds) as client:
        while time.monotonic() < until_s:
            number += 1
            task = await client.submit(spec(tenant, number, steps))
            try:
                async with asyncio.timeout(TASK_S):
                    status = await client.wait(task)
            except TimeoutError:
                seen.ended_otherwise.append(f"{task} has not ended after {TASK_S:.0f} s")
                await client.cancel(task)
                continue
            if status.state == "finished":
                seen.finished += 1
                seen.newest[tenant] = task
            else:
                seen.ended_otherwise.append(f"{task}: {status.state}: {status.reason}")


def spec(tenant: str, number: int, steps: int) -> Any:
    return parse_spec(
        {
            "name": f"endure-{number}",
            "tenant": tenant,
            "pool": POOL,
            "steps": steps,
            "environment": {"name": "reasoning_gym:letter_counting", "options": {"min_words": 1, "max_words": 2}},
            "algorithm": {"group_size": 2, "groups_per_step": 2, "max_staleness": 1},
            "sampling": {"max_tokens": 16},
            "lora": {"rank": RANK},
        }
    )


async def chat(stack: Stack, tenant: str, key: str, seen: Seen) -> None:
    """Ask the base model and the newest task's last version in turn, until cancelled."""
    headers, number = {"Authorization": f"Bearer {key}"}, 0
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=CHAT_S)) as http:
        while True:
            number += 1
            model = f"{seen.newest[tenant]}@latest" if tenant in seen.newest and number % 2 else POOL
            began = time.monotonic()
            body = {"model": model, "messages": [{"role": "user", "content": f"What is {number} * 7?"}], "max_tokens": 16}
            try:
                async with http.post(f"{stack.gateway.url}/v1/chat/completions", json=body) as answer:
                    await answer.read()
                    seen.chats[str(answer.status)] += 1
                    if answer.status == 200 and seen.killed is not None and began > seen.killed[1]:
                        name, at = seen.killed
                        seen.answered_again_s.setdefault(name, []).append(round(time.monotonic() - at, 1))
                        seen.killed = None
                    seen.retry_after += "Retry-After" in answer.headers
            except (aiohttp.ClientError, TimeoutError):
                seen.chats["cut"] += 1
            await asyncio.sleep(1.0)


async def kill_in_turn(data: Path, every_s: float, seen: Seen, until_s: float) -> None:
    """Kill each service, one at a time; the next once all are ready."""
    stack = read_stack(data)
    assert stack is not None
    names = [one.name for one in stack.components if one.name not in ("nats", "postgres", "migrations")]
    number = 0
    while time.monotonic() + every_s < until_s:
        await asyncio.sleep(every_s)
        name = names[number % len(names)]
        number += 1
        kill(data, name)
        seen.kills[name] += 1
        began = time.monotonic()
        seen.killed = name, began
        restarts = sum(seen.kills.values())
        while not is_whole(data, restarts):
            if time.monotonic() - began > READY_S:
                raise BenchError(f"{name} is not ready {READY_S:.0f} s after it was killed")
            await asyncio.sleep(0.2)
        seen.ready_again_s.setdefault(name, []).append(round(time.monotonic() - began, 1))


def kill(data: Path, name: str) -> None:
    stack = read_stack(data)
    process = stack.component(name).process if stack else None
    if process is None:
        raise BenchError(f"{name} does not run, and the program has not killed it")
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
    os.kill(process.pid, signal.SIGKILL)


def is_whole(data: Path, restarts: int) -> bool:
    stack = read_stack(data)
    return stack is not None and stack.is_ready and sum(one.restarts for one in stack.components) >= restarts


def judged(stack: Stack, data: Path, seen: Seen) -> dict[str, Any]:
    """The result, with a complaint for each thing that should not be."""
    with psycopg.connect(stack.database_url.replace("+psycopg", "")) as connection:
        deaths = [(str(replica), str(cause)) for replica, cause in connection.execute(DEATHS)]
        sizes = [int(size) for (size,) in connection.execute("SELECT bytes FROM stored_blobs WHERE kind = 'adapter'")]
    now = read_stack(data)
    assert now is not None
    restarts = {one.name: one.restarts for one in now.components if one.restarts}
    refusals = [
        line[:300] for log in sorted((data / "logs").glob("*.log")) for line in log.read_text().splitlines() if FORBIDDEN.search(line)
    ]
    doctor = subprocess.run([MARLAAS, "doctor", "--strict", "--json", "--data", str(data)], capture_output=True, text=True, timeout=300)
    complaints = [
        f"{name} was restarted {count} times and killed {seen.kills[name]}" for name, count in restarts.items() if count != seen.kills[name]
    ]
    complaints += [f"{name} died by itself: {cause}" for name, cause in deaths if not cause.startswith("killed by SIGKILL")]
    reported = Counter(name for name, _ in deaths)
    complaints += [
        f"{name} was killed {count} times, and {reported[name]} events say so"
        for name, count in seen.kills.items()
        if reported[name] != count
    ]
    complaints += [f"NATS refused: {line}" for line in refusals[:5]] + seen.ended_otherwise
    complaints += [f"doctor: {doctor.stdout or doctor.stderr}"] if doctor.returncode else []
    complaints += [] if sizes and min(sizes) > MIN_ADAPTER_BYTES else [f"an adapter has {min(sizes, default=0)} bytes"]
    complaints += [f"{seen.chats['404']} chats with versions that there are were answered 404"] if seen.chats["404"] else []
    complaints += [] if seen.finished and seen.chats["200"] else ["no task finished, or no chat was answered"]
    return {
        "adapter_bytes": min(sizes, default=0),
        "tasks_finished": seen.finished,
        "killed": dict(seen.kills),
        "ready_again_s": seen.ready_again_s,
        "answered_again_s": seen.answered_again_s,
        "death_events": len(deaths),
        "chats": dict(seen.chats),
        "refused_chats_that_say_when": seen.retry_after,
        "refusals_by_nats": len(refusals),
        "doctor_is_clean": doctor.returncode == 0,
        "complaints": complaints,
    }


if __name__ == "__main__":
    run_or_exit(NAME, main)
