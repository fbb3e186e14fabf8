"""Batched steps: optimizer steps of several tasks share forward and backward passes.

A step (`step.py`) is a generator. It yields a `ForwardRequest` when it needs the base model, receives the `ForwardResult`,
and returns its result; it holds only its own task's data. Pending requests of all steps are packed into common micro-batches: one
forward, one backward, each task's loss on its own tokens, each task's gradient in its own vector. A step that raises drops
out without changing the others' numbers.

A single step runs through here too. Its numbers then depend on no other step, bit for bit on a CPU; batched with others,
matrix products have other shapes, and results are equal up to rounding.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer_svc.algorithm.loss import LossTerms, Tokens
from trainer_svc.algorithm.step_metrics import TokenMeasurements
from trainer_svc.model.packing import Packed, Row, Segment, pack
from trainer_svc.model.policy import Adapted, Policy, TokenScores

R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class Objective:
    """Loss to differentiate. Shapes: (N,) over all tokens of the request, in the order of its rows; None as in `Tokens`."""

    loss: Callable[[Tokens], LossTerms]
    entropy_gradient: bool = False
    start_logprobs_N: Tensor | None = None
    base_logprobs_N: Tensor | None = None


@dataclass(frozen=True, eq=False)
class ForwardRequest:
    """Request for the log-probabilities of the rows' sampled tokens, and, with an objective, its gradient."""

    rows: Sequence[Row]
    adapted: Adapted
    objective: Objective | None = None


@dataclass(frozen=True, eq=False)
class Gradient:
    """Gradient of one update. Shapes: `vector` (P,), as the adapter; `loss` scalar."""

    vector: Tensor
    loss: Tensor
    measured: TokenMeasurements


@dataclass(frozen=True, eq=False)
class ForwardResult:
    """Result of a `ForwardRequest`. Shapes: `logprobs_N` (N,), without gradient, in the order of the request's rows."""

    logprobs_N: Tensor
    gradient: Gradient | None
    micro_batches: int
    """Micro-batches with rows of the request."""
    computed_tokens: int
    """Tokens of the request's rows, including padding."""
    tasks: int
    """Number of requests computed together, including this one."""
    seconds: float
    """Seconds to compute all these requests, including the device's time."""


Step = Generator[ForwardRequest, ForwardResult, R]
Scoring = Callable[[], AbstractContextManager[None]]
"""Context in which passes without a gradient are computed, for example to measure their time."""


def run_steps(
    policy: Policy, steps: Sequence[Step[R]], *, budget_tokens: int, scoring: Scoring = nullcontext
) -> Iterator[tuple[int, R | Exception]]:
    """Run the steps; yields (index, result or exception) of each step as soon as that step ends.

    A micro-batch has at most `budget_tokens` tokens of all steps together, so a further step needs memory only for its own vectors.
    Raises: errors of the shared computation (such as out of memory), which no single step caused.
    """
    waiting: dict[int, ForwardRequest] = {}

    def advance(index: int, result: ForwardResult | None) -> Iterator[tuple[int, R | Exception]]:
        try:
            waiting[index] = next(steps[index]) if result is None else steps[index].send(result)
        except StopIteration as finished:
            yield index, finished.value
        except Exception as error:  # even a bug that one task's data provoked must not stop the others
            yield index, error

    for index in range(len(steps)):
        yield from advance(index, None)
    while waiting:
        # Gradients last, once no step needs a plain forward, so that as many as possible are computed together.
        chosen = {index: request for index, request in waiting.items() if request.objective is None} or dict(waiting)
        for index in chosen:
            del waiting[index]
        results = run_requests(policy, list(chosen.values()), budget_tokens=budget_tokens, scoring=scoring)
        for index, found in zip(chosen, results, strict=True):
            yield from advance(index, found)


def run_requests(
    policy: Policy, requests: Sequence[ForwardRequest], *, budget_tokens: int, scoring: Scoring = nullcontext
) -> list[ForwardResult]:
    """Compute the requests together; either all have an objective or none has. Results are in the order of `requests`."""
    started_s = time.perf_counter()
    accumulators = [_RequestAccumulator(policy, request) for request in requests]
    with scoring() if requests[0].objective is None else nullcontext():
        for packed in pack([request.rows for request in requests], budget_tokens=budget_tokens):
            parts = [accumulators[segment.owner] for segment in packed.segments]
            entropy_gradient = any(part.entropy_gradient for part in parts)
            with torch.set_grad_enabled(parts[0].params is not None):
                scores = policy.scores(packed, [part.adapted for part in parts], entropy_gradient=entropy_gradient)
            losses = [part.add(packed, segment, scores) for part, segment in zip(parts, packed.segments, strict=True)]
            if with_gradient := [loss for loss in losses if loss is not None]:
                torch.autograd.backward(with_gradient)
        gradients = [one.gradient() for one in accumulators]
        policy.synchronize()  # otherwise a GPU would still compute a pass without a gradient in the time of the next
    seconds = time.perf_counter() - started_s
    return [
        ForwardResult(one.logprobs_N(), gradient, one.micro_batches, one.computed_tokens, len(requests), seconds)
        for one, gradient in zip(accumulators, gradients, strict=True)
    ]


class _RequestAccumulator:
    """Log-probabilities, gradient and measurements of one request, accumulated over micro-batches."""

    def __init__(self, policy: Policy, request: ForwardRequest) -> None:
        self._policy = policy
        self._objective = request.objective
        self.params = request.adapted.vector.detach().clone().requires_grad_() if request.objective else None
        self.adapted = request.adapted if self.params is None else Adapted(request.adapted.layout, self.params, request.adapted.temperature)
        self.entropy_gradient = request.objective is not None and request.objective.entropy_gradient
        self.micro_batches = 0
        self.computed_tokens = 0
        self._tokens = 0
        self._loss = torch.zeros((), device=policy.device)
        self._logprobs: list[Tensor] = []
        self._measured: list[Tensor] = []
        self._staleness: list[NDArray[np.int16]] = []

    def add(self, packed: Packed, segment: Segment, scores: TokenScores) -> Tensor | None:
        """Add this request's tokens of a micro-batch; returns their loss with gradient, or None without an objective."""
        self.micro_batches += 1
        self.computed_tokens += packed.ids_B_T[segment.rows].size
        logprobs_N = scores.logprobs_N[segment.sampled]
        self._logprobs.append(logprobs_N.detach())
        before, self._tokens = self._tokens, self._tokens + len(logprobs_N)
        if self._objective is None:
            return None
        own = slice(before, self._tokens)
        tensor, sequence_N = self._policy.tensor, packed.sequence_N[segment.sampled]
        entropy_N = scores.entropy_N[segment.sampled]
        terms = self._objective.loss(
            Tokens(
                logprobs_N=logprobs_N,
                sampler_logprobs_N=tensor(packed.sampler_logprobs_N[segment.sampled]),
                advantages_N=tensor(packed.advantages_N[segment.sampled]),
                weights_N=tensor(packed.weights_N[segment.sampled]),
                sequence_N=tensor(sequence_N - sequence_N[0]),
                entropy_N=entropy_N,
                start_logprobs_N=None if self._objective.start_logprobs_N is None else self._objective.start_logprobs_N[own],
                base_logprobs_N=None if self._objective.base_logprobs_N is None else self._objective.base_logprobs_N[own],
            )
        )
        self._loss += terms.loss.detach()
        rows = (terms.log_ratio_N, terms.clipped_N, terms.masked_N, entropy_N.detach(), terms.kl_base_N)  # `TokenMeasurements`' fields
        self._measured.append(torch.stack([row.to(torch.float32) for row in rows]))
        self._staleness.append(packed.staleness_N[segment.sampled])
        return terms.loss

    def logprobs_N(self) -> Tensor:
        return torch.cat(self._logprobs)

    def gradient(self) -> Gradient | None:
        """Gradient over all micro-batches, or None without an objective; waits for the device."""
        if self.params is None:
            return None
        assert self.params.grad is not None
        rows: list[NDArray[np.float64]] = list(torch.cat(self._measured, dim=1).cpu().numpy().astype(np.float64))
        return Gradient(self.params.grad, self._loss, TokenMeasurements(*rows, staleness_N=np.concatenate(self._staleness)))
