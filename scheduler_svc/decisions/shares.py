"""The quantities that admission compares: shares of tenants and tasks, and the load and capacity of a pool. Pure."""

from dataclasses import dataclass, field, replace

from scheduler_svc.decisions.budgets import Purse


@dataclass
class TenantShare:
    """A tenant in the fair queue. `virtual_time` grows as its work is admitted."""

    tenant: str
    weight: float
    virtual_time: float
    max_sequences: int | None = None
    """Maximum sequences in flight over all pools; None: no limit."""
    purse: Purse | None = None
    """Its budgets; None: it has none."""

    def charge(self, tokens: float) -> None:
        self.virtual_time += tokens / self.weight

    def may_hold(self, held: int, more: int) -> bool:
        """Whether it may have `more` sequences in flight beside `held`; a first group always may be."""
        return self.max_sequences is None or not held or held + more <= self.max_sequences


@dataclass
class TaskShare:
    """A task in its tenant's queue."""

    task: str
    tenant: str
    pool: str
    priority: int
    virtual_time: float
    allowance: int
    """Groups that may still be opened."""
    group_size: int
    group_tokens: float
    """Expected tokens of a group, for charging."""
    reserved_tokens: float
    """Maximum tokens of a group, for the KV cache."""
    evaluates: bool = False
    """Whether the groups are of the task's evaluations, which queue apart from its training."""

    def charge(self, tokens: float) -> None:
        self.virtual_time += tokens

    def evaluate(self, group_size: int) -> None:
        """Turn this into the share of an evaluation, whose groups have another size."""
        share = group_size / self.group_size
        self.group_size, self.group_tokens, self.reserved_tokens = group_size, self.group_tokens * share, self.reserved_tokens * share
        self.evaluates = True


@dataclass(frozen=True)
class Capacity:
    """Capacity of one pool, summed over its live rollout replicas."""

    sequences: float
    kv_tokens: float


@dataclass(frozen=True)
class Load:
    """Sequences, and their maximum KV-cache tokens."""

    sequences: int = 0
    tokens: float = 0.0

    def __add__(self, other: "Load") -> "Load":
        return Load(self.sequences + other.sequences, self.tokens + other.tokens)

    def fits(self, capacity: Capacity) -> bool:
        return self.sequences <= capacity.sequences and self.tokens <= capacity.kv_tokens

    def share_of(self, capacity: Capacity) -> float:
        """The larger of the two shares of `capacity`, which must be of a pool with a live replica."""
        return max(self.sequences / capacity.sequences, self.tokens / capacity.kv_tokens if capacity.kv_tokens else 0.0)


@dataclass
class InFlight:
    """Load admitted to one pool and not scored yet."""

    total: Load = Load()
    tenants: dict[str, Load] = field(default_factory=dict)
    tasks: dict[tuple[str, str], Load] = field(default_factory=dict)
    """Load by (tenant, task)."""
    weights: dict[str, float] = field(default_factory=dict)
    """Weight of each of these tenants."""

    def add(self, tenant: str, weight: float, task: str, load: Load) -> None:
        self.total += load
        self.tenants[tenant] = self.tenants.get(tenant, Load()) + load
        self.tasks[tenant, task] = self.tasks.get((tenant, task), Load()) + load
        self.weights[tenant] = weight

    def copy(self) -> "InFlight":
        return replace(self, tenants=dict(self.tenants), tasks=dict(self.tasks), weights=dict(self.weights))
