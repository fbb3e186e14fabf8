"""reasoning-gym's data sets as environments: deterministic on every replica, and fair to the right answer."""

import inspect
import os
import subprocess
import sys
from decimal import getcontext
from typing import Any

import msgpack
import pytest
from reasoning_gym.factory import DATASETS, create_dataset

from env_svc.builtin.reasoning_gym import ROWS, ReasoningGym, ReasoningGymState
from env_svc.builtin.reply_filter import EVALUATED, PARSED
from env_svc.contract import EnvironmentUnavailable, Finish, Opening, Reply

NO_GOLD_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""Graded by checking the reply; their items hold no single right answer."""
SLOW = {
    "acre",
    "arc_agi",
    "futoshiki",
    "intermediate_integration",
    "knight_swap",
    "polynomial_equations",
    "puzzle24",
    "sudoku",
    "zebra_puzzles",
}
"""A second or more for a few items; one of them is tested by itself."""
QUICK = sorted(set(DATASETS) - SLOW - {"composite", "codeio"})


async def opened(environment: ReasoningGym, row: int = 0, seed: int = 3) -> Opening[ReasoningGymState]:
    opening = await environment.open(row, seed)
    packed = msgpack.unpackb(msgpack.packb(opening.state))
    return Opening(opening.messages, packed, opening.tools)


async def graded(environment: ReasoningGym, state: ReasoningGymState, reply: str) -> Finish:
    turn = await environment.step(state, Reply(reply))
    assert isinstance(turn, Finish)
    return turn


def gold(dataset: str, row: int, seed: int = 3, **config: Any) -> str:
    return create_dataset(dataset, seed=seed, size=ROWS, **config)[row]["answer"]


@pytest.mark.parametrize("dataset", [*QUICK, "sudoku"])
async def test_data_set_opens_and_gives_its_own_answer_full_reward(dataset: str) -> None:
    environment = ReasoningGym(dataset)
    opening = await opened(environment)
    assert opening.messages[-1].content == create_dataset(dataset, seed=3, size=ROWS)[0]["question"]
    # Another object stands for another replica.
    finish = await graded(ReasoningGym(dataset), opening.state, str(gold(dataset, 0) or "none"))
    assert finish.components["score"] == finish.reward
    assert finish.reward == pytest.approx(1.0) or dataset in NO_GOLD_ANSWER


async def test_answer_in_tags_is_found_and_wrong_answers_get_less() -> None:
    environment = ReasoningGym("gcd")
    opening = await opened(environment, row=7)
    answer = gold("gcd", 7)
    assert (await graded(environment, opening.state, f"<think>hm</think>so <answer> {answer} </answer>")).reward == 1.0
    assert (await graded(environment, opening.state, f"  {answer}\n")).reward == 1.0
    assert (await graded(environment, opening.state, "no idea")).reward == 0.0


async def test_rows_never_end_and_never_repeat() -> None:
    environment = ReasoningGym("gcd")
    questions = {(await environment.open(row, 3)).messages[0].content for row in (0, 1, ROWS - 1, ROWS, ROWS + 1, 10**9)}
    assert len(questions) == 6


async def test_options_change_the_questions_and_texts_surround_them() -> None:
    plain = await ReasoningGym("gcd").open(0, 3)
    environment = ReasoningGym("gcd", min_value=100, max_value=999, system="Be brief.", instruction="Only the number.")
    opening = await environment.open(0, 3)
    assert [message.role for message in opening.messages] == ["system", "user"]
    assert opening.messages[0].content == "Be brief."
    assert opening.messages[1].content.endswith("\n\nOnly the number.")
    assert plain.messages[0].content not in opening.messages[1].content


async def test_precision_that_a_data_set_sets_does_not_reach_other_tasks_of_the_process() -> None:
    environment = ReasoningGym("decimal_arithmetic", precision=9)
    before = getcontext().prec
    opening = await opened(environment)
    await graded(environment, opening.state, "1.5")
    assert getcontext().prec == before != 9


async def test_composite_mixes_data_sets() -> None:
    environment = ReasoningGym("composite", datasets=[{"name": name, "weight": 1, "config": {}} for name in ("gcd", "n_queens")])
    questions = [(await environment.open(row, 3)).messages[0].content for row in range(12)]
    assert {("Divisor" in question, "Queens" in question) for question in questions} == {(True, False), (False, True)}
    opening = await opened(environment, row=0)
    assert (await graded(environment, opening.state, "exit()")).reward == 0.0


async def test_codeio_is_graded_against_the_answer_that_was_made_when_it_was_asked() -> None:
    opening = await opened(ReasoningGym("codeio"))
    assert opening.state["entry"] is not None
    assert (await graded(ReasoningGym("codeio", difficulty=3), opening.state, opening.state["entry"]["answer"])).reward == 1.0


async def test_item_that_differs_from_the_one_asked_is_not_graded() -> None:
    environment = ReasoningGym("gcd")
    opening = await opened(environment)
    with pytest.raises(EnvironmentUnavailable, match="another question"):
        await environment.step({**opening.state, "digest": "0" * 16}, Reply("1"))


async def test_reply_that_breaks_the_scorer_gets_nothing_instead_of_a_void() -> None:
    class Brittle:
        def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
            return {"yes": 1.0}[answer]

    environment = ReasoningGym("gcd")
    assert environment._graded(Brittle(), {"answer": "yes"}, "no") == Finish(0.0, {"score": 0.0, "unreadable": 1.0})
    with pytest.raises(KeyError):
        environment._graded(Brittle(), {"answer": "neither"}, "no")


CALL_WITHOUT_PARENTHESES = (
    "[x for c in [self.__class__] for c.__class_getitem__ in [__builtins__['__import__']] for o in [c['pathlib']] "
    "for c.__class_getitem__ in [o.Path] for t in [c[{trace!r}]] for c.__class_getitem__ in [o.Path.touch] "
    "for x in [c[t]]]"
)


@pytest.mark.parametrize("dataset", sorted(EVALUATED | PARSED))
async def test_reply_is_never_run(dataset: str, tmp_path: Any) -> None:
    environment = ReasoningGym(dataset)
    opening = await opened(environment)
    trace = str(tmp_path / "trace")
    calls = [f"open({trace!r}, 'w')", f"__import__('pathlib').Path({trace!r}).touch()", CALL_WITHOUT_PARENTHESES.format(trace=trace)]
    for code in calls:
        assert (await graded(environment, opening.state, code)).reward <= 0.01
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("dataset", sorted(EVALUATED | PARSED))
async def test_reply_cannot_read_the_right_answer_or_change_it(dataset: str) -> None:
    environment = ReasoningGym(dataset)
    opening = await opened(environment)
    right = str(gold(dataset, 0))
    for code in (
        "oracle_answer",
        "[oracle_answer]",
        "entry['answer']",
        "[x for x in entry['answer']]",
        "[list(row) for row in entry['metadata']['solution']]",
        "entry['metadata']['solution']",
        "entry['metadata']['solutions'][0]",
        "entry['metadata']['valid_answers'][0]",
        "[0 for e in [entry] for e['answer'] in ['X']]",
        "[0 for e in [entry['metadata']] for e['valid_answers'] in [['X']]]",
    ):
        assert (await graded(environment, opening.state, code)).reward <= 0.01, code
    assert (await graded(environment, opening.state, "X")).reward <= 0.01
    assert (await graded(environment, opening.state, right)).reward == 1.0


@pytest.mark.parametrize(
    ("dataset", "reward"), [("binary_matrix", 0.1), ("n_queens", 0.5), ("spiral_matrix", 0.1), ("string_insertion", 0.1)]
)
async def test_right_answer_counts_in_full_and_as_a_list_in_part(dataset: str, reward: float) -> None:
    environment = ReasoningGym(dataset)
    for row in range(20):
        opening = await opened(environment, row)
        right = gold(dataset, row)
        as_list: object = list(right) if dataset == "string_insertion" else [line.split() for line in right.splitlines()]
        if dataset == "spiral_matrix":
            as_list = [int(number) for number in right.split()]
        assert (await graded(environment, opening.state, right)).reward == 1.0
        assert (await graded(environment, opening.state, f"<answer>{as_list}</answer>")).reward == reward


async def test_only_known_data_sets_evaluate_replies() -> None:
    """A new version of the library may add one: then it belongs into `harmless`."""
    found = {
        name
        for name, (made, _) in DATASETS.items()
        if any(call in inspect.getsource(made.score_answer) for call in ("eval(answer", "parse_expr(answer"))
    }
    assert found == EVALUATED | PARSED


SEEN_BY_A_REPLICA = """
import asyncio, hashlib, time
from common.fairness.fair_queue import Claimant
from env_svc.execution.workers import Workers
from env_svc.calls import EnvironmentJob, OpenCall

async def main():
    workers = Workers(1, ["reasoning_gym"], 2 * 2**30)
    await workers.start()
    for name in ("word_ladder", "ransom_note", "isomorphic_strings", "polynomial_multiplication", "gcd"):
        calls = [OpenCall(row, 5) for row in (0, 3, 777)]
        job = EnvironmentJob(Claimant("a", "t"), "reasoning_gym:" + name, {}, calls, 200.0, time.monotonic() + 500.0)
        found = {}
        async for batch in workers.run(job):
            found.update(batch)
        for place in range(3):
            question = found[place].messages[0].content
            print(name, hashlib.sha256(question.encode()).hexdigest(), found[place].state.hex())
    await workers.stop()

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_replicas_agree_on_prompts_whatever_their_hash_seed(tmp_path: Any) -> None:
    script = tmp_path / "replica.py"
    script.write_text(SEEN_BY_A_REPLICA)
    seen = [
        subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            timeout=250,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert seen[0] == seen[1]
    assert seen[0].count("\n") == 15
