"""Sandboxes: what a run reports, and which sandbox is chosen."""

import asyncio
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from docker.errors import NotFound

from common.errors import Fatal
from env_svc.contract import WrongOptions
from env_svc.errors import SandboxUnavailable
from env_svc.sandboxes import kernel
from env_svc.sandboxes.bubblewrap import BubblewrapSandbox
from env_svc.sandboxes.current import current, start_sandbox, use
from env_svc.sandboxes.docker import LABEL, DockerSandbox
from env_svc.sandboxes.sandbox import Bounds, RunResult, Sandbox
from env_svc.settings import EnvSettings
from tests.support.env.sandboxes import BOUNDS, DOCKER_URL, sandbox_of
from tests.support.waiting import eventually


async def test_output_of_code_is_returned(sandbox: Sandbox) -> None:
    assert await sandbox.run("for n in range(3):\n    print(n, 'größer')", BOUNDS) == RunResult("0 größer\n1 größer\n2 größer\n")
    assert await sandbox.run("", BOUNDS) == RunResult("")


async def test_error_is_returned_with_its_place(sandbox: Sandbox) -> None:
    ran = await sandbox.run("print('before')\ndef half(n):\n    return n / 0\nhalf(1)", BOUNDS)
    assert (ran.output, ran.stopped, ran.is_complete) == ("before\n", None, False)
    assert "line 3" in ran.error
    assert ran.error.strip().endswith("ZeroDivisionError: division by zero")


async def test_code_that_does_not_parse_is_an_error(sandbox: Sandbox) -> None:
    ran = await sandbox.run("print(", BOUNDS)
    assert "SyntaxError" in ran.error and not ran.is_complete


async def test_runs_share_nothing(sandbox: Sandbox) -> None:
    await sandbox.run("import builtins\nbuiltins.print = None\nkept = 1\nopen('/tmp/kept', 'w').write('1')", BOUNDS)
    assert (await sandbox.run("print(kept)", BOUNDS)).error.strip().endswith("NameError: name 'kept' is not defined")
    ran = await sandbox.run("print(open('/tmp/kept').read())", BOUNDS)
    assert (ran.output, ran.is_complete) == ("", False)


async def test_many_run_at_once_and_those_without_a_place_wait(sandbox: Sandbox) -> None:
    runs = await asyncio.gather(*(sandbox.run(f"print({number})", BOUNDS) for number in range(12)))
    assert runs == [RunResult(f"{number}\n") for number in range(12)]


async def test_without_a_sandbox_such_code_is_refused() -> None:
    use(None)
    with pytest.raises(WrongOptions, match="the tool 'python' runs code that a policy wrote, and this process has no sandbox for it"):
        current("the tool 'python'")


async def test_auto_is_the_first_that_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def chosen(**settings: str) -> str:
        sandbox = await start_sandbox(EnvSettings.model_validate({"sandbox": "auto", "sandbox_warm": 0, **settings}))
        assert sandbox is not None
        await sandbox.close()
        return f"{sandbox.name}: {sandbox.meaning}"

    monkeypatch.setenv("PATH", str(tmp_path))
    assert (await chosen()).startswith("confined: CPython in namespaces")
    assert (await chosen(docker_url=f"unix://{tmp_path}/no.sock")).startswith("confined: ")
    (tmp_path / "bwrap").write_text("#!/bin/sh\nexit 1\n")  # it is there, and does not work
    (tmp_path / "bwrap").chmod(0o755)
    assert (await chosen()).startswith("confined: ")
    monkeypatch.setattr(kernel, "_NAMESPACES", "def enter_namespaces(*_): raise PermissionError(1, 'unshare')")
    assert (await chosen()).startswith("confined: CPython under Landlock and seccomp, the weaker kind")
    monkeypatch.setattr(kernel, "_LANDLOCK", "def needed_to_read(_): raise OSError(38, 'landlock')")
    assert (await chosen()).startswith("monty: an interpreter of a part of Python")


async def test_default_is_auto_and_prefers_bubblewrap() -> None:
    sandbox_of("bubblewrap")
    sandbox = await start_sandbox(EnvSettings())
    assert sandbox is not None and sandbox.name == "bubblewrap"


async def test_sandbox_that_does_not_work_ends_the_process_with_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(Fatal, match="the sandbox 'docker' does not work: Docker: "):
        await DockerSandbox(f"unix://{tmp_path}/no.sock", "python:3.11-slim", runs=1, warm=0).start()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Fatal, match="needs the program bwrap: install the package bubblewrap"):
        await BubblewrapSandbox(1).start()
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    with pytest.raises(Fatal, match="does not work on this machine: bwrap: No permissions to create new namespace"):
        await BubblewrapSandbox(1).start()


async def test_docker_has_no_address_by_default() -> None:
    with pytest.raises(Fatal, match="needs MARLAAS_ENV_DOCKER_URL: access to an engine is root on its host"):
        await start_sandbox(EnvSettings.model_validate({"sandbox": "docker"}))


async def test_image_that_is_not_there_is_named() -> None:
    sandbox_of("docker")
    with pytest.raises(Fatal, match="has no image no-such-image:1: docker pull no-such-image:1"):
        await DockerSandbox(DOCKER_URL, "no-such-image:1", runs=1, warm=0).start()


async def test_containers_end_with_the_service_that_holds_them() -> None:
    sandbox = sandbox_of("docker", warm=2)
    assert isinstance(sandbox, DockerSandbox)
    await sandbox.start()
    waiting = [container.id for container in sandbox._warm]
    assert len(waiting) == 2
    for container in sandbox._warm:  # as when the process is killed; closing would leave it open, since the SDK holds it too
        container.writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    async def has_ended(container: str) -> None:
        with suppress(NotFound):  # another test that starts a sandbox has swept it
            await sandbox._ask(lambda engine: engine.wait(container, timeout=90))

    await asyncio.gather(*map(has_ended, waiting))
    with pytest.raises(SandboxUnavailable):
        await sandbox.run("print(1)", Bounds())
    await sandbox._sweep()

    async def swept() -> bool:
        left = await sandbox._ask(lambda engine: engine.containers(all=True, filters={"label": LABEL}))
        return not {one["Id"] for one in left} & set(waiting)

    await eventually(swept)
    await sandbox.close()
