"""Environment `multi_hop`: questions whose answers need several documents. The policy searches a corpus with the tool `search`.

Rows are JSON objects with a question, its answer, and the titles of the documents that lead to it, in order:

    {"question": "In which village was the builder of the Heron Bridge born?", "answer": "Dunmere", "path": ["Heron Bridge", "Ivo Dray"]}

The first reply without a call is graded: the text after its last "Answer:", or all of it, must equal the answer except for
case, punctuation and articles (exact match as in SQuAD, arXiv 1606.05250).
"""

import re
import string
from collections import Counter
from typing import TypedDict

from env_svc.contract import ChatMessage, Environment, Finish, Opening, Reply, Turn, WrongOptions
from env_svc.datasets import Row, row_at, rows_of_file, text_of
from env_svc.tools.search import Search

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
INSTRUCTION = 'Search until you know. Then reply with "Answer:" and the answer alone.'


class MultiHopState(TypedDict):
    answer: str
    path: list[str]


class MultiHop(Environment[MultiHopState]):
    """One question, many searches; reward 1 for the answer."""

    components = ("exact", "overlap", "searched")

    def __init__(
        self,
        questions: str = "valley_questions.jsonl",
        corpus: str = "valley.jsonl",
        results: int = 3,
        most_hops: int = 8,
        instruction: str = INSTRUCTION,
    ) -> None:
        rows = rows_of_file(questions)
        for number, row in enumerate(rows):
            if not isinstance(row.get("question"), str) or text_of(row.get("answer")) is None or not isinstance(row.get("path"), list):
                raise WrongOptions(f"environment 'multi_hop': row {number} of {questions} needs a question, an answer and a path")
        self._rows: list[Row] = [row for row in rows if len(row["path"]) <= most_hops]
        if not self._rows:
            raise WrongOptions(f"environment 'multi_hop': no question in {questions} has at most {most_hops} hops")
        self._instruction = instruction
        self.tools = (Search(corpus, results),)

    async def open(self, index: int, seed: int) -> Opening[MultiHopState]:
        row = row_at(self._rows, index, seed)
        question = f"{row['question']}\n\n{self._instruction}" if self._instruction else str(row["question"])
        return Opening(
            [ChatMessage(role="user", content=question)], MultiHopState(answer=text_of(row["answer"]) or "", path=list(row["path"]))
        )

    async def step(self, state: MultiHopState, reply: Reply) -> Turn[MultiHopState]:
        given, right = normalized(reply.text.rpartition("Answer:")[2]), normalized(state["answer"])
        exact = float(given == right)
        searched = float(reply.usage is not None and reply.usage.calls > 0)
        return Finish(exact, {"exact": exact, "overlap": overlap(given, right), "searched": searched})

    async def gold(self, state: MultiHopState) -> str | None:
        return f"Answer: {state['answer']}"


def normalized(text: str) -> str:
    """Lower case, without punctuation, articles and extra blanks."""
    plain = text.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(ARTICLES.sub(" ", plain).split())


def overlap(given: str, right: str) -> float:
    """F1 of the words of two normalized texts."""
    shared = (Counter(given.split()) & Counter(right.split())).total()
    return 2 * shared / (len(given.split()) + len(right.split())) if shared else 0.0
