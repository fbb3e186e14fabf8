"""Environments in a virtual environment of their own: what tasks give and get."""

import os
from pathlib import Path

import pytest
import tabulate

from common import spec
from common.fairness.fair_queue import Claimant
from env_svc.calls import OpenCall, Opened, Scored, StepCall
from env_svc.contract import Reply
from env_svc.execution.executor import EnvironmentExecutor
from env_svc.execution.workers import Workers
from env_svc.hosted.config import HostedConfig
from env_svc.hosted.confinement import Confinement
from env_svc.hosted.pool import HostPool
from tests.env.hosted.playing import hosting, play, reason, step

Way = Confinement | None
"""The sandbox of the hosts, or none."""


@pytest.fixture(params=["sandboxed", "not sandboxed"])
def way(request: pytest.FixtureRequest) -> Way:
    return request.getfixturevalue("sandbox") if request.param == "sandboxed" else None


async def test_constructor_that_takes_any_option_gets_the_operators_alone(workers: Workers, python: str, way: Way) -> None:
    hosted = HostedConfig(python=python, environment="guest:Loose", options={"greeting": "Hi"})
    async with hosting(workers, sandbox=way, guest=hosted) as executor:
        (opened,) = await play(executor, [OpenCall(3, 0)])
        assert isinstance(opened, Opened) and opened.messages[0].content.startswith("Hi 3 ")
        (refused,) = await play(executor, [OpenCall(3, 0)], secret="x")
        assert "a task may give no option, such as 'secret'" in reason(refused, is_infrastructure=False)


async def test_token_files_in_the_services_home_are_not_found(
    workers: Workers, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("hf_secret")
    monkeypatch.setenv("HOME", str(tmp_path))
    async with hosting(workers, guest=HostedConfig(python=python, environment="guest:Guest")) as executor:
        (outcome,) = await play(executor, [step("read ~/token")])
        assert "FileNotFoundError" in reason(outcome, is_infrastructure=False)
    granted = HostedConfig(python=python, environment="guest:Guest", variables={"HOME": str(tmp_path)})
    async with hosting(workers, guest=granted) as executor:
        (outcome,) = await play(executor, [step("read ~/token")])
        assert "hf_secret" in reason(outcome, is_infrastructure=False)


async def test_environment_runs_with_dependencies_of_its_own(workers: Workers, python: str, way: Way) -> None:
    async with hosting(workers, sandbox=way, guest=HostedConfig(python=python, environment="guest:Guest")) as executor:
        (opened,) = await play(executor, [OpenCall(3, 0)], greeting="Hi")
        assert isinstance(opened, Opened)
        said = opened.messages[0].content
        assert said.startswith("Hi 3 ")
        assert str(Path(python).parents[1]) in said
        assert "99 of the guest" in said and tabulate.__version__ not in said
        assert said.endswith("[]"), "the service's settings, passwords among them, are not the environment's"
        (scored,) = await play(executor, [StepCall(3, opened.state, Reply("word"))])
        assert isinstance(scored, Scored)
        assert scored.components == {"length": 4.0}
        assert scored.reward != os.getpid()


async def test_options_are_checked_there_and_those_of_the_deployment_win(workers: Workers, python: str, way: Way) -> None:
    fixed = HostedConfig(python=python, environment="guest:Guest", options={"greeting": "Fixed"})
    async with hosting(workers, sandbox=way, guest=fixed) as executor:
        (opened,) = await play(executor, [OpenCall(0, 0)], greeting="Mine")
        assert isinstance(opened, Opened) and opened.messages[0].content.startswith("Fixed 0")
        (wrong,) = await play(executor, [OpenCall(0, 0)], greting="x")
        assert "has no option 'greting'; did you mean 'greeting'" in reason(wrong, is_infrastructure=False)
        misspelt = spec.EnvironmentSection(name="guest", weights={"lenght": 1.0})
        batches = executor.run(Claimant("a", "t"), misspelt, [OpenCall(0, 0)], 60.0)
        (weights,) = [outcome async for batch in batches for _, outcome in batch]
        assert "no reward component 'lenght'; did you mean 'length'" in reason(weights, is_infrastructure=False)


async def test_arguments_follow_its_name(workers: Workers, python: str, way: Way) -> None:
    hosts = HostPool({"many": HostedConfig(python=python, environment="guest:Many")}, confinement=way)
    try:
        await hosts.start()
        assert (hosts.families, hosts.environments()) == (["many"], ["many:one", "many:two"])
        executor = EnvironmentExecutor(workers, 20.0, hosts)
        (opened,) = await play(executor, [OpenCall(0, 0)], name="many:two")
        assert isinstance(opened, Opened) and opened.messages[0].content.startswith("two 0")
        (wrong,) = await play(executor, [OpenCall(0, 0)], name="many:three")
        assert "no environment 'many:three'" in reason(wrong, is_infrastructure=False)
    finally:
        await hosts.stop()


async def test_failures_there_are_failures_here(workers: Workers, python: str, way: Way) -> None:
    async with hosting(workers, sandbox=way, guest=HostedConfig(python=python, environment="guest:Guest")) as executor:
        bug, away, fine = await play(executor, [step("raise größer ✗"), step("unavailable no disk"), step("word")])
        assert "RuntimeError: größer ✗" in reason(bug, is_infrastructure=False)
        assert "environment 'guest' is unavailable (row 0): no disk" in reason(away)
        assert isinstance(fine, Scored)


async def test_constructor_that_fails_there_is_a_failure_here(workers: Workers, python: str, way: Way) -> None:
    async with hosting(workers, sandbox=way, guest=HostedConfig(python=python, environment="guest:Guest")) as executor:
        (away,) = await play(executor, [OpenCall(0, 0)], greeting="away")
        assert "environment 'guest' is unavailable: the hub is unavailable" in reason(away)
        (broken,) = await play(executor, [OpenCall(0, 0)], greeting="broken")
        assert "environment 'guest' cannot be built: RuntimeError: oops" in reason(broken, is_infrastructure=False)
