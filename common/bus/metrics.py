"""Prometheus metrics of every service. A service's own metrics are declared beside the code that they measure.

Labels never contain a task or tenant: their number is unbounded, and Postgres has the details.
"""

from prometheus_client import Counter, Histogram

PUBLISHED = Counter("marlaas_published_total", "Messages stored in NATS", ["family"])
REFUSED = Counter("marlaas_refused_by_full_stream_total", "Messages that a full stream refused; their senders wait", ["family"])
FORBIDDEN = Counter("marlaas_forbidden_total", "Messages and subscriptions that NATS refused this process's key; the log names them")
HANDLED = Counter("marlaas_handled_total", "Messages handled, by outcome", ["stage", "outcome"])
HANDLING_S = Histogram(
    "marlaas_handling_seconds",
    "Time from receiving a message to acknowledging it",
    ["stage"],
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300),
)
