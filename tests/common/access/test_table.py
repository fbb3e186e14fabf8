"""Every stream, consumer, subject and call of the bus has a row, and no user has more than the tables say."""

import inspect
import re
from itertools import product
from pathlib import Path

import pytest

from common import streams
from common.access.folder import MAX_CONTROL_LINE_BYTES, open_or_make, server_configuration
from common.access.roles import EXPORTS, JOBS_OF_ROLE, ROLES, imports, role_permissions
from common.access.rows import Use, blob_store, bucket
from common.access.services import SERVICES, STORES, Deployment, service_permissions, table
from common.messages.verbs import JOBS
from common.streams import Consumer
from tests.common.access.calls import BLOB_CALLS, BUCKET_CALLS, STREAM_CALLS, calls
from tests.support.matching import covers
from tests.support.paths import ROOT

DEPLOYMENT = Deployment(("tiny", "big"), ("math", "code", "own"), sampler_queues=("tiny@a", "tiny@b"), trainer_queues=("big@a",))
TABLE = table(DEPLOYMENT)
NO_SUBJECTS = {"task_of", "queue", "pool_of", "tenant_of"}
"""Functions of `common/streams/` that give another string."""


def functions(returns: type) -> list[tuple[str, object]]:
    found = [(name, one) for name, one in inspect.getmembers(streams, inspect.isfunction) if one.__module__.startswith(streams.__name__)]
    return [(name, one) for name, one in found if inspect.get_annotations(one)["return"] is returns and name not in NO_SUBJECTS]


def example_arguments(function: object) -> list[object]:
    given: dict[str, object] = {
        "job": "jobs.submit.name",
        "pool": "tiny",
        "queue": "tiny",
        "family": "own",
        "group": 1,
        "verb": "cancel",
        "executor": "trainer-tiny",
        "bucket": "tasks",
        "stage": "settle",
        "tenant": "<tenant>",
    }
    return [given.get(name, "name") for name in inspect.signature(function).parameters]  # type: ignore[arg-type]


def test_every_stream_is_declared_by_the_scheduler_alone() -> None:
    declared = {name: {row.target for row in rows if row.use is Use.DECLARE} for name, rows in TABLE.items()}
    assert declared.pop("scheduler") == {*STORES, streams.own_jobs("<tenant>").name}
    assert not any(declared.values())
    assert {stream.name for stream in vars(streams).values() if isinstance(stream, streams.Stream)} <= set(STORES)
    names = [value for name, value in vars(streams).items() if name.endswith("_BUCKET")]
    assert set(STORES) >= {bucket(name) for name in names if name != streams.BLOBS_BUCKET} | {blob_store(streams.BLOBS_BUCKET)}


def test_every_consumer_belongs_to_one_service() -> None:
    consumers = [value for value in vars(streams).values() if isinstance(value, Consumer)]
    consumers += [one(*example_arguments(one)) for _, one in functions(Consumer)]  # type: ignore[operator]
    assert len(consumers) >= 10
    for consumer in consumers:
        takers = [name for name, rows in TABLE.items() if any(row.use is Use.CONSUME and row.target == consumer.name for row in rows)]
        assert takers == [consumer.name.partition("-")[0]]


@pytest.mark.parametrize(("name", "function"), functions(str))
def test_every_subject_has_a_publisher(name: str, function: object) -> None:
    subject = function(*example_arguments(function))  # type: ignore[operator]
    publishers = [user for user in SERVICES if covers(service_permissions(user, DEPLOYMENT).publish, subject)]
    publishers += [kind for kind, exported in EXPORTS if covers((exported,), subject)]
    assert publishers, f"nobody may publish streams.{name}: {subject}"


def test_every_call_of_the_bus_has_a_row() -> None:
    found = list(calls())
    assert len(found) > 40
    for call in found:
        rows = TABLE[call.service]
        if call.kind == "consume":
            if not call.what.isupper() and call.what in dict(functions(Consumer)):
                consumer = dict(functions(Consumer))[call.what](*example_arguments(dict(functions(Consumer))[call.what]))  # type: ignore[operator]
                assert any(row.use is Use.CONSUME and row.target == consumer.name for row in rows), call
            continue
        use, target = {"stream": (STREAM_CALLS, "stream"), "bucket": (BUCKET_CALLS, "bucket"), "blob": (BLOB_CALLS, "blob")}[call.kind]
        assert call.method in use, f"{call.place}: what may do {call.method}? Say so in tests/common/access/calls.py"
        if target == "blob":
            store = f"$O.{streams.BLOBS_BUCKET}.>" if use[call.method] is Use.PUBLISH else blob_store(streams.BLOBS_BUCKET)
            assert any(row.use is use[call.method] and row.target == store for row in rows), f"{call.place}: no row for {call.method}"
            continue
        named = getattr(streams, call.what, None)
        if isinstance(named, tuple):
            inspected = {row.target for row in rows if row.use is use[call.method]}
            assert {each.name for each in named} <= inspected, f"{call.place}: {call.service} has no row to {use[call.method]} all of them"
            continue
        if named is None:
            assert call.service in ("scheduler", "operator") or call.what == "stream", f"{call.place}: no row can be told for a variable"
            continue
        wanted = named if isinstance(named, str) else named.name
        if target == "bucket" and use[call.method] is Use.PUBLISH:
            allowed = covers(service_permissions(call.service, DEPLOYMENT).publish, streams.value_subject(wanted, f"{call.service}.one"))
        else:
            wanted = bucket(wanted) if target == "bucket" else wanted
            allowed = any(row.use is use[call.method] and row.target == wanted for row in rows)
        assert allowed, f"{call.place}: {call.service} has no row to {use[call.method]} {wanted}"


def test_services_share_nothing_but_what_both_are_told() -> None:
    """A row that lets a second service publish a family of messages, or take a consumer's, changes this list, and SECURITY.md."""
    writers: dict[str, list[str]] = {}
    for service in ("env", "rollout", "trainer", "gateway"):
        for subject in service_permissions(service, DEPLOYMENT).publish:
            writers.setdefault(subject, []).append(service)
    shared = {subject for subject, names in writers.items() if len(names) > 1}
    assert {subject for subject in shared if not subject.startswith(("$JS.API.STREAM.INFO.", "$JS.API.DIRECT.GET."))} == {
        "$JS.API.CONSUMER.CREATE.KV_aliases",
        "$JS.API.CONSUMER.CREATE.KV_leases",
        "$JS.API.CONSUMER.CREATE.KV_pools",
        "$JS.API.CONSUMER.CREATE.KV_replicas",
        "$JS.API.CONSUMER.CREATE.KV_tasks",
        "$JS.API.CONSUMER.CREATE.LEASES",
        "$JS.API.CONSUMER.INFO.KV_aliases.*",
        "$JS.API.CONSUMER.INFO.KV_leases.*",
        "$JS.API.CONSUMER.INFO.KV_pools.*",
        "$JS.API.CONSUMER.INFO.KV_replicas.*",
        "$JS.API.CONSUMER.INFO.KV_tasks.*",
        "$JS.FC.KV_aliases.>",
        "$JS.FC.KV_leases.>",
        "$JS.FC.KV_pools.>",
        "$JS.FC.KV_replicas.>",
        "$JS.FC.KV_tasks.>",
        "$JS.FC.LEASES.>",
        "$JS.API.STREAM.MSG.GET.KV_aliases",
        "$JS.API.STREAM.MSG.GET.KV_history",
        "$JS.API.STREAM.MSG.GET.KV_leases",
        "$JS.API.STREAM.MSG.GET.KV_pools",
        "$JS.API.STREAM.MSG.GET.KV_replicas",
        "$JS.API.STREAM.MSG.GET.KV_tasks",
        "$JS.API.STREAM.MSG.GET.OBJ_blobs",
        "$JS.API.STREAM.MSG.GET.LEASES",
        "$KV.leases.*",
    }


@pytest.mark.parametrize("service", SERVICES)
def test_service_hears_its_own_replies_only(service: str) -> None:
    heard = set(service_permissions(service, DEPLOYMENT).subscribe)
    assert heard - {"ask.*.*", "stored.*.jobs.>", "events.>", "replies.*", "cancels.*", "leases.now.*.*"} == {f"_INBOX.{service}.>"}
    assert ("replies.*" in heard) == (service == "gateway")
    assert ("cancels.*" in heard) == (service == "rollout")
    assert ("events.>" in heard) == (service == "operator")
    assert ({"ask.*.*", "stored.*.jobs.>"} <= heard) == (service == "scheduler")


@pytest.mark.parametrize("role", ROLES)
def test_role_permits_nothing_that_its_account_does_not_import(role: str) -> None:
    tenant = "*" if role == "admin" else "acme"
    found = role_permissions(role, tenant, "UKEY")  # type: ignore[arg-type]
    allowed = tuple(each.subject for each in imports(tenant))
    assert all(covers(allowed, subject) for subject in found.publish)
    assert all(covers((*allowed, "_INBOX.UKEY.>"), subject) for subject in found.subscribe)
    assert all(covers(tuple(given for _, given in EXPORTS), each.exported) for each in imports(tenant))


def test_roles_differ_by_what_they_may_change() -> None:
    assert (
        {*JOBS_OF_ROLE["owner"], "set-tenant", "set-price", "set-budget", "set-access", "move-pool"}
        == set(JOBS_OF_ROLE["admin"])
        == set(JOBS)
        == set(JOBS)
    )
    assert set(JOBS_OF_ROLE["owner"]) - set(JOBS_OF_ROLE["member"]) == {"delete", "prune", "delete-tenant", "set-webhook", "delete-webhook"}
    assert JOBS_OF_ROLE["reader"] == ()


def test_key_may_use_its_own_subject_only() -> None:
    published = role_permissions("member", "acme", "UMINE").publish
    for verb, tenant, key in product(JOBS, ("acme", "globex"), ("UMINE", "UOTHER")):
        mine = tenant == "acme" and key == "UMINE" and verb in JOBS_OF_ROLE["member"]
        assert covers(published, f"jobs.{verb}.{tenant}.{key}") == mine


def test_servers_of_every_deployment_take_a_key_as_long_as_the_stacks(tmp_path: Path) -> None:
    """Those of containers and of a cluster include what is written for the stack."""
    for name in ("nats.conf", "nats-cluster.conf"):
        assert "\ninclude access/nats.conf\n" in (ROOT / "deploy" / name).read_text()
    included = server_configuration(open_or_make(tmp_path / "keys"), "/data/accounts")
    assert re.search(rf"^max_control_line: {MAX_CONTROL_LINE_BYTES}$", included, re.MULTILINE)
