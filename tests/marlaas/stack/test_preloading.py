"""Services that are forked by a parent which has imported what they need, in a stack with empty services."""

import os
import re
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from marlaas.stack import control, os_processes, preloading
from marlaas.stack.os_processes import Identity
from marlaas.stack.placement import Machine
from marlaas.stack.state_files import Component, Service, StackPlan, read_stack
from tests.marlaas.stack.test_control import DUMMY, component_now, data, plan_for, started
from tests.marlaas.waiting import until

__all__ = ["data"]

IMPORTS = ["common.runtime.service"]
PROC = Path("/proc")


def forking(data: Path, *, imports: list[str] = IMPORTS, services: list[list[str]] | None = None) -> StackPlan:
    """A plan whose services are forked by one parent."""
    plan = plan_for(data, services=services)
    env = {name: value for name, value in plan.services[0].env.items() if name != "PYTHONPATH"}
    forked = [service.model_copy(update={"imports": imports, "env": env}) for service in plan.services]
    return plan.model_copy(update={"parents": [imports], "services": forked})


def process_of(component: Component) -> Identity:
    assert component.process is not None
    return component.process


def is_forked(component: Component) -> bool:
    return title(process_of(component).pid).startswith(f"marlaas {component.name}")


def title(pid: int) -> str:
    return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()


def parents_of(data: Path) -> list[int]:
    state = read_stack(data)
    assert state is not None
    children = (PROC / str(state.supervisor.pid) / "task" / str(state.supervisor.pid) / "children").read_text().split()
    return [int(pid) for pid in children if "marlaas.supervisor" in title(int(pid))]


def seen_of(pid: int) -> dict[str, object]:
    """What a process has from the one that started it."""
    status = (PROC / str(pid) / "status").read_text()
    fields: dict[str, object] = {
        name: re.findall(rf"^{name}:\s+(\S+)", status, re.MULTILINE)[0] for name in ("PPid", "SigBlk", "SigIgn", "SigCgt")
    }
    files = sorted(re.sub(r"\d+", "", str(file.readlink())) for file in (PROC / str(pid) / "fd").iterdir())
    return fields | {"files": files, "group": os.getpgid(pid) == pid, "folder": (PROC / str(pid) / "cwd").readlink()}


def test_forked_service_has_what_a_spawned_one_has_and_nothing_of_its_parent(data: Path) -> None:
    plan = forking(data, services=[DUMMY, DUMMY])
    spawned = plan.services[1].model_copy(update={"imports": []})
    state = started(plan.model_copy(update={"services": [plan.services[0], spawned]}))
    forked, other = state.component("dummy0"), state.component("dummy1")
    assert (is_forked(forked), is_forked(other)) == (True, False)
    assert seen_of(process_of(forked).pid) == seen_of(process_of(other).pid)
    marked = os_processes.marked_with(control.MARK, str(data))
    assert process_of(forked) in marked and process_of(other) in marked
    logs = [(data / "logs" / f"{name}.log").read_text() for name in ("dummy0", "dummy1")]
    assert [log.count('"event": "starting"') for log in logs] == [1, 1]


def test_killed_service_is_forked_again_and_spawned_where_its_parent_is_gone(data: Path) -> None:
    before = started(forking(data)).component("dummy0")
    for is_parent_there in (True, False):
        if not is_parent_there:
            (parent,) = parents_of(data)
            os.kill(parent, signal.SIGKILL)
        killed = process_of(before)
        os.kill(killed.pid, signal.SIGKILL)

        def is_back(old: Identity = killed) -> bool:
            now = component_now(data, "dummy0")
            return now.condition == "ready" and now.process != old

        until(is_back)
        before = component_now(data, "dummy0")
        assert is_forked(before) == is_parent_there


def test_nothing_of_a_forking_stack_outlives_its_supervisor(data: Path) -> None:
    for end in (signal.SIGKILL, signal.SIGTERM):
        state = started(forking(data))
        assert is_forked(state.component("dummy0")) and len(parents_of(data)) == 1
        os.kill(state.supervisor.pid, end)
        until(lambda: os_processes.marked_with(control.MARK, str(data)) == [])


def test_stack_stops_while_a_parent_imports(data: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "endless.py").write_text("import time; time.sleep(3600)")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    control.start(forking(data, imports=["endless"]))
    until(lambda: read_stack(data) is not None and component_now(data, "dummy0").condition == "starting")
    assert control.stop(data, timeout_s=30)
    assert os_processes.marked_with(control.MARK, str(data)) == []


def test_parent_with_threads_forks_nothing(data: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "threaded.py").write_text("import threading, time; threading.Thread(target=time.sleep, args=[3600], daemon=True).start()")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    state = started(forking(data, imports=["threaded"]))
    assert not is_forked(state.component("dummy0"))
    assert '"event": "spawned_instead"' in (data / "logs" / "supervisor.log").read_text()


def test_forked_services_draw_other_numbers(data: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "drawing.py").write_text(
        textwrap.dedent("""\
            import random, runpy, sys
            import numpy
            print(random.random(), numpy.random.random(), flush=True)
            runpy.run_module("tests.marlaas.dummy_service", run_name="__main__")
            """)
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))
    drawing = [sys.executable, "-m", "drawing"]
    state = started(forking(data, imports=["numpy.random", *IMPORTS], services=[drawing, drawing]))
    assert all(is_forked(state.component(name)) for name in ("dummy0", "dummy1"))
    first, second = ((data / "logs" / f"{name}.log").read_text().split("\n")[0].split() for name in ("dummy0", "dummy1"))
    assert first[0] != second[0] and first[1] != second[1]


def test_service_is_forked_while_another_parent_imports(
    data: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("modules")
    waiting = """\
        import pathlib, time
        while not pathlib.Path(__file__).with_name("go").exists():
            time.sleep(0.01)
        """
    (folder / "slow.py").write_text(textwrap.dedent(waiting))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    plan = forking(data, services=[DUMMY, DUMMY])
    slow = plan.services[0].model_copy(update={"imports": ["slow"]})
    starting = control.start(plan.model_copy(update={"services": [slow, plan.services[1]], "parents": [["slow"], IMPORTS]}))
    until(lambda: read_stack(data) is not None and component_now(data, "dummy1").condition == "ready")
    assert component_now(data, "dummy0").condition == "starting"
    (folder / "go").touch()
    state = control.wait_until_ready(starting, lambda _: None)
    assert is_forked(state.component("dummy0")) and is_forked(state.component("dummy1"))


@pytest.mark.parametrize("gpus", [(), ("0",)])
def test_samplers_and_trainers_are_spawned_where_there_is_a_gpu(gpus: tuple[str, ...]) -> None:
    made = preloading.parents(Machine((0, 1), gpus))
    forked = {service for service, imports in preloading.IMPORTS.items() if any(set(imports) <= set(modules) for modules in made)}
    assert forked == {"scheduler_svc", "env_svc", "gateway_svc", *(() if gpus else ("rollout_svc", "trainer_svc"))}
    assert any(set(preloading.MIGRATIONS) <= set(modules) for modules in made)


def test_service_that_adds_what_is_no_setting_is_spawned(data: Path) -> None:
    plan = forking(data)
    service: Service = plan.services[0]
    changed = service.model_copy(update={"env": service.env | {"OMP_NUM_THREADS": "1"}})
    assert not is_forked(started(plan.model_copy(update={"services": [changed]})).component("dummy0"))
