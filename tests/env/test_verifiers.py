"""Tasksets of `verifiers`, in a host process of their own.

Where VERIFIERS_PYTHON names the interpreter of a virtual environment that has verifiers 0.4, they are played by it;
otherwise by a stand-in for the part of it that the adapter meets.
"""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import JsonValue

from common import spec
from env_svc.contract import Reply
from env_svc.hosted.configuration import Hosted
from env_svc.hosted.hosts import Hosts
from env_svc.play import Call, Failed, Open, Opened, Outcome, Scored, Step
from env_svc.player import Player
from env_svc.workers import Workers

ROOT = Path(__file__).parents[2]
GUESTS = Path(__file__).parent / "guests"
REAL = os.environ.get("VERIFIERS_PYTHON")
UNPLAYABLE = {
    "own_env": ("class Mine(vf.Env): pass\n__all__ += ['Mine']", "brings its own way to play"),
    "own_setup": (
        "class Plain(vf.Task[vf.TaskData]):\n    async def setup(self, trace, runtime): ...",
        "needs a runtime of verifiers for its setup",
    ),
    "container": ("class Plain(vf.Task[vf.TaskData]):\n    NEEDS_CONTAINER = True", "needs a runtime of verifiers"),
    "own_tools": ("Ones.toolsets = classmethod(lambda cls, config: ['search'])", "brings tool servers"),
    "in_a_box": (
        "class Plain(vf.Task[vf.TaskData]):\n    @vf.reward\n    async def ran(self, runtime): return 1.0",
        "Plain.ran needs a runtime of verifiers",
    ),
    "no_reward": ("class Plain(vf.Task[vf.TaskData]): pass", "Plain has no reward"),
}
"""By module: what is wrong with it, and what is said about that."""
ONES = """
import verifiers.v1 as vf

__all__ = ["Ones"]

class Plain(vf.Task[vf.TaskData]):
    @vf.reward
    async def fine(self, trace): return 1.0

{before}

class Ones(vf.Taskset[Plain, vf.TasksetConfig]):
    def load(self):
        return [Plain(vf.TaskData(prompt="One?"), self.config.task)]

{after}
"""


def hosted(taskset: str = "sums", *, folder: Path = GUESTS, **options: JsonValue) -> Hosted:
    paths = [ROOT, folder] + ([] if REAL else [GUESTS / "standins"])
    return Hosted(
        python=REAL or sys.executable,
        environment="env_svc.adapters.verifiers:Taskset",
        options={"taskset": taskset, **options},
        variables={"PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": "1"},
    )


@asynccontextmanager
async def hosting(workers: Workers, **environments: Hosted) -> AsyncIterator[Player]:
    hosts = Hosts(environments)
    try:
        await hosts.start()
        yield Player(workers, 60.0, hosts)
    finally:
        await hosts.stop()


async def play(player: Player, calls: list[Call], *, name: str = "sums", **options: JsonValue) -> list[Outcome]:
    found: dict[int, Outcome] = {}
    async for batch in player.play("t", spec.Environment(name=name, options=options), calls, 60.0):
        found.update(batch)
    return [found[position] for position in range(len(calls))]


def opened(outcome: Outcome) -> Opened:
    assert isinstance(outcome, Opened), outcome
    return outcome


def failed(outcome: Outcome) -> Failed:
    assert isinstance(outcome, Failed), outcome
    return outcome


def number_in(outcome: Outcome) -> int:
    return int(opened(outcome).messages[1].content.split()[2])


async def test_replies_are_graded_with_the_taskset_s_weights(workers: Workers) -> None:
    async with hosting(workers, sums=hosted()) as player:
        first = opened((await play(player, [Open(0, 1)], instruction="Only the number."))[0])
        assert [message.role for message in first.messages] == ["system", "user"]
        assert first.messages[0].content == "Add."
        assert first.messages[1].content.endswith("\n\nOnly the number.")
        replies = [Reply(str(number_in(first) + 1)), Reply("I would rather not say."), Reply("7", truncated=True)]
        right, wrong, cut = await play(player, [Step(0, first.state, reply) for reply in replies])
        assert right == Scored(3.0, {"correct": 1.0, "short": 1.0, "asked": 1.0, "cut_off": 0.0})
        assert wrong == Scored(0.5, {"correct": 0.0, "short": 0.0, "asked": 1.0, "cut_off": 0.0})
        assert isinstance(cut, Scored) and cut.components["cut_off"] == 1.0


async def test_an_epoch_visits_every_task_once_in_an_order_that_the_seed_gives(workers: Workers) -> None:
    async with hosting(workers, sums=hosted()) as player, hosting(workers, sums=hosted()) as elsewhere:
        calls: list[Call] = [Open(index, 3) for index in range(10)]
        epochs = await play(player, calls)
        numbers = [number_in(outcome) for outcome in epochs]
        assert sorted(numbers[:5]) == sorted(numbers[5:]) == [10, 11, 12, 13, 14]
        assert await play(elsewhere, calls) == epochs
        others = [number_in(outcome) for outcome in await play(player, [Open(index, 4) for index in range(10)])]
        assert others != numbers


async def test_what_breaks_is_void_and_never_reward_0(workers: Workers) -> None:
    async with hosting(workers, sums=hosted(), away=hosted(config={"reads_what_is_away": True})) as player:
        (first,) = await play(player, [Open(0, 1)])
        replies = [Reply("break the grader"), Reply("break the judge")]
        bug, away = await play(player, [Step(0, opened(first).state, reply) for reply in replies])
        assert "ZeroDivisionError: no such sum" in failed(bug).reason and not failed(bug).is_infrastructure
        assert "ProviderError: the judge's model is away" in failed(away).reason and failed(away).is_infrastructure
        (unread,) = await play(player, [Open(0, 0)], name="away")
        assert "cannot be read: ConnectionResetError: the hub is away" in failed(unread).reason and failed(unread).is_infrastructure


async def test_episode_goes_on_elsewhere_only_where_the_row_is_the_same_task(workers: Workers) -> None:
    async with (
        hosting(workers, sums=hosted(config={"varies": True})) as one,
        hosting(workers, sums=hosted(config={"varies": True})) as other,
    ):
        (first,) = await play(one, [Open(0, 1)])
        (scored,) = await play(one, [Step(0, opened(first).state, Reply("1"))])
        assert isinstance(scored, Scored)
        (void,) = await play(other, [Step(0, opened(first).state, Reply("1"))])
        assert "is another task here than where it was opened" in failed(void).reason


async def test_tasks_set_what_the_operator_lets_them(workers: Workers) -> None:
    environments = {"sums": hosted(config={"first": 20}, adjustable=["count"]), "endless": hosted(config={"endless": True})}
    async with hosting(workers, **environments) as player:
        outcomes = await play(player, [Open(index, 0) for index in range(4)], settings={"count": 2})
        assert sorted({number_in(outcome) for outcome in outcomes}) == [20, 21]
        (refused,) = await play(player, [Open(0, 0)], settings={"first": 1})
        assert "taskset 'sums' lets tasks set no 'first'; known: count" in failed(refused).reason
        (wrong,) = await play(player, [Open(0, 0)], settings={"count": "many"})
        assert "taskset 'sums': count: Input should be a valid integer" in failed(wrong).reason
        for option in ("taskset", "config", "adjustable"):
            (forbidden,) = await play(player, [Open(0, 0)], **{option: "json"})
            assert f"option '{option}' is given by the operator, not by a task" in failed(forbidden).reason
        few = await play(player, [Open(index, 0) for index in range(6)], name="endless", rows=3)
        assert sorted({number_in(outcome) for outcome in few}) == [10, 11, 12]


async def test_service_itself_does_not_run_an_environment_with_options_of_the_operator(workers: Workers) -> None:
    (refused,) = await play(Player(workers, 60.0), [Open(0, 0)], name="tests.env.toys:OfTheOperator", address="ws://127.0.0.1:1")
    assert "runs only where MARLAAS_ENV_HOSTS_FILE names it" in failed(refused).reason


async def test_taskset_that_one_turn_cannot_play_is_refused_with_the_reason(workers: Workers, tmp_path: Path) -> None:
    for module, (code, _) in UNPLAYABLE.items():
        before, after = ("", code) if "Ones" in code or "Mine" in code else (code, "")
        (tmp_path / f"{module}.py").write_text(ONES.format(before=before, after=after))
    environments = {module: hosted(module, folder=tmp_path) for module in (*UNPLAYABLE, "missing")}
    async with hosting(workers, **environments) as player:
        for module, (_, problem) in UNPLAYABLE.items():
            (refused,) = await play(player, [Open(0, 0)], name=module)
            assert problem in failed(refused).reason
        (missing,) = await play(player, [Open(0, 0)], name="missing")
        assert "taskset 'missing' cannot be loaded" in failed(missing).reason


@pytest.mark.parametrize("prompt", ["None", "[vf.UserMessage(content=[{'type': 'image_url', 'image_url': {'url': 'data:,'}}])]"])
async def test_prompt_that_is_not_text_is_void(workers: Workers, tmp_path: Path, prompt: str) -> None:
    (tmp_path / "pictures.py").write_text(ONES.format(before="", after="").replace('"One?"', prompt))
    async with hosting(workers, pictures=hosted("pictures", folder=tmp_path)) as player:
        (void,) = await play(player, [Open(0, 0)], name="pictures")
        assert "task 0 has no prompt of text alone" in failed(void).reason
