"""Reports of replicas on an accelerator."""

from common.homes import OWN_QUEUE
from common.messages import ReplicaReport


def report(service: str, accelerator: str, able: float = 1.0) -> ReplicaReport:
    return ReplicaReport(
        replica=f"{service}-{accelerator}",
        service=service,  # type: ignore[arg-type]
        pool="tiny",
        sequences=64 if service == "rollout" else 0,
        kv_tokens=10**6,
        template_variables=[],
        busy={f"{OWN_QUEUE}@{accelerator}": able},
    )
