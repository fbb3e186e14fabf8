"""Evaluation plan: a trained version answers held-out prompts, which are never trained on. Pure.

The prompts of a protocol are the same at every version: rows from FIRST_ROW, with seeds of their own. Group numbers start at
FIRST_GROUP, so that messages about evaluation and training groups cannot be confused.
"""

import hashlib
from dataclasses import dataclass

from common.messages.prompts import FIRST_EVALUATION_GROUP
from common.spec import MAX_GROUPS, Evaluation, Protocol, TaskSpec

FIRST_GROUP = FIRST_EVALUATION_GROUP
RETRY_INCREMENT = MAX_GROUPS
"""Increment of a group's number at each retry: messages that carry the old number are ignored."""
MAX_RETRIES = 3
FIRST_ROW = 2**31
"""First row of held-out prompts; training counts rows from 0 and stays below."""


@dataclass(frozen=True)
class PlannedGroups:
    """Groups of one protocol, in the order of its prompts."""

    protocol: Protocol
    numbers: range


def is_group(number: int) -> bool:
    """Whether the group with this number belongs to an evaluation."""
    return number >= FIRST_GROUP


def may_be_retried(number: int) -> bool:
    return (number - FIRST_GROUP) // RETRY_INCREMENT < MAX_RETRIES


def is_due(spec: TaskSpec, version: int) -> bool:
    every = spec.evaluation.every
    return every > 0 and (version % every == 0 or version == spec.steps)


def groups_to_plan(evaluation: Evaluation, evaluated_before: int) -> list[PlannedGroups]:
    """Groups of one version's evaluation, by protocol. `evaluated_before`: versions of the task that were evaluated."""
    first = FIRST_GROUP + evaluated_before * evaluation.prompts_in_all
    found: list[PlannedGroups] = []
    for protocol in evaluation.protocols:
        found.append(PlannedGroups(protocol, range(first, first + protocol.prompts)))
        first += protocol.prompts
    return found


def row_of(prompt: int) -> int:
    return FIRST_ROW + prompt


def prompt_of(row: int) -> int:
    return row - FIRST_ROW


def prompt_seed(protocol: Protocol, prompt: int) -> int:
    """Seed of 56 bits, as in training, derived from another name; protocols with one seed ask the same prompts."""
    digest = hashlib.sha256(f"evaluation:{protocol.seed}:{prompt}".encode()).digest()
    return int.from_bytes(digest[:7], "big")
