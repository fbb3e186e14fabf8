"""Math problems: the format of GSM8K, what counts as equal, and which files a task may name."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from common.errors import Fatal
from env_svc import datasets
from env_svc.builtin import math_problems
from env_svc.builtin.math_problems import MathProblems, final_answer
from env_svc.builtin.stated_answers import MAX_STATEMENTS, MAX_UNSTATED_CHARS, stated_answers
from env_svc.contract import EnvironmentUnavailable, Finish, Reply, WrongOptions
from env_svc.datasets import row_at
from tests.env.builtin.math_verdicts import NOT_RECOGNISED, VERDICTS
from tests.env.builtin.word_problems import RIGHT, WRONG, word_problems
from tests.support.paths import ROOT

READ = """
import json
from env_svc.contract import EnvironmentUnavailable, WrongOptions
from env_svc.datasets import rows_of_dataset

read = {"train": rows_of_dataset("openai/gsm8k", "main", "train")}
read["test"] = [row["question"] for row in rows_of_dataset("openai/gsm8k", "main", "test")]
for wrong in (("openai/other", None, "train"), ("openai/gsm8k", "main", "dev")):
    try:
        rows_of_dataset(*wrong)
    except (EnvironmentUnavailable, WrongOptions) as error:
        read["-".join(map(str, wrong))] = f"{type(error).__name__}: {error}"
print(json.dumps(read))
"""
GSM8K = {
    "question": "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many altogether?",
    "answer": "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nAltogether 48+24 = <<48+24=72>>72 clips.\n#### 72",
}


def graded(gold: str, reply: str) -> tuple[float, float]:
    """(correct, answered) of a reply to a question whose answer is `gold`."""
    environment = MathProblems(file="word_problems.jsonl")
    turn = asyncio.run(environment.step(final_answer(gold), Reply(reply)))
    assert isinstance(turn, Finish)
    assert turn.reward == turn.components["correct"]
    return turn.components["correct"], turn.components["answered"]


def test_reply_that_takes_too_long_to_grade_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: object, **options: object) -> bool:
        while True:
            pass

    monkeypatch.setattr(math_problems, "GRADING_TIMEOUT_S", 0.3)
    for step, answered in (("verify", 1.0), ("parse", 0.0)):
        monkeypatch.setattr(math_problems, step, endless)
        assert graded("72", "The answer is 72.") == (0.0, answered)


@pytest.mark.parametrize(
    ("gold", "reply", "expected"),
    [
        (GSM8K["answer"], "She sold 48 + 24 = 72 clips.", (1.0, 1.0)),
        (GSM8K["answer"], "The answer is 72.", (1.0, 1.0)),
        (GSM8K["answer"], "So \\boxed{72}", (1.0, 1.0)),
        (GSM8K["answer"], "#### 72", (1.0, 1.0)),
        (GSM8K["answer"], "The answer is 71.", (0.0, 1.0)),
        (GSM8K["answer"], "I do not know", (0.0, 0.0)),
        (GSM8K["answer"], "", (0.0, 0.0)),
        ("It costs <<1000+234=1234>>.\n#### 1,234", "The answer is $1,234", (1.0, 1.0)),
        ("#### -5", "The answer is -5", (1.0, 1.0)),
        ("\\frac{1}{2}", "The answer is $\\frac{2}{4}$", (1.0, 1.0)),
        ("\\frac{1}{2}", "It is 0.5", (1.0, 1.0)),
        ("$x^2+2x+1$", "The answer is $(x+1)^2$", (1.0, 1.0)),
        ("(1,2)", "The answer is $(2,1)$", (0.0, 1.0)),
    ],
)
def test_equal_answers_are_correct_however_they_are_written(gold: str, reply: str, expected: tuple[float, float]) -> None:
    assert graded(gold, reply) == expected


@pytest.mark.parametrize(("gold", "reply", "is_correct"), VERDICTS)
def test_verdict_on_an_answer(gold: str, reply: str, is_correct: bool) -> None:
    assert graded(gold, reply)[0] == float(is_correct)


@pytest.mark.parametrize(("gold", "reply"), NOT_RECOGNISED)
def test_answer_that_is_not_recognised_is_named_in_the_docs(gold: str, reply: str) -> None:
    """One that is recognised some day is to be moved among the verdicts, and out of docs/environments.md."""
    assert graded(gold, reply)[0] == 0.0


def test_last_stated_answer_decides_whatever_the_solution_before_it_holds() -> None:
    solved = word_problems(60, seed=3)
    assert len({problem.solution for problem in solved}) == 60
    refused = [state(problem) for problem in solved for state in RIGHT if graded(problem.gold, state(problem))[0] != 1.0]
    accepted = [state(problem) for problem in solved for state in WRONG if graded(problem.gold, state(problem))[0] != 0.0]
    assert (refused, accepted) == ([], [])


@pytest.mark.parametrize("part", ["answer is ", "\\boxed{", "\\boxed{1}, ", "#### 1\n", "1 ", "\\(1", "$x "])
def test_long_reply_is_searched_for_a_bounded_number_of_answers(part: str) -> None:
    for characters in (1_000, 256_000):
        found = stated_answers((part * (characters // len(part) + 1))[:characters])
        ways = [way for statement in found for way in statement]
        assert len(found) <= MAX_STATEMENTS + 1
        assert max(len(way.text) for way in ways) <= MAX_UNSTATED_CHARS


@pytest.mark.parametrize(
    "reply", ["1, 2, 72, 4", "\\boxed{71} or \\boxed{72} or \\boxed{73}", "The answer is 71. The answer is 72. The answer is 73."]
)
def test_listing_numbers_is_not_answering(reply: str) -> None:
    assert graded(GSM8K["answer"], reply)[0] == 0.0


def test_reply_that_would_run_code_is_text() -> None:
    assert graded("3", "The answer is __import__('os').system('touch /tmp/marlaas-math-was-run')")[0] == 0.0
    assert not Path("/tmp/marlaas-math-was-run").exists()


def test_shipped_rows_are_gsm8k_and_solve_themselves() -> None:
    environment = MathProblems(file="word_problems.jsonl")

    async def play() -> list[float]:
        rewards: list[float] = []
        for index in range(40):
            opening = await environment.open(index, 1)
            turn = await environment.step(opening.state, Reply(await environment.gold(opening.state)))
            assert isinstance(turn, Finish)
            rewards.append(turn.reward)
        return rewards

    assert asyncio.run(play()) == [1.0] * 40


def test_an_epoch_visits_every_row_once_in_an_order_of_the_tasks_own() -> None:
    numbers = [{"number": number} for number in range(50)]
    visited = [row_at(numbers, index, seed=3)["number"] for index in range(100)]
    assert sorted(visited[:50]) == sorted(visited[50:]) == list(range(50))
    assert visited[:50] != visited[50:]
    assert visited != [row_at(numbers, index, seed=4)["number"] for index in range(100)]


@pytest.mark.parametrize("name", ["/etc/passwd", "../pyproject.toml", "a/../../b", "nowhere.jsonl"])
def test_task_names_no_file_outside_the_data_folder(name: str) -> None:
    with pytest.raises(WrongOptions, match="MARLAAS_ENV_DATA"):
        MathProblems(file=name)


def test_link_out_of_the_data_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, secret = tmp_path / "data", tmp_path / "secret.jsonl"
    folder.mkdir()
    secret.write_text(json.dumps(GSM8K))
    (folder / "link.jsonl").symlink_to(secret)
    (folder / "own.jsonl").write_text(json.dumps(GSM8K) + "\n\n")
    monkeypatch.setenv("MARLAAS_ENV_DATA", str(folder))
    datasets._data_folder.cache_clear()
    try:
        with pytest.raises(WrongOptions, match=r"no file 'link\.jsonl'"):
            MathProblems(file="link.jsonl")
        opening = asyncio.run(MathProblems(file="own.jsonl", instruction="Think.").open(3, 0))
    finally:
        datasets._data_folder.cache_clear()
    assert opening.messages[-1].content == f"{GSM8K['question']}\n\nThink."
    assert opening.state == "72"


def test_wrong_options_say_what_is_missing() -> None:
    with pytest.raises(WrongOptions, match="one of the options 'file' and 'dataset'"):
        MathProblems()
    with pytest.raises(WrongOptions, match=r"row 0 of word_problems\.jsonl has no text 'problem'"):
        MathProblems(file="word_problems.jsonl", question_field="problem")
    for path in ("/etc", ".", "json", "../x/y"):
        with pytest.raises(WrongOptions, match="not the name of a data set"):
            MathProblems(dataset=path)


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("", "'openai/gsm8k' is not offered here; the operator lists (MARLAAS_ENV_DATASETS): none"),
        ("a/b@main", "'openai/gsm8k' is not offered here; the operator lists (MARLAAS_ENV_DATASETS): a/b"),
        ("a/b@main, openai/gsm8k@e53f048", "Couldn't reach 'openai/gsm8k' on the Hub at e53f048"),
        ("*", "Couldn't reach 'openai/gsm8k' on the Hub (Offline"),
    ],
)
def test_data_set_is_what_the_operator_listed_at_its_revision(
    listed: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARLAAS_ENV_DATASETS", listed)
    monkeypatch.setenv("MARLAAS_ENV_DATA", str(tmp_path))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "guests" / "standins"))
    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    datasets._data_folder.cache_clear()
    try:
        with pytest.raises((WrongOptions, EnvironmentUnavailable)) as caught:
            MathProblems(dataset="openai/gsm8k")
    finally:
        datasets._data_folder.cache_clear()
        sys.modules.pop("datasets", None)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "listed", ["openai/gsm8k", "gsm8k@main", "openai/gsm8k@", "openai/gsm8k@a b", "acme=openai/gsm8k", "=a/b@c", "Acme=a/b@c"]
)
def test_data_set_without_a_revision_stops_the_process(listed: str) -> None:
    with pytest.raises(Fatal, match="is no data set with a revision, such as openai/gsm8k@"):
        datasets.ListedDatasets(listed)


def test_hugging_face_data_sets_are_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARLAAS_ENV_DATASETS", "*")
    assert find_spec("datasets") is None, "the environment of the tests has the extra now: test it with a data set of its own"
    with pytest.raises(WrongOptions, match=r"pip install 'marlaas\[datasets\]'"):
        MathProblems(dataset="openai/gsm8k")


def test_copy_of_a_hugging_face_data_set_may_lie_in_the_data_folder(tmp_path: Path) -> None:
    """Read by the package itself where DATASETS_PYTHON names an interpreter that has it, otherwise by a stand-in."""
    copy = tmp_path / "openai" / "gsm8k"
    (copy / "main").mkdir(parents=True)
    (copy / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/train-*\n"
        "  - split: test\n    path: main/test-*\n---\n"
    )
    for split, rows_there in (("train", [GSM8K, GSM8K]), ("test", [{**GSM8K, "question": "Another?"}])):
        (copy / "main" / f"{split}-00000-of-00001.jsonl").write_text("\n".join(map(json.dumps, rows_there)))
    real = os.environ.get("DATASETS_PYTHON")
    paths = [ROOT] if real else [ROOT, Path(__file__).parents[1] / "guests" / "standins"]
    variables = {
        "MARLAAS_ENV_DATA": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "HF_HUB_OFFLINE": "1",
        "MARLAAS_ENV_DATASETS": "*",
    }
    variables |= {"HF_HOME": str(tmp_path / "cache"), "PATH": os.environ["PATH"]}
    ended = subprocess.run([real or sys.executable, "-c", READ], env=variables, stdout=subprocess.PIPE, check=True, timeout=250)
    read = json.loads(ended.stdout)
    assert read["train"] == [GSM8K, GSM8K]
    assert read["test"] == ["Another?"]
    assert read["openai/other-None-train"].startswith("EnvironmentUnavailable: data set 'openai/other' cannot be loaded: ConnectionError")
    assert read["openai/gsm8k-main-dev"].startswith("WrongOptions: data set 'openai/gsm8k': Unknown split \"dev\"")


DRESSED = [
    "\\boxed{42", "$\\boxed{42", "\\boxed{42}\\boxed{", "\\boxed{42} \\boxed{}", "\\boxed{42}\n\\boxed{42}", "**\\boxed{ 42 }**.",
    "\\boxed{$42$}",
    "#### **42**.", "####\n42", "<answer>42", "<ANSWER>\n42\n</ANSWER>", "<answer></answer> 42", "<answer>\\boxed{42}</answer>",
    "Answer: \\[42\\]", "Answer: \\(42\\)", "**Answer:** `42`.", "Answer:\u00a042\u2028", "`42`", "42.", "\\boxed{42}<|im_end|>",
    "\\boxed{42}" + "\n" * 99,
]  # fmt: skip
"""42, cut, beside an empty statement, repeated and decorated."""


@pytest.mark.parametrize("reply", DRESSED)
async def test_right_answer_is_seen_in_any_dress(reply: str, rows_in: Callable[..., str]) -> None:
    problems = MathProblems(file=rows_in({"question": "What is 6 * 7?", "answer": "42"}))
    for shown, reward in ((reply, 1.0), (reply.replace("42", "41"), 0.0)):
        turn = await problems.step("42", Reply(shown))
        assert isinstance(turn, Finish) and turn.reward == reward, shown
