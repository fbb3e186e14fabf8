"""The curl lines of docs/http.md, run as they are written. The task file that they name plays the test's environment,
and the adapter is the test's."""

import asyncio
import hashlib
import os
import re
from pathlib import Path

import httpx

from common import streams
from common.bus import Outgoing
from common.messages import DeadLetter, file_id
from tests.support.paths import ROOT
from tests.support.scheduler.stages import World, scored, spec
from tests.support.waiting import eventually

PAGE = (ROOT / "docs" / "http.md").read_text()
BLOCK = next(block for block in re.findall(r"```\n(.*?)```", PAGE, re.DOTALL) if "curl" in block).splitlines()
LINES = [line for line in BLOCK if line.startswith("curl")]
EXAMPLE = "examples/lcm.toml"


def test_every_route_of_tasks_and_of_the_deployment_has_a_line() -> None:
    routes = re.findall(r"^\| `[A-Z]+ (/v1/(?:tasks|pools|environments|replicas|usage)[^`]*)`", PAGE, re.MULTILINE)
    known = r"\$TASK|\$LETTER|best|latest|adapter_config\.json"
    shown = {re.sub(known, "*", path.split("?")[0]) for path in re.findall(r"\$URL(/[^\s\"]*)", "\n".join(LINES))}

    assert {re.sub(r"\{\w+\}", "*", route) for route in routes} - shown == {
        "/v1/tasks/*/cancel", "/v1/tasks/*/resume", "/v1/tasks/*/spec", "/v1/tasks/*/why"
    }  # fmt: skip
    assert "# resume, cancel" in next(line for line in LINES if "/pause" in line)
    assert any("# also …/spec and …/why" in line for line in LINES)


async def run(line: str, folder: Path, **environment: str) -> tuple[int, str]:
    """Exit status, and what is printed; curl fails by its exit status where the answer is an error."""
    env = os.environ | environment | {"CURL_HOME": str(folder)}
    pipe = asyncio.subprocess.PIPE
    running = await asyncio.create_subprocess_exec("bash", "-c", line, cwd=folder, env=env, stdout=pipe, stderr=pipe)
    out, err = await asyncio.wait_for(running.communicate(), 100)
    return running.returncode or 0, (out + err).decode(errors="replace")


async def test_lines_do_what_they_say(world: World, door: httpx.AsyncClient, tmp_path: Path) -> None:
    await world.run("sums-1", spec())
    await world.run("slow-1", until="accepted")
    number = await lost(world)
    example = (ROOT / EXAMPLE).read_text()
    (tmp_path / "examples").mkdir()
    (tmp_path / EXAMPLE).write_text(re.sub(r'"reasoning_gym:lcm"\noptions = .*', '"toy"', example))
    rows = b'{"messages": [{"role": "user", "content": "1 + 1"}]}\n'
    (tmp_path / "train.jsonl").write_bytes(rows)
    (tmp_path / ".curlrc").write_text("silent\nshow-error\nfail-with-body\n")

    for line in LINES:
        task = "slow-1" if "/pause" in line or "/resend" in line else "sums-1"
        url, auth = str(door.base_url).rstrip("/"), "Authorization: Bearer mk-none"
        line = line.replace("adapter_config.json", "content")  # the only file that the test's trainer stores
        line = re.sub(r"(\$URL/v1/(?:aliases|webhooks|files)\S*)", r'"\1?tenant=acme"', line)  # without keys everybody is an admin
        named = {"TASK": task, "LETTER": str(number), "FILE": file_id(hashlib.sha256(rows).hexdigest())}
        status, printed = await run(line, tmp_path, URL=url, AUTH=auth, **named)
        assert status == 0, (line, printed)
    assert (tmp_path / "adapter.tar").stat().st_size > 0


async def lost(world: World) -> int:
    """Number of a message about `slow-1` that could not be handled, and can be sent again."""
    await eventually(lambda: any(group.task == "slow-1" for group in world.stages.opened))
    group = next(group for group in world.stages.opened if group.task == "slow-1")
    out = scored(group, 1, reward=5.0)
    sequence = await world.bus.publish(out)
    letter = DeadLetter(stage="settle", subject=out.subject, reason="disk full", attempts=2, headers={}, body=b"", sequence=sequence)
    await world.bus.publish(Outgoing(streams.failed("settle", group.task), letter, "letter"))
    await world.rows_become("SELECT count(*) FROM dead_letters", [(1,)])
    return int((await world.rows("SELECT sequence FROM dead_letters"))[0][0])
