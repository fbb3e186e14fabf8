"""The sandbox of hosts: what the operator's table grants, what it bounds, and what of a machine it shows."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import psutil

from env_svc.calls import Continued, Failed, Scored
from env_svc.execution.workers import Workers
from env_svc.hosted.config import HostedConfig
from env_svc.hosted.confinement import Confinement, needed_paths
from env_svc.hosted.start import MAX_LINE_CHARS, MAX_LINES, PrintedLines
from tests.env.hosted.playing import hosting, play, reason, step
from tests.support.paths import ROOT
from tests.support.waiting import eventually


async def answer(workers: Workers, sandbox: Confinement, hosted: HostedConfig, code: str) -> str:
    async with hosting(workers, sandbox=sandbox, guest=hosted) as executor:
        (outcome,) = await play(executor, [step(code)])
    assert isinstance(outcome, Continued), outcome
    return outcome.messages[0].content.strip()


async def test_network_is_there_where_the_table_grants_it(workers: Workers, python: str, sandbox: Confinement) -> None:
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        code = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 5)\nprint('reached')"
        granted = HostedConfig(python=python, environment="guest:Intruder", network=True)
        assert await answer(workers, sandbox, granted, code) == "reached"
        other = HostedConfig(python=python, environment="guest:Intruder")
        assert "reached" not in await answer(workers, sandbox, other, code)


async def test_paths_are_there_as_the_table_grants_them(workers: Workers, python: str, sandbox: Confinement, tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "one").write_text("a row")
    (tmp_path / "kept").mkdir()
    user = 2_099_999
    if os.geteuid() == 0:
        os.chown(tmp_path / "kept", user, user)
    granted = HostedConfig(python=python, environment="guest:Intruder", read=[tmp_path / "rows"], write=[tmp_path / "kept"], user=user)
    assert await answer(workers, sandbox, granted, f"print(open('{tmp_path}/rows/one').read())") == "a row"
    assert "Read-only file system" in await answer(workers, sandbox, granted, f"open('{tmp_path}/rows/two', 'w')")
    await answer(workers, sandbox, granted, f"open('{tmp_path}/kept/result', 'w').write('kept')")
    assert (tmp_path / "kept" / "result").read_text() == "kept"


async def test_table_without_the_sandbox_runs_as_the_service(workers: Workers, python: str, sandbox: Confinement) -> None:
    outside = HostedConfig(python=python, environment="guest:Intruder", sandbox=False)
    assert await answer(workers, sandbox, outside, "import os\nprint(os.getuid())") == str(os.getuid())


async def test_process_that_dies_in_its_sandbox_is_restarted(workers: Workers, python: str, sandbox: Confinement) -> None:
    async with hosting(workers, sandbox=sandbox, guest=HostedConfig(python=python, environment="guest:ComputingGuest")) as executor:
        (died,) = await play(executor, [step("die")])
        assert "its process ended (exit status 7)" in reason(died)
        (hung,) = await play(executor, [step("block 60")], timeout_s=2.0)
        assert "did not answer within 2 s" in reason(hung)
        (scored,) = await play(executor, [step("word")])
        assert isinstance(scored, Scored)


async def test_interpreter_that_is_not_there_is_named(workers: Workers, sandbox: Confinement) -> None:
    hosted = HostedConfig(python="/nowhere/python", environment="guest:Guest")
    async with hosting(workers, sandbox=sandbox, guest=hosted) as executor:
        (outcome,) = await play(executor, [step("word")])
        assert "/nowhere/python cannot be run: No such file or directory" in reason(outcome)


async def test_answer_beyond_the_contract_costs_the_process_and_no_more(workers: Workers, python: str, sandbox: Confinement) -> None:
    score = "{'kind': 'Scored', 'value': {'reward': float('nan'), 'components': {}}}"
    forged = (
        f"import os, msgpack\nfor number in range(4):\n    frame = msgpack.packb({{'id': number, 'outcome': {score}}})\n"
        "    for one in range(3, 16):\n        try:\n            os.write(one, len(frame).to_bytes(4, 'big') + frame)\n"
        "        except OSError:\n            pass"
    )
    async with hosting(workers, sandbox=sandbox, guest=HostedConfig(python=python, environment="guest:Intruder")) as executor:
        (outcome,) = await play(executor, [step(forged)])
        assert isinstance(outcome, Failed) and "the host process sent an invalid frame" in outcome.reason
        (outcome,) = await play(executor, [step("print('alive')")])
        assert isinstance(outcome, Continued)


ENDLESS = """
import asyncio, sys
from env_svc.hosted.confinement import HostedConfig, find_confinement

async def main():
    found = await find_confinement()
    code = "import os, time\\nif os.fork() == 0:\\n    os.setsid()\\nprint('up', flush=True)\\ntime.sleep(600)"
    command = await found.command(found.name_of_next(), HostedConfig(python=sys.executable, environment="a:b"), "-c", code)
    await (await asyncio.create_subprocess_exec(*command.argv, env=command.variables, process_group=0)).wait()

asyncio.run(main())
"""


async def test_processes_that_hear_nothing_end_with_the_service(sandbox: Confinement) -> None:
    service = subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, cwd=ROOT)
    assert service.stdout is not None
    assert await asyncio.to_thread(service.stdout.readline) == b"up\n"
    assert await asyncio.to_thread(service.stdout.readline) == b"up\n"
    below = [process.pid for process in psutil.Process(service.pid).children(recursive=True)]
    assert len(below) == 4, "bwrap twice, the program and its child"
    service.kill()
    service.wait()
    await eventually(lambda: not any(map(psutil.pid_exists, below)))
    service.stdout.close()


async def test_user_of_a_sandbox_is_used_again_when_it_is_released_and_not_before(sandbox: Confinement) -> None:
    first, second = sandbox.name_of_next(), sandbox.name_of_next()
    await sandbox.release(first)
    again, third = sandbox.name_of_next(), sandbox.name_of_next()
    assert again == first and third not in (first, second)
    for name in (first, second, third):
        await sandbox.release(name)


def test_checkout_that_holds_the_code_is_not_shown(tmp_path: Path) -> None:
    checkout, venv = tmp_path / "checkout", tmp_path / "venv"
    for place in (checkout / "env_svc", checkout / "common", checkout / "data" / "keys", venv / "lib" / "site-packages", tmp_path / "mine"):
        place.mkdir(parents=True)
    interpreter = venv / "bin" / "python"
    interpreter.parent.mkdir()
    interpreter.touch()
    path = ["", str(venv / "lib" / "site-packages"), str(checkout), str(tmp_path / "mine"), str(tmp_path / "none"), "/"]
    ours = [str(checkout / "env_svc"), str(checkout / "common")]
    shown = needed_paths(str(interpreter), str(venv), "/usr", path, ours)
    assert set(shown) == {str(venv), str(tmp_path / "mine"), *ours}


def test_every_link_on_the_way_to_an_interpreter_is_seen(tmp_path: Path) -> None:
    real, link, interpreter = tmp_path / "lib" / "python3.11", tmp_path / "bin" / "python3", tmp_path / "venv" / "python"
    for path in (real, link, interpreter):
        path.parent.mkdir()
    real.touch()
    link.symlink_to("../lib/python3.11")
    interpreter.symlink_to(link)
    assert set(needed_paths(str(interpreter), "/usr", "/usr", [], [])) == {str(interpreter), str(link), str(real)}


def test_prints_are_logged_up_to_a_bound() -> None:
    lines = PrintedLines()
    assert lines.add("one\ntw", 0.0) == ["one"]
    assert lines.add("o\n" + "x" * 10 * MAX_LINE_CHARS + "\n", 1.0) == ["two", "x" * MAX_LINE_CHARS]
    more = lines.add("more\n" * 10 * MAX_LINES, 2.0)
    assert len(more) == MAX_LINES - 3 + 1 and more[-1].startswith(f"… more than {MAX_LINES} lines")
    assert lines.add("x" * 10**6, 3.0) == []
    assert lines.add("\nnext minute\n", 61.0) == ["x" * MAX_LINE_CHARS, "next minute"]
