"""The one-machine stack with its real servers and empty services."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from common.bus import Bus
from common.messages import ProcessLife
from common.messages.lives import LIVES
from common.streams import HISTORY_BUCKET
from marlaas.stack import control, os_processes, servers, state_files
from marlaas.stack.servers import HOST
from marlaas.stack.state_files import (
    Component,
    Stack,
    StackError,
    is_locked,
    prepare_folder,
    read_stack,
    running_stack,
    write_stack,
)
from marlaas.stack.supervised_process import HEALTH_EVERY_S, last_words
from tests.marlaas.stack.plans import DUMMY, component_now, ignore, plan_for, started
from tests.marlaas.waiting import until
from tests.support.disk import disk_or_skip, empty, fill
from tests.support.paths import ROOT


def identities(state: Stack) -> list[os_processes.Identity]:
    return [state.supervisor, *(component.process for component in state.components if component.process)]


def test_everything_starts_in_order_and_stops_without_a_trace(data: Path) -> None:
    plan = plan_for(data, prepare=[sys.executable, "-c", "print('migrated')"], services=[DUMMY, DUMMY])
    cores = os.sched_getaffinity(0)
    first, second = plan.services
    plan = plan.model_copy(update={"services": [first, second.model_copy(update={"leaves": [max(cores)], "turn": 1})]})
    seen: list[list[str]] = []
    data.chmod(0o755)  # as an older version made it
    state = control.wait_until_ready(control.start(plan), lambda state: seen.append([c.condition for c in state.components]))
    assert [c.condition for c in state.components] == ["ready", "ready", "done", "ready", "ready"]
    assert all("ready" in conditions[:2] or conditions[3] == "waiting" for conditions in seen)
    assert all(conditions[3] == "ready" or conditions[4] == "waiting" for conditions in seen), "its turn is later"
    assert running_stack(data).nats_url == servers.nats_url(plan.nats_port)
    assert (data / "logs" / "migrations.log").read_text() == "migrated\n"
    assert data.stat().st_mode & 0o777 == 0o700
    given = [os.sched_getaffinity(one.process.pid) for name in ("dummy0", "dummy1") if (one := state.component(name)).process is not None]
    assert given == [cores, cores - {max(cores)} or cores]
    service = state.component("dummy0").process
    assert service is not None and b"\0CUDA_DEVICE_ORDER=PCI_BUS_ID\0" in Path(f"/proc/{service.pid}/environ").read_bytes()

    assert control.stop(data)
    assert not any(os_processes.is_running(one) for one in identities(state))
    assert not servers.is_listening(plan.nats_port)
    assert not servers.is_listening(plan.postgres_port)
    assert not control.stop(data)
    with pytest.raises(StackError, match=r"no stack runs on .*marlaas up"):
        running_stack(data)


@pytest.mark.parametrize("mask", [0, 0o022])
def test_folder_of_a_stack_is_its_users_alone_whoever_made_it(tmp_path: Path, mask: int) -> None:
    given = os.umask(mask)
    try:
        new, old = tmp_path / "home" / "demo", tmp_path / "old"
        old.mkdir(mode=0o755)
        for folder in (new, old):
            prepare_folder(folder)
    finally:
        os.umask(given)
    assert {oct(path.stat().st_mode & 0o777) for path in (new.parent, new, new / "logs", old)} == {"0o700"}


def test_settings_reach_every_service_and_come_before_the_plans_own(tmp_path: Path) -> None:
    plan = control.make_plan(
        tmp_path, ROOT / "pools.toml", settings={"MARLAAS_SCHEDULER_POLICY": "sequential", "MARLAAS_ROLLOUT_CORES": ""}
    )
    assert {service.name for service in plan.services} == {"scheduler", "gateway", "env", "rollout-tiny", "trainer-tiny"}
    for service in plan.services:
        assert service.env["MARLAAS_SCHEDULER_POLICY"] == "sequential"
        assert service.env["MARLAAS_ROLLOUT_CORES"] == ""


@pytest.mark.parametrize(
    ("name", "default"),
    [("MARLAAS_ENV_ALLOWED", "installed,_operator=*"), ("MARLAAS_ENV_DATASETS", "_operator=*")],
    ids=["names", "data sets"],
)
@pytest.mark.parametrize("listed", [None, "", "some/list"])
def test_tasks_of_this_user_may_name_anything_unless_the_user_lists_names(
    name: str, default: str, listed: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name, raising=False)
    if listed is not None:
        monkeypatch.setenv(name, listed)
    plan = control.make_plan(tmp_path, ROOT / "pools.toml")
    assert [service.env[name] for service in plan.services if service.name == "env"] == [default if listed is None else listed]


def test_second_start_on_the_same_directory_is_refused(data: Path) -> None:
    plan = plan_for(data)
    started(plan)
    with pytest.raises(StackError, match=r"runs on .* already"):
        control.start(plan)


def test_port_in_use_is_named_with_the_way_out(data: Path) -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(StackError, match=rf"port {port}, which is for PostgreSQL.*--postgres-port"):
            control.start(plan_for(data).model_copy(update={"postgres_port": port}))


def test_killed_service_is_restarted_and_the_others_stay(data: Path) -> None:
    before = started(plan_for(data))
    killed = before.component("dummy0").process
    assert killed is not None
    os.kill(killed.pid, signal.SIGKILL)

    def is_back() -> bool:
        now = component_now(data, "dummy0")
        return now.condition == "ready" and now.process != killed

    until(is_back)
    now = read_stack(data)
    assert now is not None
    assert now.component("dummy0").restarts == 1
    assert now.component("postgres").process == before.component("postgres").process
    assert '"event": "component_died"' in (data / "logs" / "supervisor.log").read_text()


def test_service_that_dies_three_times_is_faulty_and_its_next_process_reports_that(data: Path) -> None:
    plan = plan_for(data)
    seen = set[str]()
    before = started(plan).component("dummy0").process
    for deaths in range(1, 7):
        assert before is not None
        os.kill(before.pid, signal.SIGKILL)

        def is_another(old: os_processes.Identity = before) -> bool:
            now = component_now(data, "dummy0")
            seen.add(now.condition)
            return now.condition == "ready" and now.process != old

        until(is_another)
        before = component_now(data, "dummy0").process
        if deaths >= 3 and "faulty" in seen:  # which it is for a second or two
            break
    assert "faulty" in seen

    async def life() -> ProcessLife | None:
        async with await Bus.connect(servers.nats_url(plan.nats_port), "test") as bus:
            return next(iter(await bus.kv.values(HISTORY_BUCKET, ProcessLife, LIVES)), None)

    found = asyncio.run(life())
    assert found is not None and (found.service, found.deaths, found.cause) == ("dummy", deaths, "killed by SIGKILL")
    assert found.ended is None and found.start_s is not None


def test_killed_servers_are_restarted(data: Path) -> None:
    before = started(plan_for(data))
    for name in ("nats", "postgres"):
        process = before.component(name).process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
    for name in ("nats", "postgres"):
        until(lambda name=name: component_now(data, name).restarts >= 1 and component_now(data, name).condition == "ready")


def test_nothing_outlives_a_killed_supervisor(data: Path) -> None:
    state = started(plan_for(data, services=[DUMMY, DUMMY]))
    os.kill(state.supervisor.pid, signal.SIGKILL)
    until(lambda: not any(os_processes.is_running(one) for one in identities(state)))
    with pytest.raises(StackError, match="no stack runs"):
        running_stack(data)


def test_start_after_a_crash_ends_what_was_left_and_keeps_the_ports(data: Path) -> None:
    plan = plan_for(data)
    state = started(plan)
    os.kill(state.supervisor.pid, signal.SIGKILL)
    until(lambda: not is_locked(data))
    orphan = subprocess.Popen(["sleep", "600"], env={**os.environ, control.MARK: str(data)})
    try:
        until(lambda: bool(os_processes.marked_with(control.MARK, str(data))))  # a new process has no environment for a moment
        restarted = started(plan)
        assert orphan.wait(timeout=250) == -signal.SIGTERM
    finally:
        orphan.kill()
    assert restarted.supervisor != state.supervisor
    assert restarted.nats_url == state.nats_url


def test_process_ids_from_before_a_reboot_are_left_alone(data: Path) -> None:
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        now = os_processes.identify(bystander.pid)
        assert now is not None
        before = now.model_copy(update={"started": "another-boot:17"})
        component = Component(name="nats", condition="ready", process=before)
        urls = {"nats_url": "nats://x", "database_url": "postgresql://x"}
        gateway = state_files.gateway_at(3, {})
        stack = Stack(supervisor=before, nats_port=1, postgres_port=2, started_s=0, gateway=gateway, components=[component], **urls)
        write_stack(data, stack)
        assert control.end_leftovers(data) == []
        with pytest.raises(StackError, match="no stack runs"):
            running_stack(data)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_service_that_cannot_start_is_named_with_its_last_words_and_nothing_stays(data: Path) -> None:
    plan = plan_for(data, services=[DUMMY, [*DUMMY, "--broken"]])
    with pytest.raises(StackError, match=r"dummy1 does not run.*model folder /nowhere does not exist"):
        control.wait_until_ready(control.start(plan), ignore)
    assert not servers.is_listening(plan.nats_port)
    assert not servers.is_listening(plan.postgres_port)


def test_failing_migrations_stop_the_start(data: Path) -> None:
    plan = plan_for(data, prepare=[sys.executable, "-c", "raise SystemExit('revision 0007 is unknown')"])
    with pytest.raises(StackError, match=r"migrations does not run.*revision 0007 is unknown"):
        control.wait_until_ready(control.start(plan), ignore)
    state = read_stack(data)
    assert state is not None
    assert state.component("dummy0").condition == "waiting"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", "its log is empty"),
        ("one\nRuntimeError: no such device\n\n", "RuntimeError: no such device"),
        ('{"level": "error", "event": "fatal", "error": "GPU is gone"}\nException ignored in: <function>\n', "GPU is gone"),
        ('{"level": "info", "event": "starting"}\nplain [text\n', "plain [text"),
        (
            '{"level": "error", "event": "crashed", "exception": [{"exc_type": "ValueError", "exc_value": "no size", "frames": [{}]}, '
            '{"exc_type": "OSError", "exc_value": "gone", "frames": []}]}\n',
            "ValueError: no size, because of OSError: gone",
        ),
    ],
)
def test_last_words_are_the_last_error_that_was_logged(log: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text('{"level": "error", "event": "fatal", "error": "of an earlier life"}\n')
    start = path.stat().st_size
    with path.open("a") as file:
        file.write(log)
    assert last_words(path, start) == words


def test_stack_survives_a_full_disk_and_resumes_when_there_is_room(data: Path) -> None:
    """Everything is on it: logs, PostgreSQL, and the supervisor's own state."""
    with disk_or_skip(data):
        before = started(plan_for(data))
        victims = [one for name in ("postgres", "dummy0") if (one := before.component(name).process) is not None]
        fill(data)
        for victim in victims:
            os_processes.send(victim, signal.SIGKILL)
        until(lambda: not any(Path(f"/proc/{victim.pid}").exists() for victim in victims))  # the supervisor knows of their end
        time.sleep(5 * HEALTH_EVERY_S)  # starts fail meanwhile: nothing can be written that would say so
        assert is_locked(data) and os_processes.is_running(before.supervisor)
        said = servers.full_disk(data)
        assert said is not None and "disk full" in said and str(data) in said
        empty(data)

        def is_whole() -> bool:
            now = read_stack(data)
            return now is not None and now.is_ready and not any(one.process in victims for one in now.components)

        until(is_whole)
        assert read_stack(data) is not None and running_stack(data).supervisor == before.supervisor
        assert "disk full" in (data / "logs" / "supervisor.log").read_text() and servers.full_disk(data) is None
        control.stop(data)


def test_nats_is_restarted_when_its_disk_was_full(data: Path) -> None:
    store = data / "nats" / servers.STORE
    with disk_or_skip(store):
        started(plan_for(data))
        before = component_now(data, "nats").process

        def is_another() -> bool:
            return (now := component_now(data, "nats")).condition == "ready" and now.process != before

        while not is_another():  # repeated: the supervisor may have missed the full disk
            fill(store)
            time.sleep(3 * HEALTH_EVERY_S)  # until the supervisor has looked: nothing else signals it
            assert component_now(data, "nats").process == before
            empty(store)
            with suppress(AssertionError):
                until(is_another, timeout_s=60)
        control.stop(data)
