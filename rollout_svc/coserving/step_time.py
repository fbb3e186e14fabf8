"""How long an engine step takes, learned from the engine's own steps: least squares with forgetting on (1, decodes, prefill tokens).

Steps of each size are forgotten for later ones of that size. If all were forgotten alike, some seconds of full steps, without requests,
would leave nothing about small ones: of one decode estimates were then 0.05 to 2.2 times the truth.
"""

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

KEPT = 0.995
"""Weight of a step relative to its successor of about the same size: a change of speed is learned within some hundred steps."""
WRONG = 0.25
"""Median error above which steps of all sizes are forgotten alike."""
ERRORS = 256
"""Latest errors of which margin and quantiles are computed."""
SOLVED_EVERY = 16
"""Steps between two solutions of the equations, and two such computations."""
SCALE = (1.0, 0.1, 0.01)
"""Brings (1, decodes, prefill tokens) to one magnitude."""
RIDGE = 1e-3
"""Pull towards the weights so far, for what the latest steps say nothing about: without prompts, the weight of their tokens."""
OUTLIER = 4.0
"""Multiple of its estimate at which a step's duration is cut off: a process that was stopped says nothing about steps."""
MAX_MARGIN = 2.0

Step = tuple[int, int, float]
"""Decodes, prefill tokens, seconds."""


class StepTime:
    """Estimate of step durations, with its own errors."""

    def __init__(self, profile: Iterable[Step] = ()) -> None:
        """`profile`: measured steps from which the first weights come; their errors do not count."""
        self.margin = 1.0
        """Factor that covers 95 % of its latest errors: multiply estimates that must not be exceeded by it."""
        self.median_error = self.p95_error = 0.0
        """Quantiles of its latest errors, relative to what the steps took."""
        self._equations: dict[tuple[int, bool], list[list[float]]] = {}  # by size: XᵀX | Xᵀy of scaled steps, older ones weighted less
        self._weights = (0.0, 0.0, 0.0)  # seconds, per decode, per prefill token
        self._ratios: deque[float] = deque(maxlen=ERRORS)  # took / expected
        self._steps = 0
        for step in profile:
            self._add(*step)
        if self._steps:
            self._solve()

    def expected_s(self, decodes: int, prefill_tokens: int) -> float:
        """Seconds that a step with these takes on average. Monotone in both."""
        fixed, per_decode, per_token = self._weights
        return fixed + per_decode * decodes + per_token * prefill_tokens

    def learn(self, decodes: int, prefill_tokens: int, took_s: float) -> None:
        """Learn from one step, from its scheduling to its tokens."""
        expected_s = self.expected_s(decodes, prefill_tokens)
        if expected_s > 0:
            took_s = min(took_s, OUTLIER * expected_s)
            self._ratios.append(took_s / expected_s)
        self._add(decodes, prefill_tokens, took_s)
        if self._steps % SOLVED_EVERY == 0:
            self._solve()
            if self._ratios:
                self._judge()

    def _add(self, decodes: int, prefill_tokens: int, took_s: float) -> None:
        # Not NumPy, which takes ten times as long for so few numbers, in each step.
        row = [scale * value for scale, value in zip(SCALE, (1.0, decodes, prefill_tokens), strict=True)]
        equations = self._equations.setdefault((decodes.bit_length() // 2, prefill_tokens > 0), [[0.0] * 4 for _ in SCALE])
        for equation, factor in zip(equations, row, strict=True):
            equation[:] = [KEPT * before + factor * value for before, value in zip(equation, (*row, took_s), strict=True)]
        self._steps += 1

    def _solve(self) -> None:
        """Weights with the least squared error, none of them negative."""
        by_size = np.array(list(self._equations.values()))
        free, weights, equations = [0, 1, 2], np.zeros(3), by_size.sum(axis=0)
        if self.median_error > WRONG:
            self._equations = dict(zip(self._equations, (KEPT**SOLVED_EVERY * by_size).tolist(), strict=True))
        matrix = equations[:, :3] + RIDGE * np.eye(3)
        target = equations[:, 3] + RIDGE * np.array(self._weights) / SCALE
        while free:
            weights[:] = 0.0
            weights[free] = np.linalg.solve(matrix[np.ix_(free, free)], target[free])
            if weights.min() >= 0.0:
                break
            free.remove(int(weights.argmin()))
        fixed, per_decode, per_token = (weights * SCALE).tolist()
        self._weights = (fixed, per_decode, per_token)

    def _judge(self) -> None:
        ratios = sorted(self._ratios)
        errors = sorted(abs(1.0 - 1.0 / ratio) for ratio in ratios)
        self.median_error, self.p95_error = _quantile(errors, 0.5), _quantile(errors, 0.95)
        self.margin = min(MAX_MARGIN, max(1.0, _quantile(ratios, 0.95)))


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[int(share * (len(ordered) - 1))]
