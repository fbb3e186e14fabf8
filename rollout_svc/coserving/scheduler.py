"""vLLM's scheduler for pools with latency goals.

Rollouts that `plan.py` holds are hidden from vLLM for the step. They keep their KV cache and their place. vLLM preempts only requests
that it sees, so a served request without a free block would evict another served one: blocks are made free before each step. Rollouts
never take the sequence slots that are reserved for serving.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from vllm.v1.request import Request

from rollout_svc.coserving.entry import RolloutEntry
from rollout_svc.coserving.figures import FigureFile, Figures
from rollout_svc.coserving.plan import (
    AIMED,
    LEFT,
    PROMPTS_PLANNED,
    PROMPTS_SEEN,
    Certain,
    Due,
    Plan,
    Share,
    Stream,
    Wanted,
    decide,
    next_due,
    prompts_at_once,
    prompts_entering,
)
from rollout_svc.coserving.preemption import ServingScheduler, adapter_of, is_urgent, only
from rollout_svc.coserving.pressure import Cut, cut
from rollout_svc.coserving.step_time import Step, StepTime
from rollout_svc.engine.config import GOALS, URGENT_PRIORITY

USED = ("max_num_active_reqs", "prev_step_scheduled_req_ids", "kv_holding_waiting", "_preempt_request", "_free_request", "_pause_state")
"""Names of vLLM's scheduler that latency goals need."""
PROFILE_STEPS = 512
"""Maximum first steps, of `engine/profile.py` and after it, from which the step time model begins."""
MAX_FAILURES = 10
"""Failures of planning in a row after which goals are off."""
WRITTEN_EVERY_S = 0.1
LOGGED_EVERY_S = 60.0
"""Minimum seconds between two tracebacks of failed plans."""
NEVER_LATE = Due(-inf, -inf)
"""Of an urgent request without goals: it enters in the next step, and holds no rollout back."""

T = TypeVar("T")
Chosen = tuple[list[Request], list[Request]]
"""Waiting and running requests that may run."""
log = logging.getLogger(__name__)


@dataclass
class _Served:
    """A request with latency goals. Times on `time.monotonic()`."""

    first: Due
    tpot_s: float
    tokens: int = 0
    """Tokens delivered."""
    first_s: float = 0.0
    last_s: float = 0.0
    """Times of its first and its latest token."""


def require_names(scheduler: object) -> None:
    """Raises: RuntimeError if vLLM's scheduler lacks a name that latency goals need."""
    if missing := [name for name in USED if not hasattr(scheduler, name)]:
        raise RuntimeError(f"latency goals need a vLLM whose scheduler has {', '.join(missing)}; install a tested one")


def by_adapter(rollouts: list[Request]) -> list[Request]:
    """Rollouts grouped by adapter, the group with the oldest rollout first: the order in which they run beside requests.

    Each adapter in a batch costs time, and the training steps of few tasks end sooner than those of all.
    """
    groups: dict[int, list[Request]] = {}
    for request in rollouts:
        groups.setdefault(adapter_of(request), []).append(request)
    return [request for group in groups.values() for request in group]


class CoservingScheduler(ServingScheduler):
    """Holds rollouts back as far as the latency goals of served requests demand."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        require_names(self)
        config: Any = self.vllm_config  # vLLM's types are loose
        options = config.additional_config[GOALS]
        self._share: float = options["training_share"]
        self._rollout_seats: int = options["rollouts"]
        self._file = FigureFile(Path(options["figures"]))
        self._is_chunking = self.scheduler_config.enable_chunked_prefill
        self._chunk = self.scheduler_config.long_prefill_token_threshold or self.max_num_scheduled_tokens
        self._most_active = self.max_num_active_reqs
        self._served: dict[str, _Served] = {}
        self._profile: list[Step] = []
        self._times: StepTime | None = None  # begins after PROFILE_STEPS, or with the first request that has goals
        self._steps: deque[tuple[Any, float, int, int]] = deque()  # under way: vLLM's output, begin, decodes, prefill tokens
        self._ended_s = self._written_s = 0.0
        self._first_token_s = 0.0  # planned for the latest request with goals
        self._cut: Cut | None = None
        self._kept = 0  # rollouts that ran after the cut
        self._entry = RolloutEntry(self)
        self._newest_adapter = self._held = self._failures = 0
        self._logged_s = float("-inf")
        self._is_hiding = self._is_stalled = False
        self._training = Share()
        self._counts: Counter[str] = Counter()

    def add_request(self, request: Request) -> None:
        super().add_request(request)
        extra = request.sampling_params.extra_args if request.sampling_params is not None else None
        if extra and (goals := extra.get(GOALS)):
            latest_s: float = goals["first_due_s"]
            left_s = max(0.0, latest_s - time.monotonic())
            self._first_token_s = AIMED * left_s
            self._served[request.request_id] = _Served(Due(latest_s - (1 - AIMED) * left_s, latest_s), goals["tpot_s"])
        if not is_urgent(request):
            self._newest_adapter = max(self._newest_adapter, adapter_of(request))

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        began_s, self._held, self._is_hiding = time.monotonic(), 0, False
        output = super().schedule(*args, **kwargs)
        scheduled = output.num_scheduled_tokens.values()
        decodes = sum(count == 1 for count in scheduled)
        self._steps.append((output, began_s, decodes, sum(scheduled) - decodes))
        # If served requests could not use the step, the next one is vLLM's.
        self._is_stalled = self._is_hiding and not scheduled
        if began_s - self._written_s >= WRITTEN_EVERY_S:
            self._written_s = began_s
            self._write()
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        now_s = time.monotonic()
        while self._steps:
            output, began_s, decodes, tokens = self._steps.popleft()
            if output is scheduler_output:
                # A step scheduled while another was under way began when that one ended.
                self._learn(decodes, tokens, now_s - max(began_s, self._ended_s))
                break
        self._ended_s = now_s
        outputs = super().update_from_output(scheduler_output, *args, **kwargs)
        for name in self._served.keys() & scheduler_output.num_scheduled_tokens.keys():
            request, served = self.requests.get(name), self._served[name]
            if request is not None and request.num_output_tokens > served.tokens:
                served.first_s, served.last_s = served.first_s or now_s, now_s
                served.tokens = request.num_output_tokens
        return outputs

    def _learn(self, decodes: int, tokens: int, took_s: float) -> None:
        if self._times is not None and decodes + tokens:
            self._times.learn(decodes, tokens, took_s)
        elif decodes + tokens:
            self._profile.append((decodes, tokens, took_s))
            if len(self._profile) == PROFILE_STEPS:
                self._times = StepTime(self._profile)

    # -------------------------------------------------------------------------------------------------------- pressure

    def _make_room(self, urgent: list[Request]) -> None:
        """For requests with goals, running ones too, rollouts give up half of their blocks at once; for canaries, only what these need."""
        self._entry.reserve(urgent)
        if urgent:
            self._free_slots(urgent)
        short = self._missing_blocks(self._with_goals(urgent)) if self._has_goals(urgent) else 0
        held = self.blocks_of_rollouts() if short > 0 else 0
        self._cut = cut(self._cut, held, short, self._newest_adapter, time.monotonic())
        if urgent or short > 0:
            self._clear_blocks(urgent, held - self._cut.blocks if short > 0 and self._cut is not None else 0)
        if short > 0:
            self._kept = sum(not is_urgent(request) for request in self.running)

    def _with_goals(self, requests: list[Request]) -> list[Request]:
        return [request for request in requests if request.request_id in self._served]

    def _has_goals(self, urgent: list[Request]) -> bool:
        """Whether goals are on, and a request with goals runs, or waits among `urgent`."""
        is_on = bool(self._served) and self._failures < MAX_FAILURES
        return is_on and bool(self._with_goals(urgent) or self._with_goals(self.serving))

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if not is_urgent(request):
            self._counts.update(preempted=1, recomputed_tokens=request.num_computed_tokens)
        super()._preempt_request(request, *args, **kwargs)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self._entry.ended(request)
        return super()._free_request(request, *args, **kwargs)

    # -------------------------------------------------------------------------------------------------------- planning

    @contextmanager
    def _visible(self, urgent: list[Request]) -> Generator[None]:
        """Without a plan, all that wait are visible, but rollouts do not take the places of served requests."""
        rollouts = [request for request in self.running if request.priority > URGENT_PRIORITY]
        free = max(0, self._rollout_seats - len(rollouts))
        chosen = None if self._is_stalled else self._guarded(lambda: self._chosen(urgent, rollouts, free))
        running = self.running if chosen is None else chosen[1]
        self._held = len(self.running) - len(running)
        self.max_num_active_reqs = min(self._most_active - self._held, len(running) + len(urgent) + free)
        try:
            if chosen is None:
                self._count(len(rollouts), len(rollouts))
                yield
            else:
                self._is_hiding = True
                with only(self, *chosen):
                    yield
        finally:
            self.max_num_active_reqs = self._most_active

    def _guarded(self, plan: Callable[[], T]) -> T | None:
        """A plan; None, for a step in vLLM's order, if planning fails, and always after `MAX_FAILURES` failures in a row."""
        if self._failures == MAX_FAILURES:
            return None
        try:
            planned = plan()
        except Exception:
            self._failures += 1
            self._counts["faults"] += 1
            is_last = self._failures == MAX_FAILURES
            if is_last or time.monotonic() - self._logged_s >= LOGGED_EVERY_S:
                self._logged_s = time.monotonic()
                off = f"; goals are off after {MAX_FAILURES} failures in a row" if is_last else ""
                log.exception("planning engine steps has failed %d times%s", self._counts["faults"], off)
            return None
        self._failures = 0
        return planned

    def _chosen(self, urgent: list[Request], rollouts: list[Request], free: int) -> Chosen | None:
        """Waiting and running requests that may run; None: all. `free`: sequence slots for further rollouts."""
        if not self._has_goals(urgent):
            return self._chosen_without_goals(urgent, rollouts, free)
        times = self._times = self._times or StepTime(self._profile)
        now_s, under_way_s = time.monotonic(), self._under_way_s(times)
        begins_s = now_s + under_way_s
        serving = self.serving
        filling: list[Request] = []  # prompts that need several steps
        decoding: list[Request] = [] if self._is_chunking else rollouts
        for request in rollouts if self._is_chunking else ():
            (decoding if self._tokens(request) <= 1 else filling).append(request)
        tokens = [self._tokens(request) for request in serving]
        decodes = sum(count <= 1 for count in tokens)
        prefill_tokens = sum(tokens) - sum(count for count in tokens if count <= 1)
        waiting_tokens = [self._tokens(request) for request in urgent]
        decode_s = times.expected_s(decodes, 0)

        running_due = [self._due(request, begins_s, decode_s) for request in self._with_goals(serving)]
        step_s = times.expected_s(decodes, prefill_tokens)
        waiting_due = [self._served[request.request_id].first if request.request_id in self._served else NEVER_LATE for request in urgent]
        entering = prompts_entering(running_due, waiting_due, begins_s, step_s, decodes, waiting_tokens, times)
        prefill_tokens += sum(waiting_tokens[:entering])
        step_s = times.expected_s(decodes, prefill_tokens)
        later = zip(waiting_due[entering:], waiting_tokens[entering:], strict=True)
        waiting_due[entering:] = [due.sooner(times.expected_s(0, count)) for due, count in later]
        dues = [due.by_s(begins_s, step_s) for due in (*running_due, *waiting_due)]
        certain, guaranteed = Certain(dues, decodes, prefill_tokens, under_way_s), self._training.value < self._share
        inside, outside = [self._tokens(request) for request in filling], list[Request]()
        plan = decide(now_s, certain, Wanted(len(decoding), inside), times, guaranteed=guaranteed)
        if plan == Plan(len(decoding), len(inside)) and entering == len(urgent):  # which may enter is found out only then
            outside = self._entry.rollouts(urgent, min(self._free_for_rollouts(rollouts, free), PROMPTS_PLANNED), self._cut)
        if outside:
            inside += [self._tokens(request) for request in outside]
            plan = decide(now_s, certain, Wanted(len(decoding), inside), times, guaranteed=guaranteed)
        self._count(plan.running + plan.prompts, len(decoding) + len(inside))
        held = by_adapter(decoding)[plan.running :] if plan.running < len(decoding) else []
        hidden = set(map(id, (*held, *filling[plan.prompts :])))
        running = [request for request in self.running if id(request) not in hidden] if hidden else self.running
        return [*urgent[:entering], *outside[: max(0, plan.prompts - len(filling))]], running

    def _chosen_without_goals(self, urgent: list[Request], rollouts: list[Request], free: int) -> Chosen | None:
        """As `_chosen`. All of a training step's prompts in one engine step would make a request late that comes during it."""
        times = self._times if self._first_token_s and free > 1 and len(self.waiting) > len(urgent) + 1 else None  # one may always enter
        if len(self.waiting) == len(urgent) or free == 0:
            return None
        prompts = self._entry.rollouts(urgent, min(self._free_for_rollouts(rollouts, free), PROMPTS_SEEN), self._cut)
        if times is not None:
            tokens = [self._tokens(request) for request in prompts]
            prompts = prompts[: prompts_at_once(LEFT * self._first_token_s, len(self.running), tokens, times)]
        self._count(len(rollouts), len(rollouts))
        return [*urgent, *prompts], self.running

    def _free_for_rollouts(self, rollouts: list[Request], free: int) -> int:
        return free if self._cut is None else min(free, self._kept - len(rollouts))

    def _tokens(self, request: Request) -> int:
        """Tokens that the next step would compute for a request; of waiting ones without those in the prefix cache."""
        done = request.num_computed_tokens - request.num_output_placeholders or self.kv_cache_manager.get_computed_blocks(request)[1]
        return min(request.num_tokens - done, self._chunk)

    def _due(self, request: Request, begins_s: float, decode_s: float) -> Due:
        """Of the running request's next token. `begins_s`: when the step begins. `decode_s`: as in `next_due`."""
        served = self._served[request.request_id]
        tokens = served.tokens + request.num_output_placeholders
        if not tokens:
            return served.first
        left = max(1, request.max_tokens - tokens)
        stream = Stream(served.first_s or begins_s, served.last_s or begins_s, tokens, left, served.tpot_s)
        return next_due(stream, decode_s)

    def _under_way_s(self, times: StepTime) -> float:
        """Seconds until steps under way will have ended."""
        if not self._steps:
            return 0.0
        began_s = max(self._steps[0][1], self._ended_s)
        return max(0.0, sum(times.expected_s(decodes, tokens) for *_, decodes, tokens in self._steps) - (time.monotonic() - began_s))

    # --------------------------------------------------------------------------------------------------------- figures

    def _count(self, ran: int, wanted: int) -> None:
        self._counts.update(steps=1, rollout_steps=wanted, withheld_steps=wanted - ran)
        self._training.add(ran, wanted, time.monotonic())

    def _write(self) -> None:
        self._served = {name: served for name, served in self._served.items() if name in self.requests}
        times = self._times or StepTime()
        now = {
            "held": self._held,
            "serving_blocks": sum(self.blocks(request) for request in self.running if is_urgent(request)),
            "blocks": self.cache_config.num_gpu_blocks or 0,
            "goals_off": int(self._failures == MAX_FAILURES),
        }
        errors = {"margin": times.margin, "median_error": times.median_error, "p95_error": times.p95_error}
        self._file.write(Figures(**dict(self._counts), **now, **errors))
