"""Sections of a task file. Every field is declared and documented here and in `task.py`, and nowhere else. Unknown keys are errors."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, model_validator

from common.formats.bounds import Few, FewEntries
from common.formats.wrong_values import described
from common.spec.template import TemplateArguments

LETTERS = "small letters, digits and hyphens, {} at most, a letter or digit first and last"
NAME_PATTERN = described(r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$", LETTERS.format(40))
TASK_ID_PATTERN = described(r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", LETTERS.format(63))
TOOL_PATTERN = described(r"^[A-Za-z_][A-Za-z0-9_.-]*(:[A-Za-z_][A-Za-z0-9_.-]*)?$", "the name of a tool, or module:attribute")
OWN_PATTERN = r"own:(?P<environment>[A-Za-z0-9_][A-Za-z0-9._-]{0,99})(?:@(?P<digest>[0-9a-f]{12,64}))?"
"""Pattern of an environment of a package that the task's tenant uploaded: the latest package, or the one whose SHA-256 starts so."""
FILE_PATTERN = r"file:file-[0-9a-f]{64}"
"""Pattern of the environment with the rows of a file that the task's tenant uploaded."""
ENVIRONMENT_PATTERN = described(
    rf"^({OWN_PATTERN}|{FILE_PATTERN}|[A-Za-z_][A-Za-z0-9_.]*(:[A-Za-z_][A-Za-z0-9_.]*)?)$",
    "the name of an environment, as `marlaas envs` lists them, file:ID, or module:attribute",
)
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Weight = Annotated[float, Field(allow_inf_nan=False)]
MAX_COMPONENTS = 1024
"""Maximum components of a reward that an environment reports."""
MAX_WEIGHTS = MAX_COMPONENTS + 1
"""Maximum weights in one table: one per component, and one for `reward`."""
MAX_TOOLS = 64
"""Maximum tools of a task."""
StopString = Annotated[str, Field(min_length=1, max_length=64)]
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
DEFAULTS_BY_LOSS: dict[str, dict[str, float | str]] = {
    "gspo": {"clip_low": 3e-4, "clip_high": 4e-4, "normalize": "sequence"},  # arXiv 2507.18071, section 5.1
    "cispo": {"clip_low": 1.0},  # no lower bound: arXiv 2506.13585, section 3.1
}
"""`algorithm.loss` → defaults of other fields of `algorithm` that differ from PPO's."""
LoraTarget = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Section(FewEntries):
    """A table of the task file: frozen, and without unknown fields, except inside a message (`Message.decode`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ToolSection(Section):
    """A tool of a task: a name, or a table with options."""

    name: str = Field(pattern=TOOL_PATTERN)
    """A built-in tool (`calculator`, …), an installed one, or `module:attribute`."""
    options: dict[str, JsonValue] = {}
    """Arguments of the tool, passed unchanged; it reports which it knows."""


def _as_tool(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


NamedTool = Annotated[ToolSection, BeforeValidator(_as_tool, json_schema_input_type=str | ToolSection)]
"""A tool in a task file: a table, or just its name."""


class EnvironmentSection(Section):
    """Source of prompts and rewards."""

    name: str = Field(pattern=ENVIRONMENT_PATTERN)
    """An installed environment (`marlaas envs`), `reasoning_gym:<dataset>`, `own:<environment>[@<digest>]` of a package that the tenant
    has uploaded, `file:<id>` of a file that it has uploaded, or `module:attribute`."""
    options: dict[str, JsonValue] = {}
    """Arguments of the environment, passed unchanged; it reports which it knows."""
    weights: Annotated[dict[str, Weight], Few(MAX_WEIGHTS)] = {}
    """Weights of the reward's components: the reward becomes their weighted sum. `reward` is the environment's own one; a component that
    an attempt does not have counts as 0. Empty: the environment's own reward.
    """
    rank_weights: Annotated[dict[str, Weight], Few(MAX_WEIGHTS)] = {}
    """A group-relative part of the reward: the weight times an attempt's rank among those of its group by this component, from 0
    (lowest) to 1 (highest), ties in the middle. `reward` ranks by the reward itself. Added when advantages are computed."""
    tools: Annotated[tuple[NamedTool, ...], Few(MAX_TOOLS)] = ()
    """Tools that the policy may call before it answers: names, or tables `{ name = "…", options = { … } }`; see docs/environments.md."""
    list_tools: bool = True
    """Put the tools' schemas into the first prompt, as the chat template does. False for a model trained with them."""

    def with_options(self, options: dict[str, JsonValue]) -> Self:
        """This environment with additional options, which override its own."""
        return self.model_copy(update={"options": {**self.options, **options}})


class Sampling(Section):
    """Sampling of the policy. There is no top-p or top-k: ratios need the probabilities of the whole vocabulary."""

    temperature: float = Field(default=1.0, ge=0.01, le=5)
    max_tokens: int = Field(default=64, ge=1, le=131_072)
    """New tokens per turn."""
    stop: Annotated[tuple[StopString, ...], Few(4)] = ()
    """Stop strings, in addition to the end of the turn. The reply keeps them: it ends with the token that completes the first one."""
    template: TemplateArguments = {}
    """Arguments of the model's chat template, such as `{ enable_thinking = false }`: for every turn, evaluations included.
    A submission is checked against the variables that the pool's template reads."""


class Limits(Section):
    """Limits of an episode."""

    max_prompt_tokens: int = Field(default=256, ge=1, le=131_072)
    """Maximum length of the first prompt; a longer one voids its group, with that reason."""
    max_turns: int = Field(default=1, ge=1, le=256)
    """Maximum replies of the policy, tool calls included."""
    max_reply_tokens: int = Field(default=128, ge=1, le=131_072)
    """Maximum length of the messages between two turns. An environment's longer ones void the attempt; a tool's longer answer is cut."""
    max_episode_tokens: int | None = Field(default=None, ge=2, le=1_048_576)
    """Maximum tokens over all turns, prompt and answers included: an episode gets no further turn that could exceed it."""
    max_episode_s: float | None = Field(default=None, gt=0, le=86_400)
    """Maximum seconds since admission, after which an episode gets no further turn."""
    max_turn_s: float | None = Field(default=None, gt=0, le=3600)
    """Maximum seconds of the environment and the tools in one turn. Default: the deployment's; a slower turn voids the attempt."""
    at_limit: Literal["score", "zero", "void"] = "score"
    """Outcome of an episode that has used up its turns, tokens or seconds. `score`: the environment scores it as it is;
    `zero`: reward 0; `void`: it is not trained on, and its group is refilled."""
    episode_timeout_s: float = Field(default=300.0, gt=0, le=86_400)
    """Maximum time from admission to the last member's score; a group that takes longer is void and refilled."""
    max_failed_share: float = Field(default=1.0, gt=0, le=1)
    """Maximum share of failed groups among the latest 100 (at least 8) before the task fails: because of a sandbox, a server,
    the environment itself, or timeouts. 1: the task fails only after successive failures without a success between them.
    """
    max_calls: int = Field(default=4, ge=1, le=64)
    """Maximum tool calls per reply; further calls are answered with an error."""
    tool_timeout_s: float = Field(default=30.0, gt=0, le=3600)
    """Maximum seconds of a tool call. A slower tool counts as broken, which voids the attempt."""
    max_answer_chars: int = Field(default=4000, ge=16, le=262_144)
    """Maximum length of a tool's answer; a longer one is cut."""

    def trajectory_tokens(self, sampling: Sampling) -> int:
        """Maximum tokens of a trajectory within these limits."""
        longest = self.max_prompt_tokens + self.max_turns * sampling.max_tokens + (self.max_turns - 1) * self.max_reply_tokens
        return min(longest, max(self.max_episode_tokens or longest, self.max_prompt_tokens + sampling.max_tokens))


class Algorithm(Section):
    """The policy-gradient step: advantages, loss and trust region. Formulas and sources: docs/algorithms.md."""

    group_size: int = Field(default=8, ge=1, le=256)
    """Attempts at each prompt (G)."""
    groups_per_step: int = Field(default=8, ge=1, le=4096)
    max_staleness: int = Field(default=1, ge=0, le=64)
    """Maximum optimizer steps between the policy that sampled and the policy that is updated; 0 is strictly on-policy."""
    max_refills: int = Field(default=0, ge=0, le=100_000)
    """Dynamic sampling: maximum groups of one version that are void and resampled because their rewards are all equal."""
    advantage: Literal["grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "maxrl"] = "grpo"
    loss: Literal["ppo", "gspo", "cispo", "reinforce"] = "ppo"
    """`gspo` uses one ratio per sequence, which varies far less than a token's; `reinforce` has no clipping."""
    clip_low: float = Field(default=0.2, gt=0, le=1)
    """Minimum ratio: 1 minus this."""
    clip_high: float = Field(default=0.28, gt=0, le=10)
    """Maximum ratio: 1 plus this."""
    dual_clip: float | None = Field(default=None, gt=1, le=1000)
    """Maximum ratio, with `ppo`, for tokens with a negative advantage."""
    normalize: Literal["token", "sequence", "constant"] = "token"
    """Mean over the tokens of the step; mean over each sequence, then over sequences; or the sequences' mean sum, divided by the
    maximum tokens that a trajectory samples (`max_turns` times `max_tokens`)."""
    kl_coefficient: float = Field(default=0.0, ge=0, le=100)
    """Weight of the KL penalty towards the base model; above 0 a step also computes the base model's log-probabilities."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    entropy_coefficient: float = Field(default=0.0, ge=0, le=10)
    """Weight of the entropy bonus; entropy is in nats."""
    passes: int = Field(default=1, ge=1, le=64)
    """Passes over the trajectories of a step (PPO epochs)."""
    minibatches: int = Field(default=1, ge=1, le=4096)
    """Optimizer updates of each pass, each over a part of the groups."""

    @model_validator(mode="before")
    @classmethod
    def _bounds_and_normalisation_follow_the_loss(cls, raw: Any) -> Any:
        """Fill in defaults that depend on another field; stored and sent tasks contain them."""
        match raw:
            case {"loss": str(loss)} if loss in DEFAULTS_BY_LOSS:
                return {**DEFAULTS_BY_LOSS[loss], **raw}
            case _:
                return raw

    @model_validator(mode="after")
    def _relative_advantages_need_others(self) -> Self:
        if self.group_size < 2 and self.advantage != "reinforce_pp":
            raise ValueError(
                f"group_size is {self.group_size}, but advantage '{self.advantage}' compares attempts at one prompt: use 2 or more"
            )
        if self.group_size * self.groups_per_step < 2:
            raise ValueError(f"a step of one attempt has nothing to compare it with: use 2 or more groups_per_step with '{self.advantage}'")
        if self.minibatches > self.groups_per_step:
            raise ValueError(f"minibatches is {self.minibatches}, but a step has {self.groups_per_step} groups, which stay whole")
        return self


class Correction(Section):
    """Off-policy correction, for samples of a stale policy or of another engine's arithmetic."""

    proximal: Literal["sampler", "start"] = "sampler"
    """Denominator of the loss's ratio. `sampler`: one ratio corrects everything. `start`: the policy at the start of the step
    (ratio 1 in the first pass), with a separate weight from the sampler to it. The default is `start` if
    `algorithm.max_staleness` is 2 or more: a trust region around the sampler learns slowly there.
    """
    truncate: float = Field(default=2.0, ge=1, le=1000)
    """Maximum of the weight from the sampler to the start of the step. Used with `start` only."""
    mask_low: float = Field(default=0.0, ge=0, lt=1)
    """Minimum ratio of a token's probability at the start of the step to the sampler's; tokens below it are masked."""
    mask_high: float | None = Field(default=None, gt=1)
    """Maximum of that ratio; tokens above it are masked."""
    max_sampler_mismatch: float = Field(default=2.0, gt=0)
    """Maximum disagreement of sampler and trainer about one version's samples before the task fails: half the mean square of
    the difference of their log-probabilities, in nats. Healthy is below 0.01."""


class Overlong(Section):
    """Attempts truncated by their token limit."""

    rule: Literal["keep", "mask", "penalize"] = "keep"
    """Treatment: as scored; masked in the loss; or with a reward that decreases with the length."""
    buffer_tokens: int = Field(default=0, ge=0, le=131_072)
    """Tokens before the limit over which the penalty grows, with `penalize`."""
    per: Literal["trajectory", "turn"] = "trajectory"
    """Length that is penalized, and its limit: sampled tokens of all turns together, up to `max_turns` times `max_tokens`; or of the
    longest turn, up to `max_tokens`, so that a truncated turn is penalized whatever the lengths of the others.
    """
    penalty: float = Field(default=1.0, gt=0)
    """Deduction from the reward at the limit, with `penalize`."""

    @model_validator(mode="after")
    def _penalty_needs_a_buffer(self) -> Self:
        if self.rule == "penalize" and self.buffer_tokens == 0:
            raise ValueError("rule 'penalize' needs buffer_tokens: over how many tokens before the limit the penalty grows")
        return self


class Lora(Section):
    """The adapter's shape. Initialised as PEFT does: A random, B zero, so version 0 is the base model."""

    rank: int = Field(default=8, ge=1, le=512)
    alpha: float = Field(default=16.0, gt=0)
    targets: Annotated[tuple[LoraTarget, ...], Few(len(LORA_TARGETS))] = Field(default=LORA_TARGETS, min_length=1)
    rank_stabilized: bool = False
    """Scale by alpha / √rank instead of alpha / rank (rsLoRA)."""


class Optimizer(Section):
    """AdamW, with a separate state for every task."""

    learning_rate: float = Field(default=1e-3, gt=0, le=1)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    clip_norm: float = Field(default=1.0, gt=0)
    """Maximum L2 norm of the task's gradient; a larger one is scaled down to it."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises linearly from zero."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule of the learning rate from the warm-up to the task's last step."""
    final_share: float = Field(default=0.0, ge=0, le=1)
    """Fraction of `learning_rate` at which `linear` and `cosine` end."""


class Keep(Section):
    """Retention of past versions. The latest is always kept, and so is every adapter that may still be requested."""

    checkpoints: int = Field(default=2, ge=1, le=1_000_000)
    """Latest versions whose checkpoints are kept, to resume training from and to recompute a step."""
    every: int = Field(default=0, ge=0, le=1_000_000)
    """Interval of versions whose checkpoints are kept too; 0: none."""
    best: int = Field(default=0, ge=0, le=1_000_000)
    """Number of best versions, by `evaluation.decide_by`, whose checkpoints are kept too; 1 by default if `evaluation.every` is set."""
    adapters: Literal["all", "checkpoints"] = "checkpoints"
    """Adapters of every version, or only of those whose checkpoint is kept."""
    adapters_every: int = Field(default=0, ge=0, le=1_000_000)
    """Interval of versions whose adapters are kept too, without checkpoints, with `checkpoints`; 0: none."""
    batches: int = Field(default=0, ge=0, le=1_000_000)
    """Latest steps whose trained trajectories are kept, for `marlaas replay`: about 5 bytes per token."""
    samples: int = Field(default=4, ge=0, le=16)
    """Attempts of each of the last 50 steps that are kept for inspection: the best, the worst, and others by seed; 0: none."""


class Stop(Section):
    """Early stopping, checked after each step and evaluation."""

    reward: float | None = None
    """Reward of an evaluation, by `evaluation.decide_by`, at which the task stops."""
    patience: int | None = Field(default=None, ge=1, le=1_000_000)
    """Successive evaluations without a gain over the previous best version: without a paired difference whose 95 % interval is above 0,
    or, with `evaluation.decide_by = "mean"`, without a higher mean.
    """
    tokens: int | None = Field(default=None, ge=1)
    """Budget in tokens: prompt, sampled, trained and evaluation tokens together."""
    seconds: float | None = Field(default=None, gt=0)
    """Budget in seconds since the task was accepted."""


class Start(Section):
    """Origin of version 0; without a task here, the base model with a fresh adapter."""

    task: str | None = Field(default=None, pattern=TASK_ID_PATTERN)
    """Task whose adapter is the start: of the same tenant, on the same pool, with the same section `lora`."""
    version: int | None = Field(default=None, ge=1)
    """Version of that task; by default its latest at the time of submission."""

    @model_validator(mode="after")
    def _version_is_of_a_task(self) -> Self:
        if self.version is not None and self.task is None:
            raise ValueError("version is given, but not the task that it is of")
        return self
