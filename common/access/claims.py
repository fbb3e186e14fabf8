"""Tokens of the operator, of accounts and of users: pure functions, apart from the signature.

The operator signs accounts, and an account signs its users. NATS knows the operator's public key from its configuration, so it needs no
list of users: a token is its own proof.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from common.access.keys import Claims, Seed, encode
from common.access.roles import ADMIN, EXPORTS, Import, Role, events_of, imports, role_permissions
from common.access.rows import Permissions
from common.limits import LIMITS

VERSION = 2
UNLIMITED = -1
EVERYONE = "*"
SUSPENDED_UNTIL_S = 4_102_444_800
"""The year 2100, in Unix time: revokes every key that was made before then."""
ANSWER_NS = 30_000_000_000
"""Maximum nanoseconds between a request and its answer."""
REFUSED = "refused"
"""Prefix added to the subject of a message published on an event's subject within a tenant's account. Such a message answers a request
that named that subject as its reply subject; with the prefix, no client takes it for an event.
"""
ROLE_TAG, TENANT_TAG = "role:", "tenant:"


@dataclass(frozen=True)
class AccountLimits:
    """Limits that NATS enforces for one tenant, over all its keys."""

    connections: int = LIMITS["max_connections"].default or 0
    subscriptions: int = 1_000
    message_bytes: int = LIMITS["max_message_bytes"].default or 0


def operator_token(operator: Seed, system_account: str, at_s: int) -> str:
    return encode(operator, {"sub": operator.public, "iat": at_s, "nats": _kind("operator") | {"system_account": system_account}})


def services_token(operator: Seed, account: str, at_s: int) -> str:
    """Token of the services' account, the only account with JetStream."""
    limits = _limits(UNLIMITED, UNLIMITED, UNLIMITED) | {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    exports = [{"name": subject, "subject": subject, "type": kind} for kind, subject in EXPORTS]
    return _account(operator, account, "services", at_s, {"limits": limits | {"exports": -1}, "exports": exports})


def system_token(operator: Seed, account: str, at_s: int) -> str:
    """Token of the system account, through which NATS accepts other accounts' tokens."""
    return _account(operator, account, "system", at_s, {"limits": _limits(UNLIMITED, UNLIMITED, UNLIMITED)})


def tenant_token(
    operator: Seed, account: str, tenant: str, services: str, at_s: int, *, limits: AccountLimits, revoked: Mapping[str, int]
) -> str:
    """Token of a tenant's account, without JetStream.

    `tenant`: its name, or ADMIN for the account that acts for every tenant. `services`: public key of the services' account.
    `revoked`: public key of a user, or EVERYONE → Unix time; NATS refuses tokens made until then and closes their connections.
    """
    of = "*" if tenant == ADMIN else tenant
    content = {
        "limits": _limits(limits.connections, limits.subscriptions, limits.message_bytes),
        "imports": [_import(each, services) for each in imports(of)],
        "mappings": {events_of(of): [{"subject": f"{REFUSED}.{events_of(of)}", "weight": 100}]},
        "revocations": dict(revoked),
    }
    return _account(operator, account, tenant, at_s, content)


def user_token(account: Seed, user: str, name: str, allowed: Permissions, at_s: int, tags: tuple[str, ...] = (), end_s: int = 0) -> str:
    """Token of a user. `end_s`: Unix time at which NATS closes the key's connections and accepts no more; 0 for never."""
    claims: Claims = {
        "sub": user,
        "iat": at_s,
        "name": name,
        "nats": _kind("user")
        | {
            "pub": {"allow": list(allowed.publish)} if allowed.publish else {"deny": [">"]},
            "sub": {"allow": list(allowed.subscribe)},
            "subs": UNLIMITED,
            "data": UNLIMITED,
            "payload": UNLIMITED,
            "tags": list(tags),
        }
        | ({"resp": {"max": 1, "ttl": ANSWER_NS}} if allowed.may_respond else {}),
    }
    return encode(account, claims | ({"exp": end_s} if end_s else {}))


def tenant_user_token(account: Seed, user: str, name: str, tenant: str, role: Role, at_s: int, end_s: int = 0) -> str:
    """Token of a tenant's key, or of a key of the account ADMIN."""
    allowed = role_permissions(role, "*" if tenant == ADMIN else tenant, user)
    return user_token(account, user, name, allowed, at_s, (f"{ROLE_TAG}{role}", f"{TENANT_TAG}{tenant}"), end_s)


def deletion_token(operator: Seed, accounts: list[str], at_s: int) -> str:
    """Request to NATS to delete accounts and to close their connections."""
    return encode(operator, {"sub": operator.public, "iat": at_s, "nats": _kind("generic") | {"accounts": accounts}})


def _import(taken: Import, services: str) -> Claims:
    renamed = {} if taken.subject == taken.exported else {"local_subject": taken.renamed}
    shared = {"share": True} if taken.subject.startswith("ask.") else {}
    return {"name": taken.subject, "subject": taken.exported, "account": services, "type": taken.kind} | renamed | shared


def _account(operator: Seed, account: str, name: str, at_s: int, content: Claims) -> str:
    nothing: Claims = {"default_permissions": {"pub": {}, "sub": {}}}
    return encode(operator, {"sub": account, "iat": at_s, "name": name, "nats": _kind("account") | nothing | content})


def _kind(kind: str) -> Claims:
    return {"type": kind, "version": VERSION}


def _limits(connections: int, subscriptions: int, message_bytes: int) -> Claims:
    return {
        "conn": connections,
        "subs": subscriptions,
        "payload": message_bytes,
        "data": UNLIMITED,
        "imports": UNLIMITED,
        "exports": 0,
        "wildcards": True,
        "leaf": 0,
    }
