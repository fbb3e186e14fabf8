"""Roles of tenants' keys, as lists of permitted subjects. A tenant's account has no JetStream; what it imports bounds all its keys."""

from typing import Literal, get_args

from common import streams
from common.access.rows import Permissions
from common.access.services import INBOX
from common.messages.tenancy.access import Role

ROLES: tuple[Role, ...] = get_args(Role)
ADMIN = "admin"
"""Name of the account, and of the role, that acts for every tenant; no tenant may have it."""

MEMBER_VERBS = (
    *("submit", "preview", "cancel", "pause", "resume", "resend", "upload", "upload-file", "delete-package"),
    *("set-alias", "delete-alias"),
)
OWNER_VERBS = ("delete", "prune", "delete-tenant", "set-webhook", "delete-webhook")
JOBS_OF_ROLE: dict[Role, tuple[str, ...]] = {
    "owner": (*MEMBER_VERBS, *OWNER_VERBS),
    "member": MEMBER_VERBS,
    "reader": (),
    "admin": streams.JOB_VERBS,
}
QUESTIONS = (
    "tasks",
    "status",
    "events",
    "usage",
    "why",
    "envs",
    "files",
    "file-chunk",
    "pools",
    "replicas",
    "spec",
    "steps",
    "evaluations",
    "versions",
    "samples",
    "timeline",
    "aliases",
    "failures",
    "adapter",
    "chunk",
    "invoice",
    "prices",
    "budgets",
    "access",
    "audit",
    "webhooks",
    "executors",
    "slices",
    "moves",
    "trace",
)
"""Verbs of `ask.<tenant>.<verb>`."""
OPERATORS_QUESTIONS = ("moves", "trace")
"""Questions that only an admin may ask: about the deployment, and about the steps of all tenants."""
OWNERS_QUESTIONS = ("usage", "invoice", "prices", "budgets", "access", "audit", "webhooks")
"""Questions that only an owner may ask: what everything costs, who has keys, who has done what, and where webhooks go."""


def role_permissions(role: Role, tenant: str, key: str) -> Permissions:
    """What a key may do. `tenant`: its name; `*` for an admin. `key`: its public key.

    The short subject of a job names no key; the long one is permitted to this key alone, so it proves who has sent the job.
    """
    jobs = [f"jobs.{verb}.{tenant}{end}" for verb in JOBS_OF_ROLE[role] for end in ("", f".{key}")]
    questions = [f"ask.{tenant}.{verb}" for verb in QUESTIONS if _may_ask(role, verb)]
    events = "events.>" if role == "admin" else f"events.{tenant}.>"
    return Permissions((*jobs, *questions), (events, f"{INBOX}.>"), INBOX)


def _may_ask(role: Role, verb: str) -> bool:
    if verb in OPERATORS_QUESTIONS:
        return role == "admin"
    return role in ("owner", "admin") or verb not in OWNERS_QUESTIONS


def imports(tenant: str) -> tuple[tuple[Literal["service", "stream"], str], ...]:
    """What a tenant's account takes from the services' account; `*` for the account `admin`."""
    events = "events.>" if tenant == "*" else f"events.{tenant}.>"
    return (("service", f"jobs.*.{tenant}"), ("service", f"jobs.*.{tenant}.*"), ("service", f"ask.{tenant}.*"), ("stream", events))


EXPORTS: tuple[tuple[Literal["service", "stream"], str], ...] = (
    ("service", "jobs.*.*"),
    ("service", "jobs.*.*.*"),
    ("service", "ask.*.*"),
    ("stream", "events.>"),
)
"""What the services' account gives to others."""
