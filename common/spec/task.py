"""The whole task, consistency rules between its sections, and task ids, which clients choose.

A tenant's ids end in the tenant's mark, so that no other tenant can choose them (ADR 43).
"""

import hashlib
import secrets
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from common.formats.bounds import Few
from common.spec import sections
from common.spec.evaluation import Evaluation, Protocol
from common.spec.sections import EnvironmentSection, Name, Section

MetadataName = Annotated[str, Field(min_length=1, max_length=64)]
MetadataText = Annotated[str, Field(max_length=512)]
FOLLOWED = {"correction.proximal": "algorithm.max_staleness", "keep.best": "evaluation.every"}
"""Field → field of another section on which its default depends."""


class TaskSpec(Section):
    """One task. An omitted field takes the default of its pool (`profile`, `defaults`), or else the one shown here."""

    name: Name
    tenant: Name
    pool: Name
    """Base model to fine-tune; `marlaas pools` lists those that the deployment offers."""
    steps: int = Field(ge=1, le=1_000_000)
    """Optimizer steps to take."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of adapter initialisation, prompts and sampling."""
    priority: int = Field(default=0, ge=-100, le=100)
    """Priority among the tenant's own tasks: higher is served first. Other tenants are not affected."""
    metadata: Annotated[dict[MetadataName, MetadataText], Few(16)] = {}
    """Labels by which the user finds tasks, at most 16; the service does not interpret them."""
    environment: EnvironmentSection
    sampling: sections.Sampling = sections.Sampling()
    limits: sections.Limits = sections.Limits()
    algorithm: sections.Algorithm = sections.Algorithm()
    correction: sections.Correction = sections.Correction()
    overlong: sections.Overlong = sections.Overlong()
    lora: sections.Lora = sections.Lora()
    optimizer: sections.Optimizer = sections.Optimizer()
    keep: sections.Keep = sections.Keep()
    start: sections.Start = sections.Start()
    evaluation: Evaluation = Evaluation()
    stop: sections.Stop = sections.Stop()

    def environment_of(self, protocol: Protocol) -> EnvironmentSection:
        """Environment of a protocol's held-out prompts."""
        return self.environment.with_options(protocol.options)

    @property
    def trajectory_tokens(self) -> int:
        """Maximum tokens of a trajectory of this task."""
        return self.limits.trajectory_tokens(self.sampling)

    @property
    def reply_tokens(self) -> int:
        """Maximum tokens that the policy samples in one trajectory."""
        return self.limits.max_turns * self.sampling.max_tokens

    @property
    def length_limit(self) -> int:
        """Length at which the penalty of `overlong` is complete, in sampled tokens of a trajectory or of a turn."""
        return self.reply_tokens if self.overlong.per == "trajectory" else self.sampling.max_tokens

    @model_validator(mode="before")
    @classmethod
    def _what_is_stale_is_weighed_from_the_start_of_the_step(cls, raw: Any) -> Any:
        """Fill in a default that depends on another section; stored and sent tasks contain it."""
        match raw:
            case {"algorithm": {"max_staleness": int(versions)}} if versions > 1 and isinstance(said := raw.get("correction", {}), dict):
                return {**raw, "correction": {"proximal": "start", **said}}
            case _:
                return raw

    @model_validator(mode="before")
    @classmethod
    def _the_best_of_an_evaluated_task_is_kept(cls, raw: Any) -> Any:
        """Default of `keep.best` for submissions; a stored task contains `best`."""
        match raw:
            case {"evaluation": {"every": int(steps)}} if steps > 0 and isinstance(said := raw.get("keep", {}), dict):
                return {**raw, "keep": {"best": 1, **said}}
            case _:
                return raw

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        algorithm, correction, limit = self.algorithm, self.correction, self.length_limit
        about = {"keep.best": self.keep.best, "stop.reward": self.stop.reward is not None, "stop.patience": self.stop.patience is not None}
        if self.evaluation.every == 0 and any(about.values()):
            named = next(name for name, is_set in about.items() if is_set)
            raise ValueError(f"{named} is about evaluations: set evaluation.every too")
        if self.overlong.buffer_tokens > limit:
            raise ValueError(
                f"overlong.buffer_tokens is {self.overlong.buffer_tokens}, but a {self.overlong.per} has at most {limit} tokens"
            )
        if self.environment.rank_weights and algorithm.group_size < 2:
            raise ValueError("environment.rank_weights rank attempts at one prompt: use a group_size of 2 or more")
        bounded = algorithm.loss != "reinforce" or correction.proximal == "start" or correction.mask_high is not None
        if algorithm.max_staleness > 0 and not bounded:
            raise ValueError(
                "algorithm.loss 'reinforce' has no bounds of its own: with max_staleness above 0 set correction.proximal to 'start', "
                "or give correction.mask_high"
            )
        return self


MARK_DIGITS = 10
NAME_CHARS = 39


def mark_of(tenant: str) -> str:
    """A tenant's mark: hexadecimal digits derived from its name."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:MARK_DIGITS]


def marked(begin: str, tenant: str) -> str:
    """`begin` with the tenant's mark, a task id that only this tenant can use."""
    return f"{begin}-{mark_of(tenant)}"


def is_marked(task: str, tenant: str) -> bool:
    return task.endswith(f"-{mark_of(tenant)}")


def new_task_id(name: str, tenant: str) -> str:
    """A new id: the task's name, 48 random bits, and the tenant's mark."""
    return marked(f"{name[:NAME_CHARS]}-{secrets.token_hex(6)}", tenant)
