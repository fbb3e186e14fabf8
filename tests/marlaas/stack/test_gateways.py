"""The gateway of a stack on this machine: its address, its key, and who is let in."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from marlaas.stack import control, servers, state_files
from marlaas.stack.os_processes import Identity
from marlaas.stack.state_files import Component, Gateway, Stack, StackError, StackPlan, log_path
from marlaas.stack.supervised_process import ProcessSpec
from tests.marlaas.waiting import until
from tests.support.marlaas.command import marlaas
from tests.support.paths import ROOT

GRACE_S = ProcessSpec.grace_s
"""Time that the supervisor gives a service to end."""


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"
    control.stop(tmp_path / "data")


def plan_of(data: Path, **options: bool) -> StackPlan:
    """A scheduler and a gateway: no engine is loaded."""
    plan = control.make_plan(data, ROOT / "pools.toml", **options)
    return plan.model_copy(update={"services": [one for one in plan.services if one.name in ("scheduler", "gateway")]})


def started(plan: StackPlan) -> Stack:
    return control.wait_until_ready(control.start(plan), lambda _: None)


def status(stack: Stack, key: str = "", path: str = "/v1/tasks") -> int:
    return httpx.get(f"{stack.gateway.url}{path}", headers={"Authorization": f"Bearer {key}"} if key else {}, timeout=60).status_code


def test_stack_with_keys_lets_in_holders_of_keys_and_keeps_its_address(data: Path, tmp_path: Path) -> None:
    stack = started(plan_of(data))
    assert stack.component("gateway").condition == "ready"
    assert status(stack, path="/readyz") == 200
    assert status(stack) == 401
    assert marlaas("tenants", "create", "acme", "--data", str(data), cwd=tmp_path).returncode == 0
    made = marlaas("keys", "create", "acme", "web", "--http", "--data", str(data), cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    [key] = re.findall(r"^mk-\S+$", made.stdout, re.MULTILINE)
    until(lambda: status(stack, key) == 200)  # once the gateway has been told of the key
    shown = marlaas("dashboard", "--no-open", "--data", str(data), cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (0, f"{stack.gateway.url}/ui\n")
    assert f"HTTP: {stack.gateway.url}\n" in marlaas("status", "--data", str(data), cwd=tmp_path).stdout
    assert '"event": "listening"' in log_path(data, "gateway").read_text()
    control.stop(data)
    assert not servers.is_listening(stack.gateway.port)

    assert started(plan_of(data)).gateway == stack.gateway
    until(lambda: status(stack, key) == 200)


def test_stack_without_keys_lets_in_everybody_on_this_machine(data: Path) -> None:
    stack = started(plan_of(data, without_keys=True))
    assert status(stack) == 200
    assert state_files.dashboard_of(stack) == f"http://127.0.0.1:{stack.gateway.port}/ui"


def test_stack_without_keys_does_not_start_a_gateway_for_others(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(state_files.GATEWAY_HOST, "0.0.0.0")
    with pytest.raises(StackError, match=r"gateway does not run.*MARLAAS_GATEWAY_HOST"):
        started(plan_of(data, without_keys=True))


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, "http://127.0.0.1:81"),
        ({"HOST": "0.0.0.0"}, "http://127.0.0.1:81"),
        ({"HOST": "::1", "TLS_CERT": "cert.pem"}, "https://[::1]:81"),
        ({"HOST": "10.0.0.5", "TLS_CERT": ""}, "http://10.0.0.5:81"),
    ],
)
def test_address_follows_from_the_gateways_settings(settings: dict[str, str], url: str) -> None:
    assert state_files.gateway_at(81, {f"MARLAAS_GATEWAY_{name}": value for name, value in settings.items()}).url == url


def test_port_in_use_is_named_with_the_way_out(data: Path) -> None:
    plan = plan_of(data)
    with socket.create_server((servers.HOST, 0)) as other:
        taken = Gateway(port=other.getsockname()[1], url="")
        with pytest.raises(StackError, match=rf"port {taken.port}, which is for the gateway.*--gateway-port"):
            control.start(plan.model_copy(update={"gateway": taken}))


def test_drain_ends_before_the_supervisor_kills_unless_the_user_says_otherwise(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drain_s() -> float:
        return float(next(one.env[state_files.GATEWAY_DRAIN] for one in plan_of(data).services if one.name == "gateway"))

    monkeypatch.delenv(state_files.GATEWAY_DRAIN, raising=False)
    assert drain_s() < GRACE_S
    monkeypatch.setenv(state_files.GATEWAY_DRAIN, "3")
    assert drain_s() == 3


def test_dashboard_of_a_gateway_that_is_not_ready_says_why() -> None:
    process, gateway = Identity(pid=1, started="now"), Gateway(port=81, url="http://127.0.0.1:81")
    stack = Stack(
        supervisor=process, nats_port=1, postgres_port=2, nats_url="nats://x", database_url="postgresql://x", started_s=0, gateway=gateway,
        components=[Component(name="gateway", condition="restarting")],
    )  # fmt: skip
    with pytest.raises(StackError, match="is restarting"):
        state_files.dashboard_of(stack)


def test_dashboard_of_a_stack_that_has_none_is_one_line(tmp_path: Path) -> None:
    shown = marlaas("dashboard", "--no-open", "--data", str(tmp_path), cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr.startswith("marlaas: no stack runs on ")
