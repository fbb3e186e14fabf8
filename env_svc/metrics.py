"""Metrics of this service. Families are few; tasks and environments are not labels."""

from prometheus_client import Counter, Gauge, Histogram

CALL_S = Histogram(
    "marlaas_env_call_seconds",
    "Time to open an episode, or to play one message's turns, waiting for a worker included",
    ["call", "family"],
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120),
)
RUNNING = Gauge("marlaas_env_calls_running", "Messages whose episodes are being opened or played", ["call", "family"])
TRAJECTORIES_ENDED = Counter("marlaas_env_trajectories_total", "Trajectories that ended here", ["family", "outcome"])
WORKERS_BUSY = Gauge("marlaas_env_workers_busy", "Worker processes at work")
WORKERS_WAITING = Gauge("marlaas_env_jobs_waiting", "Jobs that wait for a worker process")
OWN_PROCESSES = Gauge("marlaas_env_own_processes", "Processes of tenants' packages, idle ones included")
OWN_WAITING = Gauge("marlaas_env_own_waiting", "Environments of tenants' packages that wait for a process")
TOOL_CALLS = Counter("marlaas_env_tool_calls_total", "Tool calls: answered, refused with an answer that says why, failed", ["outcome"])
