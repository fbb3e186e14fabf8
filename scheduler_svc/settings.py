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
    """PostgreSQL's address, for the role of the scheduler. Parameters of libpq may follow, such as `?passfile=…`."""
    database_owner_url: str = Field(default="", repr=False)
    """The same for the role that owns the schema: migrations and tenants' roles. Empty: that of MARLAAS_SCHEDULER_DATABASE_URL."""
    database_admin_url: str = Field(default="", repr=False)
    """The same for a superuser, with which `migrate` makes the roles, with the passwords in its `passfile`. Empty: they exist."""
    audit_days: int = Field(default=0, ge=0, le=36_500)
    """Days that rows of the audit are kept, 0 for ever. `migrate`, which each start runs, deletes older ones."""
    slices_days: int = Field(default=30, ge=0, le=36_500)
    """Days that booked slices of shared accelerators are kept, with who paid for them; 0 for ever. Bills are kept without them."""
    policy: SchedulingPolicy = SchedulingPolicy.ASYNCHRONOUS
    """`sequential` (one task at a time) and `synchronous` (all tasks in lockstep) are baselines for measurements."""
    tick_s: float = Field(default=1.0, gt=0)
    """Seconds between checks of deadlines; all else is driven by events."""
    oversubscription: float = Field(default=1.5, ge=1)
    """Work in flight as a multiple of what the rollout replicas decode concurrently; the rest is queued or being graded."""
    most_oversubscription: float = Field(default=8.0, ge=1)
    """Maximum to which that multiple grows while slow environments leave the rollout replicas idle; 1 disables growth."""
    sweep_s: float = Field(default=300.0, gt=0)
    """Seconds between full sweeps for superseded messages and blobs."""
    webhook_networks: str = ""
    """Networks, separated by commas, such as 10.0.0.0/8, that webhooks may reach though they are not public; localhost with them."""
    webhook_http: bool = False
    """Whether addresses of webhooks may be http://, without TLS."""
    webhook_key: str = Field(default="", repr=False)
    """Seals the secrets of webhooks in PostgreSQL; all replicas have the same. Empty: this process's key for NATS. After a change tenants
    set their webhooks with new secrets."""
    store_alarm: float = Field(default=0.8, gt=0, le=1)
    """Share of MARLAAS_NATS_BLOBS_BYTES at which live tasks get an event `storage`, before no step can be stored any more."""

    @field_validator("webhook_networks")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        parse_networks(value)
        return value

    @property
    def webhooks(self) -> WebhookRules:
        key = self.webhook_key or (self.nats_creds.read_text() if self.nats_creds is not None else "")
        return WebhookRules(Policy(parse_networks(self.webhook_networks), self.webhook_http), key.encode())
