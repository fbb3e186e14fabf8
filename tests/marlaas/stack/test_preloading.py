"""Services that are forked by a parent which has imported what they need, in a stack with empty services."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from marlaas.stack import control, os_processes, preloading
from marlaas.stack.devices import Gpu
from marlaas.stack.os_processes import Identity
from marlaas.stack.placement import Machine
from marlaas.stack.state_files import Component, StackPlan, read_stack
from tests.marlaas.stack.plans import DUMMY, component_now, plan_for, started
from tests.marlaas.waiting import until

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


@pytest.fixture
def modules(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules that every process of the stack finds."""
    folder = tmp_path_factory.mktemp("modules")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


DRAWING = """\
import random, runpy
import numpy
print(random.random(), numpy.random.random(), flush=True)
runpy.run_module("tests.marlaas.dummy_service", run_name="__main__")
"""


def test_forked_service_has_what_a_spawned_one_has_and_nothing_of_its_parent(data: Path, modules: Path) -> None:
    (modules / "drawing.py").write_text(DRAWING)
    plan = forking(data, imports=["numpy.random", *IMPORTS], services=[[sys.executable, "-m", "drawing"]] * 4)
    forked, other, unlisted, loaded = plan.services
    unlisted = unlisted.model_copy(update={"imports": []})
    loaded = loaded.model_copy(update={"env": loaded.env | {"OMP_NUM_THREADS": "1"}})  # no setting: read as a library is loaded
    state = started(plan.model_copy(update={"services": [forked, other, unlisted, loaded]}))
    found = [state.component(f"dummy{number}") for number in range(4)]
    assert [is_forked(one) for one in found] == [True, True, False, False]

    def are_alike() -> bool:
        """For a moment a service also has the socket of a request for its health."""
        first, *rest = (seen_of(process_of(one).pid) for one in found)
        return rest == [first] * 3

    until(are_alike, timeout_s=60)
    marked = os_processes.marked_with(control.MARK, str(data))
    assert all(process_of(one) in marked for one in found)
    logs = [(data / "logs" / f"{one.name}.log").read_text() for one in found]
    assert [log.count('"event": "starting"') for log in logs] == [1] * 4
    drawn = [log.split("\n")[0].split() for log in logs]
    assert len({ours for ours, _ in drawn}) == len({numpys for _, numpys in drawn}) == 4
    assert control.stop(data)
    assert os_processes.marked_with(control.MARK, str(data)) == []


def test_killed_service_is_forked_again_and_spawned_where_its_parent_is_gone_and_none_outlives_the_supervisor(data: Path) -> None:
    state = started(forking(data))
    before = state.component("dummy0")
    assert is_forked(before)
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
    os.kill(state.supervisor.pid, signal.SIGKILL)
    until(lambda: os_processes.marked_with(control.MARK, str(data)) == [])


def test_killed_supervisor_takes_forked_services_and_their_parent_along_also_where_it_imports(data: Path, modules: Path) -> None:
    (modules / "endless.py").write_text("import time; time.sleep(3600)")
    plan = forking(data)
    state = started(plan.model_copy(update={"parents": [IMPORTS, ["endless"]]}))
    assert is_forked(state.component("dummy0")) and len(parents_of(data)) == 2
    os.kill(state.supervisor.pid, signal.SIGKILL)
    until(lambda: os_processes.marked_with(control.MARK, str(data)) == [])


def test_stack_stops_while_a_parent_imports(data: Path, modules: Path) -> None:
    (modules / "endless.py").write_text("import time; time.sleep(3600)")
    control.start(forking(data, imports=["endless"]))
    until(lambda: read_stack(data) is not None and component_now(data, "dummy0").condition == "starting")
    assert control.stop(data)
    assert os_processes.marked_with(control.MARK, str(data)) == []


SLOW = """\
import pathlib, time
while not pathlib.Path(__file__).with_name("go").exists():
    time.sleep(0.01)
"""


def test_services_are_forked_while_another_parent_imports_and_not_by_one_with_threads(data: Path, modules: Path) -> None:
    (modules / "slow.py").write_text(SLOW)
    (modules / "threaded.py").write_text("import threading, time; threading.Thread(target=time.sleep, args=[3600], daemon=True).start()")
    plan = forking(data, services=[DUMMY] * 3)
    parents = [["slow"], ["threaded"], IMPORTS]
    services = [one.model_copy(update={"imports": imports}) for one, imports in zip(plan.services, parents, strict=True)]
    starting = control.start(plan.model_copy(update={"services": services, "parents": parents}))
    until(lambda: read_stack(data) is not None and component_now(data, "dummy2").condition == "ready")
    assert component_now(data, "dummy0").condition == "starting"
    (modules / "go").touch()
    state = control.wait_until_ready(starting, lambda _: None)
    assert [is_forked(state.component(f"dummy{number}")) for number in range(3)] == [True, False, True]
    assert '"event": "spawned_instead"' in (data / "logs" / "supervisor.log").read_text()


@pytest.mark.parametrize("gpus", [(), (Gpu("0"),)])
def test_samplers_and_trainers_are_spawned_where_there_is_a_gpu(gpus: tuple[Gpu, ...]) -> None:
    made = preloading.parents(Machine((0, 1), gpus))
    forked = {service for service, imports in preloading.IMPORTS.items() if any(set(imports) <= set(modules) for modules in made)}
    assert forked == {"scheduler_svc", "env_svc", "gateway_svc", *(() if gpus else ("rollout_svc", "trainer_svc"))}
    assert any(set(preloading.MIGRATIONS) <= set(modules) for modules in made)
