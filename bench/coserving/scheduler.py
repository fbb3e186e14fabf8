"""The product's scheduler with an arm's `decide`, and with counts that only a benchmark asks for. vLLM imports it by name, in the engine's
process.
"""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from bench.coserving.engine import COUNTS, WRONG
from rollout_svc.coserving import plan, scheduler
from rollout_svc.coserving.plan import Certain, Plan, Wanted
from rollout_svc.coserving.scheduler import CoservingScheduler
from rollout_svc.coserving.step_time import StepTime
from rollout_svc.engine.config import GOALS


def decide_of(arm: str) -> Any:
    """`cap-N`: at most N rollouts beside requests with goals; `cap-0` are time slices. Other arms: the product's."""
    if not arm.startswith("cap-"):
        return plan.decide
    most = int(arm.removeprefix("cap-"))

    def decide(now_s: float, certain: Certain, wanted: Wanted, times: StepTime, *, owed: bool) -> Plan:  # noqa: ARG001 (the product's)
        running = min(most, wanted.running)
        return Plan(running, min(most - running, len(wanted.prompts)) if running == wanted.running else 0)

    return decide


def timed(base: type[Any], key: str) -> type[Any]:
    """`base`, with the processor time of its part of each step in `spent`."""

    class Timed(base):
        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            return self._timed(super().schedule, args, kwargs)

        def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
            return self._timed(super().update_from_output, args, kwargs)

        def _timed(self, part: Any, args: Any, kwargs: Any) -> Any:
            began_s = time.thread_time()
            try:
                return part(*args, **kwargs)
            finally:
                self.spent[key] += time.thread_time() - began_s

    return Timed


class ArmScheduler(timed(CoservingScheduler, "all_s"), timed(AsyncScheduler, "vllm_s")):
    """The class above vLLM's: what it adds to a step, and whether preemptions come while a cut holds."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.spent: Counter[str] = Counter()
        super().__init__(*args, **kwargs)
        options = self.vllm_config.additional_config[GOALS]
        scheduler.decide = decide_of(options["arm"])
        self._path, self._began_s = Path(options["figures"]).with_suffix(COUNTS), 0.0

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        before, preempted, self._began_s = self._cut, self._counts["preempted"], time.monotonic()
        output = super().schedule(*args, **kwargs)
        self.spent["cuts"] += self._cut is not None and self._cut is not before
        self.spent["preempted_after_cut"] += (self._counts["preempted"] - preempted) * (before is not None)
        return output

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().update_from_output(*args, **kwargs)
        self.spent.update(engine_steps=1, took_s=time.monotonic() - self._began_s)
        return outputs

    def add_request(self, request: Any) -> None:
        if request.request_id.startswith(WRONG):
            self._times = StepTime((decodes, tokens, took_s / 2) for decodes, tokens, took_s in self._profile)
        super().add_request(request)

    def _write(self) -> None:
        super()._write()
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(self.spent))
        beside.replace(self._path)
