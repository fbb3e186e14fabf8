"""Sandboxes: what code prints and how it ends; and that it gets out of none of them, whatever it tries."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from docker.errors import NotFound

from common.errors import Fatal
from env_svc.contract import WrongOptions
from env_svc.errors import SandboxUnavailable
from env_svc.sandboxes import kernel
from env_svc.sandboxes.bubblewrap import BubblewrapSandbox
from env_svc.sandboxes.current import current, use
from env_svc.sandboxes.docker import LABEL, DockerSandbox
from env_svc.sandboxes.interpreter import FIRST_USER
from env_svc.sandboxes.sandbox import MIB, Bounds, Ran, Sandbox
from env_svc.sandboxes.selection import start_sandbox
from env_svc.settings import EnvSettings
from tests.conftest import eventually
from tests.env.sandboxing import DOCKER_URL, KINDS, sandbox_of

BOUNDS = Bounds(time_s=10.0, memory_bytes=128 * MIB, output_bytes=4096, processes=8)
SECRET = "the-secret-of-the-host"


@pytest.fixture(params=KINDS)
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    sandbox = sandbox_of(request.param)
    await sandbox.start()
    try:
        yield sandbox
    finally:
        async with asyncio.timeout(250):  # whatever ran: no run holds up its container's removal
            await sandbox.close()


async def still_works(sandbox: Sandbox) -> bool:
    return await sandbox.run("print(6 * 7)", BOUNDS) == Ran("42\n")


# ---------------------------------------------------------------------------------------------------------- what is told


async def test_what_code_prints_is_told(sandbox: Sandbox) -> None:
    assert await sandbox.run("for n in range(3):\n    print(n, 'größer')", BOUNDS) == Ran("0 größer\n1 größer\n2 größer\n")
    assert await sandbox.run("", BOUNDS) == Ran("")


async def test_error_is_told_with_its_place(sandbox: Sandbox) -> None:
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
    assert runs == [Ran(f"{number}\n") for number in range(12)]


# -------------------------------------------------------------------------------------------------------------- escapes


async def test_network_is_out_of_reach(sandbox: Sandbox) -> None:
    reached = asyncio.Event()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        writer.close()

    async with await asyncio.start_server(connected, "0.0.0.0") as server:
        port = server.sockets[0].getsockname()[1]
        for host in ("127.0.0.1", "172.17.0.1", "host.docker.internal"):
            ran = await sandbox.run(f"import socket\nsocket.create_connection(('{host}', {port}), 1)\nprint('reached')", BOUNDS)
            assert not ran.is_complete and "reached" not in ran.output
        ran = await sandbox.run("import socket\nprint(socket.getaddrinfo('pypi.org', 443))", BOUNDS)
        assert not ran.is_complete
    assert not reached.is_set()


async def test_files_of_the_host_are_out_of_reach(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    tmp_path.chmod(0o777)
    shared = Path(f"/tmp/marlaas-secret-{os.getpid()}")
    shared.write_text(SECRET)
    places = [tmp_path / "secret", shared, f"/proc/{os.getpid()}/root{tmp_path}/secret", f"/proc/1/root{tmp_path}/secret"]
    for place in [*places, Path(__file__), Path.home() / ".bashrc", "/etc/shadow", "/root/.ssh/id_rsa", "/var/run/docker.sock"]:
        ran = await sandbox.run(f"print(open('{place}').read())", BOUNDS)
        assert not ran.is_complete and not ran.output, f"it could read {place}"
    for place in (tmp_path / "new", "/usr/new", "/new", "/etc/new", "/proc/sys/kernel/hostname"):
        ran = await sandbox.run(f"open('{place}', 'w').write('x')", BOUNDS)
        assert not ran.is_complete, f"it could write {place}"
    assert not (tmp_path / "new").exists()
    shared.unlink()


async def test_environment_variables_stay_outside(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARLAAS_DATABASE_PASSWORD", SECRET)
    for source in (
        "import os\nprint(dict(os.environ))",
        "import os\nprint(os.getenv('MARLAAS_DATABASE_PASSWORD'))",
        "print(open('/proc/self/environ').read())",
        "print(open('/proc/1/environ').read())",
        f"print(open('/proc/{os.getpid()}/environ').read())",
        f"print(open('/proc/{os.getppid()}/environ').read())",
    ):
        ran = await sandbox.run(source, BOUNDS)
        assert SECRET not in ran.output + ran.error


async def test_open_files_of_the_service_are_not_inherited(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    descriptor = os.open(tmp_path / "secret", os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    try:
        source = "import os\nfor number in range(256):\n    try:\n        print(os.read(number, 100))\n    except OSError:\n        pass"
        ran = await sandbox.run(source, BOUNDS)
    finally:
        os.close(descriptor)
    assert SECRET not in ran.output + ran.error


async def test_fork_bomb_ends_with_its_run(sandbox: Sandbox) -> None:
    source = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    ran = await sandbox.run(source, replace(BOUNDS, time_s=1.0))
    assert not ran.is_complete
    assert await still_works(sandbox)
    await eventually(lambda: not processes_of_runs())


async def test_thread_bomb_is_bounded(sandbox: Sandbox) -> None:
    source = (
        "import threading, time\nstarted = 0\ntry:\n    for _ in range(1000):\n"
        "        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n        started += 1\n"
        "except RuntimeError:\n    pass\nprint(started, flush=True)\nimport os\nos._exit(0)"
    )
    ran = await sandbox.run(source, BOUNDS)
    assert not ran.is_complete or int(ran.output) < BOUNDS.processes


async def test_daemon_does_not_outlive_its_run(sandbox: Sandbox) -> None:
    source = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\nprint('parent')"
    started = time.monotonic()
    await sandbox.run(source, BOUNDS)
    assert time.monotonic() - started < 100
    await eventually(lambda: not processes_of_runs())


@pytest.mark.parametrize("source", ["x = 'a' * 10**10", "x = []\nwhile True:\n    x.append('a' * 10**6)", "x = 2 ** (8 * 10**10)"])
async def test_memory_is_bounded(sandbox: Sandbox, source: str) -> None:
    ran = await sandbox.run(f"{source}\nprint('had it')", BOUNDS)
    assert not ran.is_complete and "had it" not in ran.output
    assert ran.stopped in ("memory", "time")
    assert await still_works(sandbox)


async def test_disk_is_bounded(sandbox: Sandbox) -> None:
    source = "n = 0\nwhile True:\n    n += 1\n    open(f'/tmp/{n}', 'wb').write(b'x' * 10**6)"
    ran = await sandbox.run(source, BOUNDS)
    assert not ran.is_complete
    assert await still_works(sandbox)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_endless_output_is_cut_and_ends_the_run(sandbox: Sandbox, stream: str) -> None:
    ran = await sandbox.run(f"import sys\nwhile True:\n    print('x' * 1000, file=sys.{stream}, flush=True)", BOUNDS)
    assert ran.stopped == "output"
    assert len(ran.output.encode()) <= BOUNDS.output_bytes and len(ran.error) <= BOUNDS.output_bytes
    assert await still_works(sandbox)


async def test_pipes_that_are_full_do_not_hold_up_the_end(sandbox: Sandbox) -> None:
    flood = "import os\nwhile True:\n    os.write(1, b'x' * 65536)\n    os.write(2, b'x' * 65536)"
    async with asyncio.timeout(250):
        for source in (flood, "print('x' * 10**7, flush=True)") * 4:
            assert not (await sandbox.run(source, BOUNDS)).is_complete


@pytest.mark.parametrize(
    "source",
    [
        "while True:\n    pass",
        "import time\ntime.sleep(600)",
        "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass",
        "import signal\nfor number in (15, 24):\n    signal.signal(number, signal.SIG_IGN)\nwhile True:\n    pass",
        "sum(range(10**11))",
    ],
)
async def test_endless_loop_is_ended(sandbox: Sandbox, source: str) -> None:
    started = time.monotonic()
    ran = await sandbox.run(source, Bounds(time_s=0.5))
    assert not ran.is_complete and ran.output == ""
    assert time.monotonic() - started < 100
    assert await still_works(sandbox)


@pytest.mark.parametrize("target", ["os.getppid()", "1", "-1", "0", "the test", "the test's parent"])
async def test_killing_its_parent_harms_nobody_else(sandbox: Sandbox, target: str) -> None:
    target = {"the test": str(os.getpid()), "the test's parent": str(os.getppid())}.get(target, target)
    taken = []
    previous = signal.signal(signal.SIGTERM, lambda *_: taken.append(1))
    try:
        for number in ("SIGTERM", "SIGKILL"):
            await sandbox.run(f"import os, signal\nos.kill({target}, signal.{number})", BOUNDS)
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert not taken
    assert await still_works(sandbox)


async def test_privileges_cannot_be_had(sandbox: Sandbox) -> None:
    for attempt in ("os.setuid(0)", "os.chroot('/tmp')", "os.mknod('/tmp/sda', 0o60666, os.makedev(8, 0))", "os.nice(-10)"):
        ran = await sandbox.run(f"import os\n{attempt}\nprint('did it')", BOUNDS)
        assert not ran.is_complete and "did it" not in ran.output
    ran = await sandbox.run("import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))\nprint('did it')", BOUNDS)
    assert "did it" not in ran.output


SYSTEM_CALLS = """
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
numbers = {'x86_64': 0, 'aarch64': 1}[platform.machine()]
attempts = {
    'a user namespace': lambda: libc.unshare(0x10000000),
    'a mount namespace': lambda: libc.unshare(0x20000),
    'a namespace by clone': lambda: libc.syscall((56, 220)[numbers], 0x10000000 | 17, 0, 0, 0, 0),
    'a mount': lambda: libc.mount(b'none', b'/tmp', b'tmpfs', 0, None),
    'tracing the host': lambda: libc.ptrace(16, HOST, 0, 0),
    'reading the host': lambda: libc.syscall((310, 270)[numbers], HOST, 0, 0, 0, 0, 0),
    'a handle of the host': lambda: libc.syscall(438, 0, HOST, 0),
    'a BPF program': lambda: libc.syscall((321, 280)[numbers], 0, 0, 0),
    'an io_uring': lambda: libc.syscall(425, 1, 0),
    'a key': lambda: libc.syscall((250, 219)[numbers], 0, -3, 0, 0, 0),
    'limits of the host': lambda: libc.syscall((302, 261)[numbers], HOST, 7, 0, 0),
    'another root': lambda: libc.chroot(b'/tmp'),
    'numbers of another machine': lambda: libc.syscall(0x40000000 | 101, 0, 0, 0, 0) if numbers == 0 else -1,
}
for name, attempt in attempts.items():
    child = os.fork()  # a call by another machine's numbers ends the process
    if child == 0:
        os._exit(1 if attempt() >= 0 else 0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1:
        print('it had', name)
print('tried', len(attempts))
"""


@pytest.mark.parametrize("kind", ["namespaces", "landlock"])
async def test_system_calls_that_lead_out_are_refused(kind: str) -> None:
    sandbox = sandbox_of(kind)
    await sandbox.start()
    assert await sandbox.run(SYSTEM_CALLS.replace("HOST", str(os.getpid())), BOUNDS) == Ran("tried 13\n")


async def test_weaker_kind_has_no_sockets_no_other_programs_and_stays_in_its_group() -> None:
    sandbox = sandbox_of("landlock")
    await sandbox.start()
    for source in (
        "import socket\nsocket.socket(socket.AF_UNIX)",
        "import socket\nsocket.create_connection(('127.0.0.1', 22))",
        "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', '1'])",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', '1'])",
        "import os\nos.setsid()",
        "import os\nos.setpgid(0, 0)",
        "import multiprocessing\nmultiprocessing.Lock()",
    ):
        ran = await sandbox.run(source, BOUNDS)
        assert not ran.is_complete
        assert sandbox.unsupported(ran.error) is not None, ran
    assert sandbox.unsupported((await sandbox.run("open('/etc/passwd')", BOUNDS)).error) is None
    assert await still_works(sandbox)


async def test_cancelled_run_is_ended(sandbox: Sandbox) -> None:
    running = asyncio.ensure_future(sandbox.run("import time\nwhile True:\n    pass", Bounds(time_s=60.0)))
    await asyncio.sleep(0.5)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert running.cancelled()
    await eventually(lambda: not processes_of_runs())
    assert await still_works(sandbox)


def processes_of_runs() -> list[int]:
    """Processes of bubblewrap's runs, which have users of their own; those of containers are their engine's to end."""
    found: list[int] = []
    for status in Path("/proc").glob("[0-9]*"):
        try:
            if FIRST_USER <= status.stat().st_uid < FIRST_USER + 4096:
                found.append(int(status.name))
        except FileNotFoundError:
            continue
    return found


# --------------------------------------------------------------------------------------------------------------- choice


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
            await sandbox._asked(lambda engine: engine.wait(container, timeout=90))

    await asyncio.gather(*map(has_ended, waiting))
    with pytest.raises(SandboxUnavailable):
        await sandbox.run("print(1)", Bounds())
    await sandbox._sweep()

    async def swept() -> bool:
        left = await sandbox._asked(lambda engine: engine.containers(all=True, filters={"label": LABEL}))
        return not {one["Id"] for one in left} & set(waiting)

    await eventually(swept)
    await sandbox.close()
