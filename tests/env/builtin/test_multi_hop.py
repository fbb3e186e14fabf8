"""The tool `search`, and questions that need it more than once."""

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest

from env_svc.builtin.data import make_valley
from env_svc.builtin.multi_hop import MultiHop, normalized, overlap
from env_svc.contract import Finish, Reply, ToolUsage, WrongOptions
from env_svc.datasets import SHIPPED, rows_of_file
from env_svc.tools.registry import build
from env_svc.tools.search import Search, index_of
from env_svc.tools.tool import CallError


async def test_best_documents_come_first() -> None:
    answer = await Search(results=2).call({"query": "Who built the Heron Bridge?"})
    assert answer.startswith("Heron Bridge: The Heron Bridge stands near")
    assert answer.count("\n") == 1


@pytest.mark.parametrize("query", ["qwertz", "the", "?!", "größer"])
async def test_search_without_a_result_is_answered(query: str) -> None:
    with pytest.raises(CallError, match="no document has any of these words"):
        await Search().call({"query": query})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"corpus": "/etc/passwd"}, "inside the folder MARLAAS_ENV_DATA"),
        ({"corpus": "../secret.jsonl"}, "without '..'"),
        ({"corpus": "valey.jsonl"}, "no file 'valey.jsonl'"),
        ({"corpus": "valley_questions.jsonl"}, "document 0: expected the texts 'title' and 'text'"),
        ({"results": 0}, "results is 0, expected 1 to 20"),
    ],
)
def test_wrong_corpus_is_refused(options: dict[str, object], reason: str) -> None:
    with pytest.raises(WrongOptions, match=reason):
        build("search", options)  # pyright: ignore


def test_shipped_files_are_what_their_maker_makes() -> None:
    known = make_valley.world(random.Random(make_valley.SEED))
    for name, rows in (("valley.jsonl", make_valley.documents(known)), ("valley_questions.jsonl", make_valley.questions(known))):
        assert [json.loads(line) for line in (SHIPPED / name).read_text().splitlines()] == rows


def test_every_question_can_be_answered_by_following_its_path() -> None:
    """Each document names the next; the last holds the answer; and each is found by its own title."""
    index = index_of("valley.jsonl")
    texts = dict(zip(index.titles, index.texts, strict=True))
    questions = rows_of_file("valley_questions.jsonl")
    assert len(questions) == 180
    for row in questions:
        path = row["path"]
        assert path[0] in row["question"]
        for here, there in pairwise(path):
            assert there in texts[here]
        assert row["answer"] in texts[path[-1]]
        assert row["answer"] not in row["question"]
        assert all(title in [index.titles[number] for number in index.best(title, 3)] for title in path)


async def test_answer_is_graded_and_searching_is_seen() -> None:
    environment = MultiHop()
    opening = await environment.open(0, 0)
    gold = await environment.gold(opening.state)
    assert gold is not None
    right = await environment.step(opening.state, Reply(gold, usage=ToolUsage(calls=2)))
    assert right == Finish(1.0, {"exact": 1.0, "overlap": 1.0, "searched": 1.0})
    assert await environment.step(opening.state, Reply("Answer: no idea")) == Finish(0.0, {"exact": 0.0, "overlap": 0.0, "searched": 0.0})
    assert [tool.name for tool in environment.tools if not isinstance(tool, str)] == ["search"]


async def test_hops_can_be_bounded() -> None:
    short = MultiHop(most_hops=2)
    assert {len((await short.open(index, 3)).state["path"]) for index in range(60)} == {2}
    with pytest.raises(WrongOptions, match=r"no question in valley_questions.jsonl has at most 1 hops"):
        MultiHop(most_hops=1)


def test_answers_are_compared_without_what_does_not_matter() -> None:
    assert normalized(" The Lake,  Iven. ") == "lake iven"
    assert overlap("lake iven", "lake sulm") == 0.5
    assert overlap("", "lake") == 0.0


def test_questions_without_a_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongOptions, match=r"row 0 of small_programs.jsonl needs a question, an answer and a path"):
        MultiHop("small_programs.jsonl")
