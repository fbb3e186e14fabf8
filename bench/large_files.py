"""Large files through the HTTP door: `python -m bench.large_files`. Writes bench/results/large-files.json.

    python -m bench.large_files [--mib 300] [--files 2] [--cuts 10]

A stack of scheduler and gateway. Each file is uploaded as it is made, and downloaded by a client whose connection is cut at random places,
which goes on behind what it has with `Range`. Measured are the gateway's memory, every 50 ms, above its idle memory, and whether the
bytes that arrive have the digest of those that were sent.
"""

import argparse
import asyncio
import hashlib
import json
import random
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil

from bench.harness import report
from bench.harness.measures import usage
from bench.harness.services import BenchError, local_stack, run_or_exit, without_engine
from bench.harness.tenants import owner, until_known
from marlaas.stack.state_files import Stack

NAME = "large-files"
BOUNDARY = "part"
ROW = json.dumps({"messages": [{"role": "user", "content": "x" * 1000}], "reference": "0" * 20}).encode() + b"\n"
ROWS_AT_ONCE = 200
EVERY_S = 0.05
IDLE_S = 3.0
PROCESSED_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=300, help="of each file")
    parser.add_argument("--files", type=int, default=2)
    parser.add_argument("--cuts", type=int, default=10, help="of each download")
    run_or_exit(NAME, partial(measure, parser.parse_args()))


def measure(options: argparse.Namespace) -> None:
    """Raises: BenchError."""
    machine = report.machine()
    with (
        tempfile.TemporaryDirectory(prefix="marlaas-keys-") as folder,
        local_stack(keys=Path(folder) / "keys", changed=without_engine) as stack,
    ):
        found = asyncio.run(_measured(stack, owner("acme", stack, Path(folder) / "keys"), options))
    result = {"machine": machine, "options": vars(options), **found}
    print(json.dumps(found, indent=1))
    print(f"written: {report.write(NAME, result, (*report.CODE, 'gateway_svc'))}")


async def _measured(stack: Stack, key: str, options: argparse.Namespace) -> dict[str, Any]:
    identity = stack.component("gateway").process
    if stack.gateway is None or identity is None:
        raise BenchError("the stack has no gateway")
    gateway = psutil.Process(identity.pid)
    async with httpx.AsyncClient(base_url=stack.gateway.url, headers={"Authorization": f"Bearer {key}"}, timeout=120) as door:
        await until_known(door)
        await asyncio.sleep(IDLE_S)
        idle, rows = _mib(gateway), list[dict[str, Any]]()
        for number in range(options.files):
            async with _watched(gateway) as memory:
                began = time.monotonic()
                file, digest, size = await _upload(door, options.mib * 2**20, number)
                took = time.monotonic() - began
            row: dict[str, Any] = {"bytes": size, "up_s": round(took, 2), "up_above_idle_mib": round(max(memory) - idle, 1)}
            async with _watched(gateway) as memory:
                began = time.monotonic()
                same = await _download(door, file, size, options.cuts, number) == digest
                took = time.monotonic() - began
            row |= {"down_s": round(took, 2), "down_above_idle_mib": round(max(memory) - idle, 1), "same_digest": same}
            rows.append(row)
        return {"idle_mib": round(idle, 1), "files": rows}


async def _upload(door: httpx.AsyncClient, size: int, number: int) -> tuple[str, str, int]:
    """Id, digest and size of a new file. Raises: BenchError when it is refused."""
    digest, sent = hashlib.sha256(), 0

    async def body() -> AsyncGenerator[bytes]:
        nonlocal sent
        yield f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'.encode()
        yield f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="f{number}.jsonl"\r\n\r\n'.encode()
        while sent < size:
            rows = b"".join(ROW.replace(b"0" * 20, b"%020d" % (number * size + sent + place)) for place in range(ROWS_AT_ONCE))
            digest.update(rows)
            sent += len(rows)
            yield rows
        yield f"\r\n--{BOUNDARY}--\r\n".encode()

    answer = await door.post("/v1/files", content=body(), headers={"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"})
    if answer.status_code >= 300:
        raise BenchError(f"the file is refused: {answer.status_code} {answer.text[:300]}")
    return answer.json()["id"], digest.hexdigest(), sent


async def _download(door: httpx.AsyncClient, file: str, size: int, cuts: int, seed: int) -> str:
    """Digest of what arrived. Raises: BenchError for another status than 200 and 206."""
    places = [*sorted(random.Random(seed).sample(range(1, size), cuts)), size]
    digest, have = hashlib.sha256(), 0
    for place in places:
        headers = {"Range": f"bytes={have}-"} if have else {}
        async with door.stream("GET", f"/v1/files/{file}/content", headers=headers) as answer:
            if answer.status_code != (206 if have else 200):
                raise BenchError(f"from byte {have}: {answer.status_code}")
            async for part in answer.aiter_raw():
                digest.update(part)
                have += len(part)
                if have >= place:
                    break  # the rest is not read: the connection is closed
    if have != size:
        raise BenchError(f"{have} of {size} bytes arrived")
    return digest.hexdigest()


@asynccontextmanager
async def _watched(process: psutil.Process) -> AsyncGenerator[list[float]]:
    """MiB of the process and its children, sampled until the block ends."""
    found = [_mib(process)]

    async def watch() -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            found.append(_mib(process))

    watching = asyncio.create_task(watch())
    try:
        yield found
    finally:
        watching.cancel()


def _mib(process: psutil.Process) -> float:
    return sum(one.memory_info().rss for one in usage.family(process)) / 2**20


if __name__ == "__main__":
    main()
