"""Plans of stacks whose services are dummies."""

import sys
from pathlib import Path

from marlaas.stack import control, servers, state_files
from marlaas.stack.state_files import (
    Component,
    Service,
    Stack,
    StackPlan,
    read_stack,
)
from tests.support.paths import ROOT

DUMMY = [sys.executable, "-m", "tests.marlaas.dummy_service"]


def plan_for(data: Path, *, services: list[list[str]] | None = None, prepare: list[str] | None = None) -> StackPlan:
    nats_port = servers.lasting_port()
    env = {"MARLAAS_NATS_URL": servers.nats_url(nats_port), "MARLAAS_REPLICA": "dummy", "PYTHONPATH": str(ROOT)}
    return StackPlan(
        data=data,
        nats_port=nats_port,
        postgres_port=servers.lasting_port(),
        gateway=state_files.gateway_at(servers.lasting_port(), {}),
        pools_file=ROOT / "pools.toml",
        prepare=prepare or [],
        services=[Service(name=f"dummy{number}", argv=argv, env=env) for number, argv in enumerate(services or [DUMMY])],
    )


def ignore(_: Stack) -> None:
    pass


def started(plan: StackPlan) -> Stack:
    return control.wait_until_ready(control.start(plan), ignore)


def component_now(data: Path, name: str) -> Component:
    state = read_stack(data)
    assert state is not None
    return state.component(name)
