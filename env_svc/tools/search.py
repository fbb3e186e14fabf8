"""Tool `search`: a local corpus, ranked by BM25. The door to bm25s.

A corpus is a JSONL file of documents, `{"title": …, "text": …}`, in the folder MARLAAS_ENV_DATA or shipped.
Source: Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009.
"""

import asyncio
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import bm25s

from env_svc.datasets import rows_of_file
from env_svc.tools.tool import Arguments, CallError, Tool, WrongOptions

MAX_RESULTS = 20


@dataclass(frozen=True)
class SearchIndex:
    """Documents and their BM25 index."""

    titles: list[str]
    texts: list[str]
    ranking: Any  # of bm25s, which is not typed

    def best(self, query: str, max_results: int) -> list[int]:
        """Indices of the documents that share a word with the query, best first."""
        words = _words([query])
        if not words[0]:
            return []
        numbers, scores = self.ranking.retrieve(words, k=min(max_results, len(self.titles)), show_progress=False)
        return [int(number) for number, score in zip(numbers[0], scores[0], strict=True) if score > 0]


@lru_cache(maxsize=8)
def index_of(corpus: str) -> SearchIndex:
    """The index of a file, built once per process. Raises: WrongOptions, naming the invalid document."""
    rows = rows_of_file(corpus)
    for number, row in enumerate(rows):
        if not isinstance(row.get("title"), str) or not isinstance(row.get("text"), str):
            raise WrongOptions(f"corpus '{corpus}' document {number}: expected the texts 'title' and 'text'")
    if not rows:
        raise WrongOptions(f"corpus '{corpus}' has no documents")
    titles, texts = [row["title"] for row in rows], [row["text"] for row in rows]
    ranking = bm25s.BM25()
    ranking.index(_words([f"{title} {text}" for title, text in zip(titles, texts, strict=True)]), show_progress=False)
    return SearchIndex(titles, texts, ranking)


class Search(Tool):
    """Returns the documents that match a query best."""

    name = "search"
    parameters = {
        "type": "object",
        "properties": {"query": {"type": "string", "minLength": 1, "maxLength": 500}},
        "required": ["query"],
        "additionalProperties": False,
    }

    def __init__(self, corpus: str = "valley.jsonl", results: int = 3) -> None:
        if not 1 <= results <= MAX_RESULTS:
            raise WrongOptions(f"results is {results}, expected 1 to {MAX_RESULTS}")
        self._index = index_of(corpus)
        self._results = results
        self.description = f"Search {len(self._index.titles)} documents by keywords and see the {results} that fit best."

    async def call(self, arguments: Arguments) -> str:
        found = await asyncio.to_thread(self._index.best, str(arguments["query"]), self._results)
        if not found:
            raise CallError("no document has any of these words")
        return "\n".join(f"{self._index.titles[number]}: {self._index.texts[number]}" for number in found)


def _words(texts: list[str]) -> list[list[str]]:
    return cast("list[list[str]]", bm25s.tokenize(texts, stopwords="en", return_ids=False, show_progress=False))
