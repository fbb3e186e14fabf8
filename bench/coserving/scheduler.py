"""The product's scheduler with an arm's `decide`, and with counts that only a benchmark asks for. vLLM imports it by name, in the engine's
process.
"""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from bench.coserving.engine import ARM, WRONG
from bench.coserving.sums import DECIDES
from rollout_svc.coserving import plan, scheduler
from rollout_svc.coserving.preemption import ServingScheduler
from rollout_svc.coserving.scheduler import CoservingScheduler
from rollout_svc.coserving.step_time import StepTime

WRITTEN_EVERY_S = 0.1


class _Vllm(AsyncScheduler):
    """vLLM's own part of a step: below the product's class, above vLLM's."""

    vllm_s = 0.0

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        began_s = time.thread_time()
        try:
            return super().schedule(*args, **kwargs)
        finally:
            self.vllm_s += time.thread_time() - began_s

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        began_s = time.thread_time()
        try:
            return super().update_from_output(*args, **kwargs)
        finally:
            self.vllm_s += time.thread_time() - began_s


class _Counting:
    """Above the product's class: the processor time that it adds to a step. Whether preemptions come between a cut and its end."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        mine: Any = self
        options = mine.vllm_config.additional_config[ARM]
        scheduler.decide = DECIDES.get(options["name"], plan.decide)
        self._seen: Counter[str] = Counter()
        self._path = Path(options["file"])
        self._saved_s = self._began_s = 0.0

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        mine: Any = self
        before, preempted = getattr(self, "_cut", None), self._preempted()
        self._began_s, began_s, vllm_s = time.monotonic(), time.thread_time(), mine.vllm_s
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        self._seen["added_s"] += time.thread_time() - began_s - (mine.vllm_s - vllm_s)
        after = getattr(self, "_cut", None)
        self._seen["cuts"] += after is not None and after is not before
        self._seen["preempted_after_cut"] += (self._preempted() - preempted) * (before is not None)
        return output

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        mine: Any = self
        began_s, vllm_s = time.thread_time(), mine.vllm_s
        outputs = super().update_from_output(*args, **kwargs)  # type: ignore[misc]
        now_s = time.monotonic()
        self._seen["added_s"] += time.thread_time() - began_s - (mine.vllm_s - vllm_s)
        self._seen["engine_steps"] += 1
        self._seen["took_s"] += now_s - self._began_s
        if now_s - self._saved_s >= WRITTEN_EVERY_S:
            self._saved_s = now_s
            beside = self._path.with_suffix(".new")
            beside.write_text(json.dumps(self._seen))
            beside.replace(self._path)
        return outputs

    def add_request(self, request: Any) -> None:
        mine: Any = self
        if request.request_id.startswith(WRONG):
            mine._times = StepTime((decodes, tokens, took_s / 2) for decodes, tokens, took_s in mine._profile)
        super().add_request(request)  # type: ignore[misc]

    def _preempted(self) -> int:
        return getattr(self, "_counts", Counter[str]())["preempted"]


class GoalsScheduler(_Counting, CoservingScheduler, _Vllm):
    pass


class PreemptingScheduler(_Counting, ServingScheduler, _Vllm):
    pass
