"""What a whole stack still holds of a deleted tenant: real sampling, training and stores, and a text in all that the tenant wrote."""

import asyncio
from pathlib import Path
from typing import Any

import psycopg
import pytest

from common.access.folder import credentials_path
from marlaas.client import Client
from marlaas.stack import control as stacks
from marlaas.stack import servers
from marlaas.stack.state_files import Stack
from tests.support.paths import ROOT
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow]
POOLS = ROOT / "pools.toml"
CANARY = "canary-4b1d9e"
TENANT = "acme"


def spec(tenant: str, text: str, steps: int) -> dict[str, Any]:
    """A task with the text wherever a task may have one that it chooses."""
    options = {"min_words": 1, "max_words": 2, "instruction": f"Count. {text}", "system": f"You count. {text}"}
    return {
        "name": text,
        "tenant": tenant,
        "pool": "tiny",
        "steps": steps,
        "environment": {"name": "reasoning_gym:letter_counting", "options": options},
        "algorithm": {"group_size": 4, "groups_per_step": 2, "max_staleness": 0},
        "sampling": {"max_tokens": 8, "stop": [text]},
        "evaluation": {"every": 1, "prompts": 2, "options": {"instruction": text}},
        "keep": {"adapters": "all", "batches": 3},
        "lora": {"rank": 4},
    }


def in_files(data: Path) -> set[str]:
    """Top folders with the text in a file or a file's name; PostgreSQL's own files, which keep deleted rows a while, are not read."""
    found: set[str] = set()
    for file in data.rglob("*"):
        top = file.relative_to(data).parts[0]
        if top == "postgres" or not file.is_file():
            continue
        if CANARY in file.name or CANARY.encode() in file.read_bytes():
            found.add(top)
    return found


def in_dump(stack: Stack) -> set[str]:
    """Tables with the text in a row, bytes included."""
    found: set[str] = set()
    with psycopg.connect(stack.database_url.replace("+psycopg", "").replace(servers.READER, servers.OWNER)) as connection:
        for (table,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall():
            query = f'SELECT 1 FROM "{table}" t WHERE strpos(t::text, %s) > 0 OR strpos(t::text, %s) > 0 LIMIT 1'
            if connection.execute(query.encode(), (CANARY, CANARY.encode().hex())).fetchone():
                found.add(table)
    return found


async def train_and_delete(stack: Stack, data: Path) -> tuple[set[str], set[str]]:
    """Where the text was before the tenant was deleted: folders and tables."""
    async with Client.connect(stack.nats_url, creds=credentials_path(data / "keys", "operator")) as client:
        # An id that the client makes holds the name, and ids stay in bills and logs: these tasks have ids of their own.
        others = await client.submit(spec("globex", "counting", 2))
        finished = await client.submit(spec(TENANT, CANARY, 2), "finished-1")
        stopped = await client.submit(spec(TENANT, CANARY, 500), "stopped-1")
        assert (await client.wait(finished)).state == "finished"
        await eventually(lambda: _has_a_step(client, stopped), 120)
        await client.cancel(stopped, reason=CANARY)
        assert (await client.wait(others)).state == "finished"
        before = await asyncio.to_thread(in_files, data), await asyncio.to_thread(in_dump, stack)
        receipt = await client.delete_tenant(TENANT)
        assert receipt["tasks"] == 2, receipt
        return before


async def _has_a_step(client: Client, task: str) -> bool:
    return (await client.status(task)).version > 0


async def test_nothing_of_a_deleted_tenant_is_in_stores_caches_or_logs(tmp_path: Path) -> None:
    data = tmp_path / "data"
    try:
        stack = stacks.wait_until_ready(stacks.start(stacks.make_plan(data, POOLS), end_with_parent=True), lambda stack: None)
        folders, tables = await train_and_delete(stack, data)
        assert "nats" in folders and {"tasks", "events"} <= tables, (folders, tables)
        assert in_dump(stack) == set()
        # NATS rewrites the files of queues within two minutes (docs/operations.md).
        await eventually(lambda: not in_files(data), 200)
    finally:
        stacks.stop(data)
    assert in_files(data) == set()
