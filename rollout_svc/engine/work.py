"""Engine requests, their ids and results, and the work done per task.

Ids and seeds are derived from a request, so that a redelivered message repeats both the request and the answer.
"""

import asyncio
import hashlib
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, repeat
from typing import Literal

from common.accelerators import WorkDone
from common.errors import HandedBack, Reject
from common.messages import GroupContext
from rollout_svc.text.reply_text import StopStrings

REMEMBERED_REQUESTS = 256
"""Number of recent request durations used for prediction."""
WARM_UP_LENGTHS = (2, 5, 40, 120, 160, 200)
"""Prompt lengths of the invariance check, in tokens."""
WARM_UP_TOKENS = 16
"""Number of different tokens in these prompts: no model has a smaller vocabulary."""
LATE_SHARE = 0.9
"""Fraction of requests that finish within the predicted duration."""


@dataclass(frozen=True)
class SampleRequest:
    request_id: str
    ids: Sequence[int]
    max_tokens: int
    temperature: float
    seed: int
    """Seed below 2**63. Equal requests with equal seeds give equal answers: exactly if the engine `is_invariant`, otherwise up to rounding
    that depends on the batch."""
    stop_ids: Sequence[int]
    adapter: str | None
    """Name of a loaded adapter; None is the base model."""
    priority: int = 0
    """Lower runs first."""
    stop_strings: StopStrings | None = None
    """Stop-string matcher of this reply, which ends with the token that completes a string."""
    task: str = ""
    """Task that its tokens are counted for; empty: none."""


@dataclass(frozen=True)
class Sampled:
    """Result of one request. Shapes: `ids` and `logprobs` (T,), the ending token included."""

    ids: list[int]
    logprobs: list[float]
    finish: Literal["stop", "length", "aborted"]


def require_embedded(ids: Sequence[int], rows: int) -> None:
    """Raises: Reject for ids without an embedding: a tokenizer may have more tokens than the model, and such an id crashes the engine."""
    if ids and not 0 <= min(ids) <= max(ids) < rows:
        wrong = next(token for token in ids if not 0 <= token < rows)
        raise Reject(f"the prompt has token {wrong}, and the model has embeddings for tokens 0 to {rows - 1} only")


def warm_up_request(number: int, length: int, priority: int, adapter: str | None = None) -> SampleRequest:
    """Request `number`, whose prompt is a prefix of the longer ones, as prompts of one episode's turns are."""
    return SampleRequest(
        f"warm-up:{number}",
        ids=[token % WARM_UP_TOKENS for token in range(length)],
        max_tokens=3,
        temperature=1.0,
        seed=number,
        stop_ids=[],
        adapter=adapter,
        priority=priority,
    )


def invariance_requests(context_tokens: int, priority: int, adapters: Sequence[str]) -> list[SampleRequest]:
    """Requests whose answers must not depend on whether they are sampled alone or together, for the base model and for `adapters` in turn;
    prompts are cut to the context length.
    """
    wanted = [*zip(WARM_UP_LENGTHS, repeat(None)), *zip(WARM_UP_LENGTHS, cycle(adapters))]
    return [warm_up_request(number, min(length, context_tokens - 3), priority, adapter) for number, (length, adapter) in enumerate(wanted)]


class Gate:
    """Entrance of the engine; requests wait here while it is parked."""

    def __init__(self, *, is_open: bool) -> None:
        self._opened = asyncio.Event()
        self._waiting: Counter[str] = Counter()
        self._dropped: set[str] = set()
        if is_open:
            self.open()

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    @property
    def waiting(self) -> int:
        """Number of requests that will enter when the gate opens."""
        return sum(count for request, count in self._waiting.items() if request not in self._dropped)

    def open(self) -> None:
        self._opened.set()

    def close(self) -> None:
        self._opened.clear()

    async def enter(self, request_id: str) -> bool:
        """Wait until the gate is open; return False if the request was dropped meanwhile."""
        if self.is_open:
            return True
        self._waiting[request_id] += 1
        try:
            await self._opened.wait()
            return request_id not in self._dropped
        finally:
            self._waiting -= Counter([request_id])
            self._dropped &= self._waiting.keys()

    def drop(self, request_ids: Sequence[str]) -> None:
        self._dropped |= self._waiting.keys() & set(request_ids)


@dataclass
class Entry:
    """A request inside the engine."""

    request_id: str
    task: str
    began_s: float
    tokens: int = 0
    """Tokens sampled for it."""
    counted: int = 0
    """Sampled tokens that `taken` has reported."""
    delivered: int = 0
    """Sampled tokens that its caller has received."""
    is_handed_back: bool = False
    """Whether it ends without an answer because the engine is closed."""

    def sampled(self, tokens: int) -> None:
        """Count `tokens` delivered to the caller. Raises: HandedBack."""
        if self.is_handed_back:
            raise HandedBack("this replica closes its engine")
        self.delivered += tokens
        self.tokens = max(self.tokens, self.delivered)


class WorkMeter:
    """Tracks requests inside the engine, and tokens per task. Its clock stops while the engine is parked."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._inside: dict[int, Entry] = {}
        self._number = 0
        self._tokens: Counter[str] = Counter()
        self._ended = 0
        self._durations_s: deque[float] = deque(maxlen=REMEMBERED_REQUESTS)
        self._awake_s = 0.0
        self._awake_since_s: float | None = now_s()
        self._busy_s = 0.0
        self._busy_since_s = 0.0
        """`clock_s` when the engine became busy, or when `taken` was last called while it was busy."""
        self.idle = asyncio.Event()
        """Set while no request is inside."""
        self.idle.set()

    @property
    def inside(self) -> int:
        return len(self._inside)

    @property
    def clock_s(self) -> float:
        """Seconds for which the engine was awake in total."""
        return self._awake_s + (self._now_s() - self._awake_since_s if self._awake_since_s is not None else 0.0)

    def begin(self, request_id: str, task: str) -> Entry:
        entry = Entry(request_id, task, self.clock_s)
        if not self._inside:
            self._busy_since_s = entry.began_s
            self.idle.clear()
        self._inside[id(entry)] = entry
        return entry

    def end(self, entry: Entry) -> None:
        del self._inside[id(entry)]
        self._tokens[entry.task] += entry.tokens - entry.counted
        self._ended += entry.task != ""
        self._durations_s.append(self.clock_s - entry.began_s)
        if not self._inside:
            self._busy_s += self.clock_s - self._busy_since_s
            self.idle.set()

    def hand_back(self, request_ids: Collection[str] | None = None) -> list[str]:
        """Mark these requests, or all inside the engine, as handed back; return the ids of those inside."""
        chosen = [entry for entry in self._inside.values() if request_ids is None or entry.request_id in request_ids]
        for entry in chosen:
            entry.is_handed_back = True
        return [entry.request_id for entry in chosen]

    def stop(self) -> None:
        """Stop the clock: the engine is parked."""
        self._awake_s, self._awake_since_s = self.clock_s, None

    def go(self) -> None:
        """Start the clock: the engine is awake."""
        if self._awake_since_s is None:
            self._awake_since_s = self._now_s()

    def left_s(self) -> float | None:
        """Expected seconds until all requests inside have ended; None if there is none, or no request has ever ended."""
        if not self._inside or not self._durations_s:
            return None
        expected_s = sorted(self._durations_s)[int(LATE_SHARE * (len(self._durations_s) - 1))]
        youngest_s = self.clock_s - max(entry.began_s for entry in self._inside.values())
        return max(0.0, expected_s - youngest_s)

    def taken(self, progress: Mapping[str, int]) -> WorkDone:
        """Work done since the previous call. `progress`: tokens sampled so far for each request inside the engine, by request id."""
        for entry in self._inside.values():
            entry.tokens = max(entry.tokens, progress.get(entry.request_id, 0))
            self._tokens[entry.task] += entry.tokens - entry.counted
            entry.counted = entry.tokens
        if self._inside:
            self._busy_s += self.clock_s - self._busy_since_s
            self._busy_since_s = self.clock_s
        by_task = {task: tokens for task, tokens in self._tokens.items() if task and tokens}
        served = WorkDone(by_task, self._busy_s, self._ended)
        self._tokens.clear()
        self._busy_s, self._ended = 0.0, 0
        return served


def seed_of(group: GroupContext, member: int, turn: int) -> int:
    """The sampling seed of one turn: 63 bits, different for every member and turn of a group."""
    digest = hashlib.sha256(f"{group.seed}:{member}:{turn}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def request_id(group: GroupContext, member: int, turn: int) -> str:
    """The engine's id of one member's turn."""
    return f"{group.task}:{group.group}:{member}:{turn}"


def message_id(group: GroupContext, members: Sequence[tuple[int, int]]) -> str:
    """Id of a message that carries these (member, turn) pairs.

    After a redelivery, members may finish in other combinations, and a turn is then sent twice under two ids:
    the environment replays it, and the scheduler uses the first.
    """
    pairs = sorted(members)
    turns = ".".join(str(turn) for turn in sorted({turn for _, turn in pairs}))
    return f"{group.task}:{group.group}:{'.'.join(str(member) for member, _ in pairs)}:{turns}:sampled"
