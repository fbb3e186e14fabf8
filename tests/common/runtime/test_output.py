"""Commands whose output is closed before they have printed all."""

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, sys
from common.runtime.output import ends_with_its_reader
async def lines():
    while True:
        print("line", flush=True)
        await asyncio.sleep(0)
async def both():
    async with asyncio.TaskGroup() as group:
        group.create_task(lines())
        group.create_task(asyncio.sleep(60))
def many():
    for number in range(10**6):
        print(number)
def last():
    print("not flushed")
    sys.exit(1)
sys.stdin.read()
with ends_with_its_reader():
    {}
"""


@pytest.mark.parametrize("command", ["asyncio.run(lines())", "asyncio.run(both())", "many()", "last()"])
def test_command_ends_without_a_word_when_its_output_is_closed(command: str) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", PROGRAM.format(command)], stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.close()
        process.stdin.close()  # from here on it prints
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_other_errors_and_exit_statuses_stay() -> None:
    for command, status in (("sys.exit(3)", 3), ("1 / 0", 1)):
        done = subprocess.run([sys.executable, "-c", PROGRAM.format(command)], input=b"", capture_output=True, check=False)
        assert (done.returncode, b"ZeroDivisionError" in done.stderr) == (status, status == 1)
