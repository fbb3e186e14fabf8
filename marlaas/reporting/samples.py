"""Attempts of a step, as a table and as JSON: pure functions."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from common.messages import KeptAttempt, StepSamples
from marlaas.reporting.listing import Field, listing


def samples_table(samples: StepSamples, width: int | None = None) -> Table:
    """Every attempt, one line each, in `width` characters; None: complete lines."""
    fields: list[Field[KeptAttempt]] = [
        Field("group", lambda one: str(one.group)),
        Field("member", lambda one: str(one.member)),
        Field("reward", lambda one: f"{one.reward:.4g}"),
        Field("advantage", lambda one: f"{one.advantage:+.3f}"),
        Field("finish", lambda one: one.finish, rank=1),
        Field("turns", lambda one: str(one.turns), rank=2),
        Field("sampled", lambda one: str(one.tokens.sampled_tokens), rank=3),
        Field("logprob", lambda one: _mean(_sampled(one, one.tokens.logprobs_T())), rank=4),
        Field("difference", lambda one: _largest(_sampled(one, one.tokens.logprobs_T() - _trainer_T(one))), rank=5),
        Field("version", lambda one: str(one.version), rank=6),
        Field("components", lambda one: " ".join(f"{name!a} {value:.3g}" for name, value in one.components.items()), rank=7),
    ]
    return listing(samples.attempts, fields, lambda _: "", width)


def json_lines(samples: StepSamples) -> list[str]:
    """One JSON object per attempt; lists have an entry per token, non-finite numbers are null."""
    return [json.dumps(_as_json(samples.version, one)) for one in samples.attempts]


def _as_json(step: int, one: KeptAttempt) -> dict[str, Any]:
    """`Any`: JSON."""
    return {
        "step": step,
        **one.model_dump(exclude={"tokens", "trainer_logprobs"}),
        "ids": one.tokens.ids_T().tolist(),
        "sampled": one.tokens.sampled_T().astype(bool).tolist(),
        "sampler_logprobs": _numbers(one.tokens.logprobs_T()),
        "trainer_logprobs": _numbers(_trainer_T(one)),
    }


def _trainer_T(one: KeptAttempt) -> NDArray[np.float32]:
    return np.frombuffer(one.trainer_logprobs, "<f4")


def _sampled(one: KeptAttempt, values_T: NDArray[np.float32]) -> NDArray[np.float32]:
    return values_T[one.tokens.sampled_T() == 1]


def _numbers(values: NDArray[np.float32]) -> Sequence[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _mean(values: NDArray[np.float32]) -> str:
    return f"{values.mean():.3f}" if len(values) else "-"


def _largest(values: NDArray[np.float32]) -> str:
    return f"{np.abs(values).max():.2g}" if len(values) else "-"
