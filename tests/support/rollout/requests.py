"""The tiny pool without serving, and requests to its engine."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from common.pools import read_pools
from rollout_svc.engine.engine import SampleRequest
from tests.support.paths import ROOT

POOL = read_pools(ROOT / "pools.toml")["tiny"].model_copy(update={"serving": None})
PROMPT = [1, 20, 30, 40, 50, 60, 70, 80]
END = 2
_numbers = itertools.count()


def sample_request(ids: Sequence[int] = PROMPT, **changes: Any) -> SampleRequest:
    """A request with a number of its own."""
    request = SampleRequest(f"test-{next(_numbers)}", ids, max_tokens=16, temperature=1.0, seed=1, stop_ids=[END], adapter=None)
    return replace(request, **changes)
