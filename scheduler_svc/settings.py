"""Settings of the scheduler."""

from typing import ClassVar

from pydantic import Field, field_validator

from common.runtime.settings import Settings
from scheduler_svc.base.scheduling_policy import SchedulingPolicy
from scheduler_svc.tenancy.webhooks.addresses import Policy, WebhookRules, parse_networks


class SchedulerSettings(Settings):
    service: ClassVar[str] = "SCHEDULER"
    secrets: ClassVar[tuple[str, ...]] = ("database_url", "database_owner_url", "database_admin_url", "webhook_key")
    declares_streams: ClassVar[bool] = True

    database_url: str = Field(default="postgresql+psycopg://marlaas_app@127.0.0.1:5432/marlaas", repr=False)
    """PostgreSQL's address, for the scheduler's role. Parameters of libpq may follow, such as `?passfile=…`."""
    database_owner_url: str = Field(default="", repr=False)
    """PostgreSQL's address for the role that owns the schema: migrations and tenants' roles. Empty: MARLAAS_SCHEDULER_DATABASE_URL."""
    database_admin_url: str = Field(default="", repr=False)
    """PostgreSQL's address for a superuser, with which `migrate` creates the roles, with passwords from its `passfile`. Empty: they exist.
    """
    audit_days: int = Field(default=0, ge=0, le=36_500)
    """Days for which audit rows are kept, 0 forever. `migrate`, which each start runs, deletes older ones."""
    slices_days: int = Field(default=30, ge=0, le=36_500)
    """Days for which booked slices of shared accelerators are kept, with their payers; 0 forever. Bills are kept without them."""
    policy: SchedulingPolicy = SchedulingPolicy.ASYNCHRONOUS
    """`sequential` (one task at a time) and `synchronous` (all tasks in lockstep) are baselines for measurements."""
    tick_s: float = Field(default=1.0, gt=0)
    """Seconds between checks of deadlines; other work is triggered by events."""
    oversubscription: float = Field(default=1.5, ge=1)
    """Work in flight as a multiple of what the rollout replicas decode concurrently; the rest is queued or being graded."""
    most_oversubscription: float = Field(default=8.0, ge=1)
    """Maximum of the multiple above, which grows while slow environments leave the rollout replicas idle; 1 disables growth."""
    sweep_s: float = Field(default=300.0, gt=0)
    """Seconds between full sweeps for superseded messages and blobs."""
    webhook_networks: str = ""
    """Non-public networks that webhooks may reach, including localhost's; comma-separated, such as 10.0.0.0/8."""
    webhook_http: bool = False
    """Whether webhook URLs may be http://, without TLS."""
    webhook_key: str = Field(default="", repr=False)
    """Key that encrypts webhook secrets in PostgreSQL; must be equal on all replicas. Empty: this process's NATS key. After a change,
    tenants must set new secrets for their webhooks."""
    store_alarm: float = Field(default=0.8, gt=0, le=1)
    """Share of MARLAAS_NATS_BLOBS_BYTES at which live tasks get an event `storage`, before the blob store is full and steps cannot be
    stored."""

    @field_validator("webhook_networks")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        parse_networks(value)
        return value

    @property
    def webhooks(self) -> WebhookRules:
        key = self.webhook_key or (self.nats_creds.read_text() if self.nats_creds is not None else "")
        return WebhookRules(Policy(parse_networks(self.webhook_networks), self.webhook_http), key.encode())
