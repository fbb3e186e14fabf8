"""Environments in a process and a virtual environment of their own."""

import asyncio
import os
import signal
import sys
import time
import venv
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import tabulate

from common import spec
from common.backoff import Backoff
from common.errors import Fatal
from common.fairness.fair_queue import Claimant
from env_svc.calls import Call, Failed, OpenCall, Opened, Outcome, Scored, StepCall
from env_svc.contract import Reply
from env_svc.execution.executor import EnvironmentExecutor
from env_svc.execution.workers import Workers
from env_svc.hosted.config import HostedConfig, read_hosted
from env_svc.hosted.pool import HostPool
from env_svc.hosted.process import HostTimings
from tests.conftest import eventually

ROOT = Path(__file__).parents[3]
HASTY = HostTimings(grace_s=0.5, poll_interval_s=0.1, restart=Backoff(0.1, 30.0))
GUEST = """
import asyncio, os, sys, time
from env_svc.contract import ChatMessage, Environment, EnvironmentUnavailable, Finish, Opening
import tabulate

time.sleep(float(os.environ.get("GUEST_IMPORTS_FOR_S", 0)))

class Guest(Environment[dict]):
    components = ("length",)

    def __init__(self, greeting: str = "Hello", *, secret: str = "") -> None:
        self.greeting, self.secret = greeting, secret
        if greeting == "away":
            raise EnvironmentUnavailable("the hub is unavailable")
        if greeting == "broken":
            raise RuntimeError("oops")

    async def open(self, index, seed):
        print("what an environment prints goes to the log")
        said = f"{self.greeting} {index} {sys.prefix} {tabulate.__version__} {sorted(n for n in os.environ if n.startswith('MARLAAS'))}"
        return Opening([ChatMessage(role="user", content=said)], {"pid": os.getpid(), "row": index})

    async def step(self, state, reply):
        word, _, argument = reply.text.partition(" ")
        if word == "die":
            os._exit(7)
        if word == "sleep":
            await asyncio.sleep(float(argument))
        if word == "block":
            time.sleep(float(argument))
        if word in ("fork", "leave") and os.fork() == 0:  # and so with the host's output open
            if word == "leave":
                os.setsid()
            time.sleep(float(argument))
            os._exit(0)
        if word == "raise":
            raise RuntimeError(argument)
        if word == "read":
            raise RuntimeError(open(os.path.expanduser(argument)).read())
        if word == "unavailable":
            raise EnvironmentUnavailable(argument)
        return Finish(float(os.getpid()), {"length": float(len(reply.text))})

class ComputingGuest(Guest):
    cpu_bound = True

class Loose(Guest):
    def __init__(self, **options):
        super().__init__(**options)

class Many(Guest):
    def __init__(self, which: str) -> None:
        super().__init__(which)

    @classmethod
    def arguments(cls):
        return ("one", "two")
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of a second virtual environment, with another version of a package that ours has too."""
    folder = tmp_path_factory.mktemp("guest") / "venv"
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "guest.py").write_text(GUEST)
    (site / "tabulate.py").write_text("__version__ = '99 of the guest'\n")
    ours = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "shared.pth").write_text(f"{ROOT}\n{ours}\n")  # marlaas itself; looked at after the guest's own
    return str(folder / "bin" / "python")


@asynccontextmanager
async def hosting(workers: Workers, timeout_s: float = 60.0, **hosted: HostedConfig) -> AsyncIterator[EnvironmentExecutor]:
    hosts = HostPool(hosted, HASTY)
    try:
        await hosts.start()
        yield EnvironmentExecutor(workers, timeout_s, hosts)
    finally:
        await hosts.stop()


async def play(
    executor: EnvironmentExecutor, calls: list[Call], *, name: str = "guest", task: str = "t", **options: object
) -> list[Outcome]:
    found: dict[int, Outcome] = {}
    environment = spec.EnvironmentSection(name=name, options=options)  # pyright: ignore
    async for batch in executor.run(Claimant("a", task), environment, calls, 500.0):
        found.update(batch)
    return [found[position] for position in range(len(calls))]


def step(text: str) -> StepCall:
    return StepCall(0, b"\x81\xa3row\x00", Reply(text))


def reason(outcome: Outcome, *, is_infrastructure: bool = True) -> str:
    assert isinstance(outcome, Failed)
    assert outcome.is_infrastructure == is_infrastructure
    return outcome.reason


async def scored(executor: EnvironmentExecutor, text: str = "word") -> Scored:
    """Score of one reply."""
    (outcome,) = await play(executor, [step(text)])
    assert isinstance(outcome, Scored)
    return outcome


async def test_constructor_that_takes_any_option_gets_the_operators_alone(workers: Workers, python: str) -> None:
    hosted = HostedConfig(python=python, environment="guest:Loose", options={"greeting": "Hi"})
    async with hosting(workers, guest=hosted) as executor:
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


async def test_environment_runs_with_dependencies_of_its_own(workers: Workers, python: str) -> None:
    async with hosting(workers, guest=HostedConfig(python=python, environment="guest:Guest")) as executor:
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


async def test_options_are_checked_there_and_those_of_the_deployment_win(workers: Workers, python: str) -> None:
    fixed = HostedConfig(python=python, environment="guest:Guest", options={"greeting": "Fixed"})
    async with hosting(workers, guest=fixed) as executor:
        (opened,) = await play(executor, [OpenCall(0, 0)], greeting="Mine")
        assert isinstance(opened, Opened) and opened.messages[0].content.startswith("Fixed 0")
        (wrong,) = await play(executor, [OpenCall(0, 0)], greting="x")
        assert "has no option 'greting'; did you mean 'greeting'" in reason(wrong, is_infrastructure=False)
        misspelt = spec.EnvironmentSection(name="guest", weights={"lenght": 1.0})
        batches = executor.run(Claimant("a", "t"), misspelt, [OpenCall(0, 0)], 60.0)
        (weights,) = [outcome async for batch in batches for _, outcome in batch]
        assert "no reward component 'lenght'; did you mean 'length'" in reason(weights, is_infrastructure=False)


async def test_arguments_follow_its_name(workers: Workers, python: str) -> None:
    hosts = HostPool({"many": HostedConfig(python=python, environment="guest:Many")})
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


async def test_failures_there_are_failures_here(workers: Workers, python: str) -> None:
    async with hosting(workers, guest=HostedConfig(python=python, environment="guest:Guest")) as executor:
        bug, away, fine = await play(executor, [step("raise größer ✗"), step("unavailable no disk"), step("word")])
        assert "RuntimeError: größer ✗" in reason(bug, is_infrastructure=False)
        assert "environment 'guest' is unavailable (row 0): no disk" in reason(away)
        assert isinstance(fine, Scored)


async def test_constructor_that_fails_there_is_a_failure_here(workers: Workers, python: str) -> None:
    async with hosting(workers, timeout_s=60.0, guest=HostedConfig(python=python, environment="guest:Guest")) as executor:
        (away,) = await play(executor, [OpenCall(0, 0)], greeting="away")
        assert "environment 'guest' is unavailable: the hub is unavailable" in reason(away)
        (broken,) = await play(executor, [OpenCall(0, 0)], greeting="broken")
        assert "environment 'guest' cannot be built: RuntimeError: oops" in reason(broken, is_infrastructure=False)


async def test_process_that_dies_costs_its_calls_and_is_restarted(workers: Workers, python: str) -> None:
    async with hosting(workers, guest=HostedConfig(python=python, environment="guest:Guest")) as executor:
        waiting = asyncio.ensure_future(play(executor, [step("sleep 30")]))
        (died,) = await play(executor, [step("die")])
        assert "environment 'guest' is unavailable (row 0): its process ended (exit status 7)" in reason(died)
        assert "its process ended" in reason((await waiting)[0])
        first = await scored(executor)
        os.kill(int(first.reward), signal.SIGKILL)
        outcomes: list[Outcome] = []

        async def back() -> bool:
            outcomes[:] = await play(executor, [step("word")])
            return isinstance(outcomes[0], Scored)

        await eventually(back)
        assert isinstance(outcomes[0], Scored) and outcomes[0].reward != first.reward


async def test_many_slow_calls_share_a_process(workers: Workers, python: str) -> None:
    async with hosting(workers, guest=HostedConfig(python=python, environment="guest:Guest")) as executor:
        started = time.monotonic()
        outcomes = await play(executor, [step("sleep 0.5") for _ in range(200)])
        assert all(isinstance(outcome, Scored) for outcome in outcomes)
        assert time.monotonic() - started < 90.0  # one after another would take 100 s


async def test_call_that_takes_too_long_is_ended_alone(workers: Workers, python: str) -> None:
    async with hosting(workers, 2.0, guest=HostedConfig(python=python, environment="guest:Guest")) as executor:
        late, fine = await play(executor, [step("sleep 60"), step("word")])
        assert "did not answer within 2 s" in reason(late)
        assert isinstance(fine, Scored)
        assert (await scored(executor)).reward == fine.reward, "the process was not replaced"


async def test_computing_environment_takes_one_call_a_process_and_is_replaced_when_it_hangs(workers: Workers, python: str) -> None:
    async with hosting(workers, 2.0, guest=HostedConfig(python=python, environment="guest:ComputingGuest", processes=2)) as executor:
        hung, *fine = await play(executor, [step("block 60"), *(step("block 0.01") for _ in range(6))])
        assert "did not answer within 2 s" in reason(hung)
        assert all(isinstance(outcome, Scored) for outcome in fine)
        await scored(executor)


async def test_restart_takes_nothing_of_a_calls_time(workers: Workers, python: str) -> None:
    slow = HostedConfig(python=python, environment="guest:ComputingGuest", variables={"GUEST_IMPORTS_FOR_S": "1.2"})
    async with hosting(workers, 1.0, guest=slow) as executor:
        hung, after = await play(executor, [step("block 60"), step("word")])
        assert "did not answer within 1 s" in reason(hung)
        assert isinstance(after, Scored)


async def test_calls_go_to_a_process_that_is_there_before_one_that_must_start(workers: Workers, python: str) -> None:
    async with hosting(workers, guest=HostedConfig(python=python, environment="guest:Guest", processes=2)) as executor:
        first, second = await play(executor, [step("sleep 0.1"), step("sleep 0.1")])
        assert isinstance(first, Scored) and isinstance(second, Scored) and first.reward != second.reward
        await play(executor, [step("die")])
        assert (await scored(executor)).reward in (first.reward, second.reward)


@pytest.mark.parametrize("start", ["fork 600", "leave 300"])
async def test_end_of_a_process_is_noticed_though_what_it_started_holds_its_output(workers: Workers, python: str, start: str) -> None:
    async with hosting(workers, 200.0, guest=HostedConfig(python=python, environment="guest:Guest")) as executor:
        waiting = asyncio.ensure_future(play(executor, [step("sleep 400")]))
        started = await scored(executor, start)
        os.kill(int(started.reward), signal.SIGKILL)
        assert "its process ended (exit status -9)" in reason((await waiting)[0])  # before its time was over
        assert (await scored(executor)).reward != started.reward


@pytest.mark.parametrize("end", ["die", "block 60"])
async def test_what_a_process_has_started_ends_with_it(workers: Workers, python: str, end: str) -> None:
    async with hosting(workers, 2.0, guest=HostedConfig(python=python, environment="guest:ComputingGuest")) as executor:
        forked = await scored(executor, "fork 600")
        await play(executor, [step(end)])
        assert (await scored(executor)).reward != forked.reward


async def test_one_process_that_computes_takes_one_call_from_any_task(workers: Workers, python: str) -> None:
    async with hosting(workers, 2.0, guest=HostedConfig(python=python, environment="guest:ComputingGuest")) as executor:
        (hung,), (fine,) = await asyncio.gather(
            play(executor, [step("block 60")], task="one"), play(executor, [step("word")], task="other")
        )
        assert "did not answer within 2 s" in reason(hung)
        assert isinstance(fine, Scored)


async def test_process_that_died_is_restarted_before_it_is_needed(workers: Workers, python: str) -> None:
    hosts = HostPool({"guest": HostedConfig(python=python, environment="guest:Guest", processes=2)})
    try:
        await hosts.start()
        guest = hosts.find("guest")
        assert guest is not None
        await play(EnvironmentExecutor(workers, 20.0, hosts), [step("die")])
        await eventually(lambda: all(process.is_ready for process in guest._processes))
    finally:
        await hosts.stop()


async def test_calls_that_wait_for_a_start_count_as_running_there(workers: Workers, python: str) -> None:
    async with hosting(workers, guest=HostedConfig(python=python, environment="guest:ComputingGuest", processes=3)) as executor:
        for _ in range(3):
            await play(executor, [step("die")])
        first, second = await play(executor, [step("word"), step("word")])  # as many at once as one task may have
        assert isinstance(first, Scored) and isinstance(second, Scored) and first.reward != second.reward


@pytest.mark.parametrize(
    ("hosted", "problem"),
    [
        (HostedConfig(python="/nowhere/python", environment="guest:Guest"), "/nowhere/python cannot be run: No such file or directory"),
        (HostedConfig(python=sys.executable, environment="guest:Guest"), "ended before it was ready (exit status 1)"),
    ],
)
async def test_environment_that_does_not_start_is_an_infrastructure_failure(workers: Workers, hosted: HostedConfig, problem: str) -> None:
    async with hosting(workers, guest=hosted) as executor:
        (outcome,) = await play(executor, [OpenCall(0, 0)])
        assert problem in reason(outcome)


async def test_process_does_not_outlive_the_service(workers: Workers, python: str) -> None:
    async with hosting(workers, guest=HostedConfig(python=python, environment="guest:Guest")) as executor:
        last = await scored(executor)
    assert not Path(f"/proc/{int(last.reward)}").exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[math]\npython = 'p'\nenvironment = 'a:B'", "'math' cannot be the name"),
        ("[a]\npython = 'p'", "a.environment: Field required"),
        ("[a]\npython = 'p'\nenvironment = 'a:B'\nproceses = 2", "a.proceses: Extra inputs are not permitted"),
        ("[a", "hosts.toml"),
    ],
)
def test_wrong_file_is_one_line(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text(text)
    with pytest.raises(Fatal) as caught:
        read_hosted(file, ["math"])
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
