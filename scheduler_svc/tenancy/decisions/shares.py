"""Quantities that admission compares: shares of tenants and tasks, and the load and capacity of a pool. Pure."""

from dataclasses import dataclass, field, replace

from scheduler_svc.tenancy.decisions.budgets import Purse

Place = tuple[str, str]
"""(tenant, pool)"""


@dataclass(frozen=True)
class Load:
    """Sequences, and their maximum KV-cache tokens."""

    sequences: int = 0
    tokens: float = 0.0

    def __add__(self, other: "Load") -> "Load":
        return Load(self.sequences + other.sequences, self.tokens + other.tokens)

    def fits(self, capacity: "Capacity") -> bool:
        return self.sequences <= capacity.sequences and self.tokens <= capacity.kv_tokens

    def share_of(self, capacity: "Capacity") -> float:
        """The larger of the load's shares of sequences and of KV-cache tokens. `capacity` must be of a pool with a live replica."""
        return max(self.sequences / capacity.sequences, self.tokens / capacity.kv_tokens if capacity.kv_tokens else 0.0)


NOTHING = Load()


@dataclass(frozen=True)
class InFlightLimits:
    """Limits of a tenant's work in flight; None: no limit. A first group may always be admitted, whatever its size."""

    max_sequences: int | None = None
    """Maximum sequences over all pools."""
    max_pool_sequences: int | None = None
    """Maximum sequences in each pool."""
    max_pool_tokens: int | None = None

    def may_hold(self, sequences: int, group: Load) -> bool:
        """Whether the group may be in flight in addition to the tenant's `sequences` over all pools."""
        return not sequences or _within(sequences + group.sequences, self.max_sequences)

    def may_hold_in_pool(self, held: Load, group: Load) -> bool:
        """Whether the group may be in flight in addition to the tenant's load in its pool."""
        fits = _within(held.tokens + group.tokens, self.max_pool_tokens) and not self.exceeds_sequences(held, group)
        return not held.sequences or fits

    def exceeds_sequences(self, held: Load, group: Load) -> bool:
        return not _within(held.sequences + group.sequences, self.max_pool_sequences)


def _within(amount: float, maximum: int | None) -> bool:
    return maximum is None or amount <= maximum


NO_LIMITS = InFlightLimits()


@dataclass
class TenantShare:
    """A tenant in the fair queue. `virtual_time` grows as its work is admitted."""

    tenant: str
    weight: float
    virtual_time: float
    limits: InFlightLimits = NO_LIMITS
    purse: Purse | None = None
    """Its budgets; None if it has none."""

    def charge(self, tokens: float) -> None:
        self.virtual_time += tokens / self.weight


@dataclass
class TaskShare:
    """A task in its tenant's queue."""

    task: str
    tenant: str
    pool: str
    priority: int
    virtual_time: float
    allowance: int
    """Number of groups that may still be opened."""
    group_size: int
    group_tokens: float
    """Expected tokens of a group, for charging."""
    reserved_tokens: float
    """Maximum tokens of a group, for the KV cache."""
    reserved_env_ms: int = 0
    """Maximum milliseconds of environment time for a group."""
    evaluates: bool = False
    """Whether this is the share of the task's evaluations, which queue separately from its training."""

    @property
    def place(self) -> Place:
        return self.tenant, self.pool

    def charge(self, tokens: float) -> None:
        self.virtual_time += tokens

    def evaluate(self, group_size: int) -> None:
        """Turn this into the share of an evaluation whose groups have `group_size` members."""
        share = group_size / self.group_size
        self.reserved_env_ms = self.reserved_env_ms // self.group_size * group_size
        self.group_size, self.group_tokens, self.reserved_tokens = group_size, self.group_tokens * share, self.reserved_tokens * share
        self.evaluates = True


@dataclass(frozen=True)
class Capacity:
    """Capacity of one pool, summed over its live rollout replicas."""

    sequences: float
    kv_tokens: float

    def times(self, factor: float) -> "Capacity":
        return Capacity(self.sequences * factor, self.kv_tokens * factor)


@dataclass
class InFlight:
    """Load admitted to one pool and not scored yet, by tenant and task."""

    total: Load = Load()
    tenants: dict[str, Load] = field(default_factory=dict)
    tasks: dict[tuple[str, str], Load] = field(default_factory=dict)
    """Load by (tenant, task)."""
    weights: dict[str, float] = field(default_factory=dict)
    """Weight by tenant."""

    def add(self, tenant: str, weight: float, task: str, load: Load) -> None:
        self.total += load
        self.tenants[tenant] = self.tenants.get(tenant, Load()) + load
        self.tasks[tenant, task] = self.tasks.get((tenant, task), Load()) + load
        self.weights[tenant] = weight

    def copy(self) -> "InFlight":
        return replace(self, tenants=dict(self.tenants), tasks=dict(self.tasks), weights=dict(self.weights))
