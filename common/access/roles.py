"""Roles of tenants' keys, as lists of permitted subjects. A tenant's account has no JetStream; its imports bound the permissions of its
keys."""

import itertools
import re
from dataclasses import dataclass
from typing import Literal, get_args

from common import streams
from common.access.rows import Permissions
from common.access.services import INBOX
from common.messages.tenancy.access import Role
from common.messages.verbs import JOBS, QUESTIONS

ROLES: tuple[Role, ...] = get_args(Role)
ADMIN = "admin"
"""Name of the account and role that act for every tenant; reserved, so no tenant can have it."""

MEMBER_VERBS = (
    *("submit", "preview", "cancel", "pause", "resume", "resend", "upload", "upload-file", "delete-package"),
    *("set-alias", "delete-alias"),
)
OWNER_VERBS = ("delete", "prune", "delete-tenant", "set-webhook", "delete-webhook")
JOBS_OF_ROLE: dict[Role, tuple[str, ...]] = {
    "owner": (*MEMBER_VERBS, *OWNER_VERBS),
    "member": MEMBER_VERBS,
    "reader": (),
    "admin": tuple(JOBS),
}
OPERATORS_QUESTIONS = ("moves", "trace")
"""Questions that only an admin may ask: about the deployment, and about steps of every tenant."""
OWNERS_QUESTIONS = ("usage", "invoice", "prices", "budgets", "access", "audit", "webhooks")
"""Questions that only an owner may ask: about costs, keys, the audit log, and webhooks."""


def role_permissions(role: Role, tenant: str, key: str) -> Permissions:
    """Permissions of a key. `tenant`: its name; `*` for an admin. `key`: its public key.

    A job's short subject names no key. Only this key may publish the long subject, which therefore proves who sent the job. Each key has
    its own inbox for answers: an answer to an owner contains what a reader may not request.
    """
    jobs = [f"jobs.{verb}.{tenant}{end}" for verb in JOBS_OF_ROLE[role] for end in ("", f".{key}")]
    questions = [f"ask.{tenant}.{verb}" for verb in QUESTIONS if may_ask(role, verb)]
    inbox = f"{INBOX}.{key}"
    return Permissions((*jobs, *questions), (events_of(tenant), f"{inbox}.>"), inbox)


def may_ask(role: Role, verb: str) -> bool:
    """Whether a key of the role may ask the question."""
    if verb in OPERATORS_QUESTIONS:
        return role == "admin"
    return role in ("owner", "admin") or verb not in OWNERS_QUESTIONS


@dataclass(frozen=True)
class Import:
    """Import of an account from the services' account."""

    kind: Literal["service", "stream"]
    subject: str
    """Subject in the importing account."""
    exported: str
    """Subject in the services' account."""

    @property
    def renamed(self) -> str:
        """`subject` as a token writes it: with `$1`, … for the wildcards of `exported`."""
        numbers = itertools.count(1)
        return re.sub(r"\*", lambda _: f"${next(numbers)}", self.subject)


def imports(tenant: str) -> tuple[Import, ...]:
    """Imports of a tenant's account. `tenant`: its name; `*` for the account `admin`."""
    jobs = (f"jobs.*.{tenant}", f"jobs.*.{tenant}.*")
    sent = [Import("service", subject, subject if tenant == "*" else streams.from_tenant(tenant, subject)) for subject in jobs]
    ask, events = f"ask.{tenant}.*", events_of(tenant)
    return (*sent, Import("service", ask, ask), Import("stream", events, events))


def events_of(tenant: str) -> str:
    """Subjects of a tenant's events. `tenant`: its name; `*` for all."""
    return "events.>" if tenant == "*" else f"events.{tenant}.>"


EXPORTS: tuple[tuple[Literal["service", "stream"], str], ...] = (
    ("service", "jobs.*.*"),
    ("service", "jobs.*.*.*"),
    ("service", streams.from_tenant("*", "jobs.*.*")),
    ("service", streams.from_tenant("*", "jobs.*.*.*")),
    ("service", "ask.*.*"),
    ("stream", "events.>"),
)
"""Exports of the services' account."""
