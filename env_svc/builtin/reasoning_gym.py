"""Environments `reasoning_gym:<dataset>`: all data sets of reasoning-gym. The door to that library.

A task's row i is item i of `create_dataset(<dataset>, seed=<task's seed>, size=ROWS)`; after ROWS rows the data set restarts
with a seed derived from the task's. Options: the data set's own configuration, and `system` and `instruction`, texts before
and after the question. The policy may answer plainly or in `<answer>` tags.

The library opens some texts of a configuration as files (`spell_backward`'s `data_file`) and evaluates others as code (the symbols of
`simple_integration`). So a text is refused unless it is one of the option's default, or plain words, which name no file and call nothing.
"""

import dataclasses
import enum
import hashlib
import json
import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import localcontext
from functools import cache
from types import UnionType
from typing import Any, Literal, TypedDict, Union, get_args, get_origin, get_type_hints

from pydantic import JsonValue
from reasoning_gym.factory import DATASETS, create_dataset

from common.caches import LRUCache
from env_svc.builtin.reply_filter import UNREADABLE, readable
from env_svc.contract import ChatMessage, Environment, EnvironmentUnavailable, Finish, Opening, Reply, Turn, WrongOptions
from env_svc.options import Option, validated_options

ROWS = 2_000
"""Items of one data set object. A few data sets generate all their items together: 0.7 s for the slowest."""
MAX_DATASETS = 16
MAX_ENTRIES = 1_024
"""Items cached per process: generating one takes from microseconds to seconds, and all members of a group need it."""
MAX_ANSWER_CHARS = 16 * 1024
"""Maximum length of a scored answer, or twice that of the right one if longer: some scorers are slower than linear."""
UNREPEATABLE = frozenset({"codeio"})
"""Data sets that yield another item for the same row and seed: the answer travels with the state."""


OF_THE_TASK = ("seed", "size")
"""Fields of a data set's configuration that the task's rows and seed determine, so that no option may set them."""


WORDS = re.compile(r"[^\W_]+(?: [^\W_]+)*", re.ASCII)


MAX_CHARS = 40


CLOSED = (int, float, bool, type(None), date, time, datetime)
"""Types whose values are not free text."""


Entry = dict[str, Any]
"""Item: `question`, `answer` and `metadata`. `Any` because only the item's scorer knows its metadata."""


class ReasoningGymState(TypedDict):
    """State from which the item is regenerated."""

    row: int
    seed: int
    digest: str
    """Digest of the item, to detect a regenerated one that differs."""
    entry: Entry | None
    """The item itself, if it cannot be regenerated."""


class ReasoningGym(Environment[ReasoningGymState]):
    """One data set with one configuration."""

    cpu_bound = True
    components = ("score", "unreadable")
    checks_options = True

    def __init__(self, dataset: str, **options: JsonValue) -> None:
        self._dataset = dataset
        where = f"environment 'reasoning_gym:{dataset}'"
        known = [*options_of(dataset), Option("system", str, ""), Option("instruction", str, "")]
        for name in OF_THE_TASK:
            if name in options:
                raise WrongOptions(f"{where}: '{name}' is not an option; rows and their seed come from the task")
        values = validated_options(where, known, options)
        check_texts(where, dataset, options)
        self._system: str = values.pop("system", "")
        self._instruction: str = values.pop("instruction", "")
        self._values = values
        self._key = json.dumps(options, sort_keys=True)
        _validate(where, dataset, values)

    @classmethod
    def arguments(cls) -> Sequence[str]:
        return sorted(DATASETS)

    async def open(self, index: int, seed: int) -> Opening[ReasoningGymState]:
        entry = self._entry(index, seed)
        question = f"{entry['question']}\n\n{self._instruction}" if self._instruction else str(entry["question"])
        messages = [ChatMessage(role="system", content=self._system)] if self._system else []
        messages.append(ChatMessage(role="user", content=question))
        kept = _without_question(entry) if _source(self._dataset, entry) in UNREPEATABLE else None
        return Opening(messages, ReasoningGymState(row=index, seed=seed, digest=_digest(entry), entry=kept))

    async def step(self, state: ReasoningGymState, reply: Reply) -> Turn[ReasoningGymState]:
        entry = state["entry"] or self._entry(state["row"], state["seed"])
        if state["entry"] is None and _digest(entry) != state["digest"]:
            raise EnvironmentUnavailable("another replica asked another question for this row: versions of reasoning-gym differ")
        answer = answer_in(reply.text)
        dataset = self._made(state["seed"], state["row"] // ROWS)
        longest = max(MAX_ANSWER_CHARS, 2 * len(str(entry["answer"])))
        return self._graded(dataset, entry, answer if len(answer) <= longest else UNREADABLE)

    async def gold(self, state: ReasoningGymState) -> str | None:
        answer = (state["entry"] or self._entry(state["row"], state["seed"]))["answer"]
        return answer if isinstance(answer, str) else None

    def _graded(self, dataset: Any, entry: Entry, answer: str) -> Finish:
        try:
            with localcontext():  # some set the precision of the process, which serves other tasks too
                score = float(dataset.score_answer(readable(_source(self._dataset, entry), answer), entry))
        except Exception:
            # Some scorers raise on answers of another form; one that raises on its own answer too is broken.
            dataset.score_answer(entry["answer"], entry)
            return Finish(0.0, {"score": 0.0, "unreadable": 1.0})
        return Finish(score, {"score": score})

    def _entry(self, row: int, seed: int) -> Entry:
        if self._dataset in UNREPEATABLE:  # its items also depend on earlier uses of its class
            _datasets().pop((self._dataset, self._key, seed, row // ROWS))
            return self._item(row, seed)
        return _entries().get((self._dataset, self._key, seed, row), lambda: self._item(row, seed))

    def _item(self, row: int, seed: int) -> Entry:
        block, index = divmod(row, ROWS)
        try:
            with localcontext():
                return self._made(seed, block)[index]
        except Exception:
            # A data set may have changed under a failure (word_ladder shrinks): the next row gets a new one.
            _datasets().pop((self._dataset, self._key, seed, block))
            raise

    def _made(self, seed: int, block: int) -> Any:
        """The data set with the items of one block. `Any` because the library's classes are not typed."""
        return _datasets().get(
            (self._dataset, self._key, seed, block),
            lambda: create_dataset(self._dataset, size=ROWS, seed=_block_seed(seed, block), **self._values),
        )


def answer_in(text: str) -> str:
    """The text of a reply's last `<answer>…</answer>`, or all of it, in linear time, which reasoning-gym's `extract_answer` is not."""
    answer, position = text, 0
    while (begins := text.find("<answer>", position)) >= 0 and (ends := text.find("</answer>", begins)) >= 0:
        answer, position = text[begins + len("<answer>") : ends], ends
    return answer.strip()


@cache
def _datasets() -> LRUCache[tuple[str, str, int, int], Any]:
    return LRUCache(MAX_DATASETS)


@cache
def _entries() -> LRUCache[tuple[str, str, int, int], Entry]:
    return LRUCache(MAX_ENTRIES)


def _block_seed(seed: int, block: int) -> int:
    """Seed of a block, far from its neighbours: item i of a data set is generated from its seed plus i."""
    if block == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}:{block}".encode()).digest()[:4], "little") % 2**31


def _validate(where: str, dataset: str, values: dict[str, Any]) -> None:
    """The data set's own checks. Raises: WrongOptions, with the condition that does not hold."""
    try:
        configuration = DATASETS[dataset][1](size=ROWS, seed=0, **values)
        if hasattr(configuration, "validate"):  # as the library's own factory asks
            configuration.validate()
    except AssertionError as error:
        raise WrongOptions(f"{where}: {error or _condition(error)}") from None
    except Exception as error:
        raise WrongOptions(f"{where}: {error}") from None


def _condition(error: AssertionError) -> str:
    """The condition of an assertion without a message: `assert self.min_value > 0` as `min_value > 0`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "its configuration is not valid"
    line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno).strip()
    return f"does not hold: {line.removeprefix('assert ').replace('self.', '')}"


def _source(dataset: str, entry: Entry) -> str:
    """The data set of an item: one of several where `dataset` is composite."""
    return str(entry["metadata"].get("source_dataset", dataset)) if dataset == "composite" else dataset


def _without_question(entry: Entry) -> Entry:
    return {"question": "", "answer": entry["answer"], "metadata": {"source_dataset": entry["metadata"].get("source_dataset")}}


def _digest(entry: Entry) -> str:
    return hashlib.sha256(f"{entry['question']}\0{entry['answer']}".encode()).hexdigest()[:16]


def options_of(dataset: str) -> list[Option]:
    """The data set's own configuration options, without fields set from the task."""
    hints = get_type_hints(DATASETS[dataset][1])
    return [Option(field.name, hints[field.name], _default(field)) for field in _fields(dataset)]


def check_texts(where: str, dataset: str, options: Mapping[str, JsonValue]) -> None:
    """Raises: WrongOptions for a text that a task may not set, including in configurations nested in `composite`."""
    for option in options_of(dataset):
        value = options.get(option.name)
        if value is None or _is_closed(option.annotation):
            continue
        if dataset == "composite" and option.name == "datasets":
            _check_parts(where, value)
            continue
        known = {*_texts(option.default)}
        for text in _texts(value):
            if text not in known and not (len(text) <= MAX_CHARS and WORDS.fullmatch(text)):
                allowed = f"words of letters and digits, or of {sorted(known)!r:.200}"
                raise WrongOptions(f"{where}: option '{option.name}' may hold {allowed} (given: {text!r:.60})")


def _check_parts(where: str, parts: JsonValue) -> None:
    for part in parts if isinstance(parts, list) else []:
        if isinstance(part, dict):
            name, config = part.get("name"), part.get("config") or {}
            if not isinstance(name, str) or name not in DATASETS or not isinstance(config, dict):
                raise WrongOptions(
                    f"{where}: option 'datasets': expected the name of a data set and its configuration (given: {part!r:.60})"
                )
            check_texts(f"{where}, '{name}'", name, config)


def _texts(value: object) -> Iterator[str]:
    """All texts in a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from (*_texts(key), *_texts(one))
    elif isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from _texts(one)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from (field.name, *_texts(getattr(value, field.name)))


def _is_closed(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Literal:
        return True
    if origin in (Union, UnionType, list, tuple):
        return all(one is Ellipsis or _is_closed(one) for one in get_args(hint))
    return hint in CLOSED or (isinstance(hint, type) and issubclass(hint, enum.Enum))


def _fields(dataset: str) -> "list[dataclasses.Field[Any]]":
    return [field for field in dataclasses.fields(DATASETS[dataset][1]) if field.name not in OF_THE_TASK]


def _default(field: "dataclasses.Field[Any]") -> object:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None
