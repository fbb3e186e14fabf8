"""Prometheus metrics of the scheduler. Everything else about tasks is in PostgreSQL."""

from prometheus_client import Counter

VOID_GROUPS = Counter("marlaas_scheduler_void_groups_total", "Groups that ended void, by reason", ["reason"])
