"""Environments that others have published, played through the adapters in their own packages: `make test-adapters` has them.

Wordle of TextArena as verifiers ships it, and the environment that `openenv init` makes.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from common import spec
from common.fairness.fair_queue import Claimant
from env_svc.adapters.openenv import OpenEnv
from env_svc.calls import Call, Continued, OpenCall, Opened, Outcome, Scored, StepCall
from env_svc.contract import Continue, Finish, Reply
from env_svc.execution.executor import EnvironmentExecutor
from env_svc.execution.workers import Workers
from env_svc.hosted.config import HostedConfig
from env_svc.hosted.pool import HostPool
from marlaas.stack import servers
from tests.support.paths import ROOT
from tests.support.servers import running

pytestmark = [pytest.mark.packages, pytest.mark.asyncio(loop_scope="module")]
WORDS = ("apple", "grape", "house", "mouse", "crane", "light", "plant", "stone")
TAGGER = "averaged_perceptron_tagger_eng"


def write_language(folder: Path) -> Path:
    """NLTK's corpora as TextArena reads them, which would be downloaded: eight words, each a noun."""
    words, tagger = folder / "corpora" / "words", folder / "taggers" / TAGGER
    for each in (words, tagger):
        each.mkdir(parents=True)
    (words / "en").write_text("\n".join(WORDS) + "\n")
    (words / "en-basic").write_text("\n".join(WORDS) + "\n")
    for name, content in (("weights", {}), ("tagdict", dict.fromkeys(WORDS, "NN")), ("classes", ["NN"])):
        (tagger / f"{TAGGER}.{name}.json").write_text(json.dumps(content))
    return folder


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def wordle(workers: Workers, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EnvironmentExecutor]:
    variables = {"PYTHONPATH": str(ROOT), "NLTK_DATA": str(write_language(tmp_path_factory.mktemp("nltk")))}
    options = {"taskset": "textarena", "config": {"game": "Wordle-v0"}}
    python = os.environ["VERIFIERS_PYTHON"]
    hosted = HostedConfig(python=python, environment="env_svc.adapters.verifiers:Taskset", options=options, variables=variables)
    hosts = HostPool({"wordle": hosted})
    await hosts.start()
    yield EnvironmentExecutor(workers, 60.0, hosts)
    await hosts.stop()


async def played(executor: EnvironmentExecutor, call: Call) -> Outcome:
    async for batch in executor.run(Claimant("a", "t"), spec.EnvironmentSection(name="wordle", options={}), [call], 60.0):
        return dict(batch)[0]
    raise AssertionError("nothing came back")


async def guessed(executor: EnvironmentExecutor, row: int, words: tuple[str, ...]) -> tuple[list[str], float]:
    """The game's texts, from the opening on, and the reward."""
    turn = await played(executor, OpenCall(row, 1))
    said: list[str] = []
    for word in words:
        assert isinstance(turn, Opened | Continued), turn
        said.append(turn.messages[-1].content)
        turn = await played(executor, StepCall(0, turn.state, Reply(f"I try [{word}].")))
        if isinstance(turn, Scored):
            return said, turn.reward
    raise AssertionError(f"the game continues after {len(words)} guesses: {turn}")


async def test_wordle_is_won_by_its_word_and_lost_without_it(wordle: EnvironmentExecutor) -> None:
    games = [await guessed(wordle, row, WORDS[:6]) for row in range(8)]
    assert all("You are Playing Wordle" in said[0] for said, _ in games)
    assert max(reward for _, reward in games) == 1.0  # the word was among the six
    assert min(reward for _, reward in games) < 1.0  # or it was one of the other two
    assert all(reward == 1.0 for said, reward in games if len(said) < 6)  # nothing else ends a game early
    answers = [answer for said, _ in games for answer in said[1:]]
    assert answers
    assert all(set(answer) & set("GYX") for answer in answers)


async def test_members_of_a_wordle_group_guess_the_same_word_and_a_repeated_step_gives_the_same(wordle: EnvironmentExecutor) -> None:
    one, other = await asyncio.gather(*(guessed(wordle, 3, WORDS[:6]) for _ in range(2)))
    assert one == other


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server of the environment that OpenEnv's own tool makes."""
    folder, port = tmp_path_factory.mktemp("openenv"), servers.lasting_port()
    python = os.environ["OPENENV_PYTHON"]
    subprocess.run([str(Path(python).with_name("openenv")), "init", "echo"], cwd=folder, check=True, capture_output=True, timeout=100)
    argv = [python, "-m", "echo.server.app", "--host", "127.0.0.1", "--port", str(port)]
    with running(servers.Command("openenv", argv, env={"PYTHONPATH": str(folder)}), port, folder / "server.log") as process:
        yield port
        process.kill()


async def test_echo_answers_and_pays_by_length(echo: int) -> None:
    environment = OpenEnv(f"ws://127.0.0.1:{echo}", action="message", observation="echoed_message", sessions=1)
    try:
        opening = await environment.open(0, 5)
        assert "environment ready!" in opening.messages[0].content
        turn = await environment.step(opening.state, Reply("Hello"))
        assert isinstance(turn, Continue)
        assert turn.messages[0].content == "Hello"
        after = await environment.step(turn.state, Reply("a message of more than ten letters"))
        assert isinstance(after, Continue)
        assert await environment.conclude(after.state) == Finish(pytest.approx(1.5), {"actions": 2.0, "malformed": 0.0})
    finally:
        await environment.close()
