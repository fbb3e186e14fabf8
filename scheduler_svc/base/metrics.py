"""Prometheus metrics of the scheduler. All other data about tasks is in PostgreSQL."""

from prometheus_client import Counter, Gauge

VOID_GROUPS = Counter("marlaas_scheduler_void_groups_total", "Groups that ended void, by reason", ["reason"])
OVERSUBSCRIPTION = Gauge(
    "marlaas_scheduler_oversubscription", "Work that may be in flight, as a multiple of what the samplers decode concurrently", ["pool"]
)
PARKED_S = Gauge("marlaas_scheduler_pool_parked_seconds", "Seconds for which all samplers of the pool were parked, in all", ["pool"])
ACCELERATOR_S = Counter(
    "marlaas_scheduler_accelerator_seconds_total", "Seconds of booked slices, by use: switch, busy, idle", ["accelerator", "pool", "use"]
)
WEBHOOKS = Counter("marlaas_scheduler_webhooks_total", "Attempts to deliver messages to webhooks, by outcome", ["outcome"])
ASKS = Counter("marlaas_scheduler_asks_total", "Requests on ask.<tenant>.<verb>, by outcome", ["outcome"])
