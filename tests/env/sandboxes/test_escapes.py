"""Escape attempts: code gets out of no sandbox and exceeds no limit."""

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from env_svc.sandboxes.interpreter import users
from env_svc.sandboxes.sandbox import Bounds, RunResult, Sandbox
from tests.support.env.sandboxes import BOUNDS, sandbox_of, still_works
from tests.support.waiting import eventually

SECRET = "the-secret-of-the-host"


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
async def test_killing_its_parent_harms_no_other_run(sandbox: Sandbox, target: str) -> None:
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
    assert await sandbox.run(SYSTEM_CALLS.replace("HOST", str(os.getpid())), BOUNDS) == RunResult("tried 13\n")


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
    ours, found = set(users(256)), list[int]()
    for status in Path("/proc").glob("[0-9]*"):
        try:
            if status.stat().st_uid in ours:
                found.append(int(status.name))
        except FileNotFoundError:
            continue
    return found
