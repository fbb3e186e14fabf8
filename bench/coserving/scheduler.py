"""The product's scheduler with an arm's `decide`, and with counts that only a benchmark asks for. vLLM imports it by name, in the engine's
process.
"""

import json
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from bench.coserving.engine import COUNTS, WRONG
from bench.coserving.sums import DECIDES
from rollout_svc.coserving import scheduler
from rollout_svc.coserving.scheduler import CoservingScheduler
from rollout_svc.coserving.step_time import StepTime
from rollout_svc.engine.config import GOALS

BY_KIND = ("busy_steps", "busy_added_s", "idle_steps", "idle_added_s")
"""Steps beside requests with goals and others, and what the product's class added to them."""


def timed(base: type[Any], key: str) -> type[Any]:
    """`base`, with the processor time of its part of each step in `spent`."""

    class Timed(base):
        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            with counted(self.spent, key):
                return super().schedule(*args, **kwargs)

        def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
            with counted(self.spent, key):
                return super().update_from_output(*args, **kwargs)

    return Timed


@contextmanager
def counted(spent: Counter[str], key: str) -> Generator[None]:
    began_s = time.thread_time()
    yield
    spent[key] += time.thread_time() - began_s


class ArmScheduler(timed(CoservingScheduler, "all_s"), timed(AsyncScheduler, "vllm_s")):
    """The class above vLLM's: what it adds to a step, and whether preemptions come while a cut holds."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.spent: Counter[str] = Counter(dict.fromkeys(("all_s", "vllm_s", *BY_KIND), 0))
        super().__init__(*args, **kwargs)
        options = self.vllm_config.additional_config[GOALS]
        scheduler.decide = DECIDES[options["arm"]]
        self._path, self._added_s = Path(options["figures"]).with_suffix(COUNTS), 0.0

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        before, preempted = self._cut, self._counts["preempted"]
        output = super().schedule(*args, **kwargs)
        self.spent["cuts"] += self._cut is not None and self._cut is not before
        self.spent["preempted_after_cut"] += (self._counts["preempted"] - preempted) * (before is not None)
        return output

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        kind = "busy" if any(name in self.requests for name in self._served) else "idle"  # with requests, or without
        outputs = super().update_from_output(*args, **kwargs)
        added_s, self._added_s = self._added_s, self.spent["all_s"] - self.spent["vllm_s"]
        self.spent[f"{kind}_steps"] += 1
        self.spent[f"{kind}_added_s"] += self._added_s - added_s
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
