"""A sample of each kind of message, as golden bytes have it."""

from datetime import UTC, datetime
from decimal import Decimal

from common import messages
from common.accelerators import Tier
from common.messages import (
    BlobRef,
    Canary,
    ChatMessage,
    Message,
    SampledTurn,
    ScoredTrajectory,
    TokenRecord,
    TurnRequest,
)
from common.spec import EnvironmentSection, parse_spec
from tests.support.groups import group_context

BLOB = BlobRef(name="a.v1-00", size_bytes=7, sha256="0" * 64)


RECORD = TokenRecord().with_context([1, 2]).with_sampled([3], [-0.5])


ADAPTER = messages.AdapterRef(task="a", version=1, rank=8, blob=BLOB, canary=Canary(ids=RECORD.ids, logprobs=b"\x87\xff\x00\xc1"))


SPEC = parse_spec({"name": "n", "tenant": "t", "pool": "p", "steps": 1, "environment": {"name": "e:x", "options": {"size": 2}}})


GROUP = group_context("a", 4, tenant="t", pool="p", size=2, version=1, adapter=ADAPTER, family="e", seed=9, deadline_s=1.5)


REQUEST = TurnRequest(member=0, turn=1, transcript=RECORD, messages=[ChatMessage(role="user", content="hi")], state=b"s")


TURN = SampledTurn(member=0, turn=1, transcript=RECORD, reply="hi", finish="stop", state=b"s")


SCORED = ScoredTrajectory(member=0, transcript=RECORD, reward=0.5, components={"score": 0.5}, turns=2, env_ms=0, away_ms=0)


DAY = datetime(2030, 1, 2, tzinfo=UTC)


STATUS = messages.TaskStatus(tenant="t", task="a", name="n", pool="p", state="running", version=0, steps=1, submitted_s=1.0, updated_s=2.0)


WHEEL = messages.BlobRef(name=messages.wheel_name("t", "a" * 64), size_bytes=2, sha256="a" * 64)


HTTP = messages.HttpPart(digest="a" * 64, token="a.b.c")


SAMPLES: list[Message] = [
    messages.SubmitTask(task="a", tenant="t", spec={"name": "n"}),
    messages.PreviewTask(tenant="t", request="r", spec={"name": "n"}),
    messages.ControlTask(task="a", tenant="t", reason="r"),
    messages.PruneTasks(tenant="t", request="r", ended_before_s=60.0, dry_run=True),
    messages.ResendLetter(tenant="t", letter=3),
    messages.DeleteTenant(tenant="t", request="r"),
    messages.UploadPackage(tenant="t", request="r", digest="a" * 64, size_bytes=2, offset=0, data=b"PK"),
    messages.UploadFile(tenant="t", request="r", digest="a" * 64, size_bytes=2, offset=0, data=b"{}", name="rows.jsonl"),
    messages.DeletePackage(tenant="t", request="r", digest="a" * 12),
    messages.CheckPackage(tenant="t", family="own", package="a" * 64, wheel=WHEEL, weight=2.0),
    messages.PackageChecked(
        tenant="t",
        package="a" * 64,
        objection=None,
        name="p",
        version="1.0",
        environments=[messages.OwnEnvironment(name="e", components=["c"])],
    ),
    messages.SetTenant(
        tenant="t", request="r", weight=2.0, limits=[messages.LimitValue(of="max_tasks", value=3)], defaults=["max_adapters"]
    ),
    messages.SetPrice(request="r", of="sampled", pool="p", price=Decimal("2.50"), per=1_000_000, valid_from=DAY),
    messages.SetAccess(
        tenant="t", request="r", account="A" * 56, add=messages.NewKey(key="U" * 56, name="k", role="owner", ends=DAY, http=HTTP)
    ),
    messages.HttpKey(digest="a" * 64, tenant="t", role="owner", name="k", key="U" * 56, ends=DAY, token="a.b.c"),
    messages.AskAccess(cursor="t"),
    messages.AskAudit(since=DAY, cursor=3),
    messages.AuditAnswer(
        lines=[
            messages.AuditLine(
                number=4,
                at=DAY,
                tenant="t",
                key="U" * 56,
                name="k",
                via="key",
                host="",
                verb="cancel",
                target="",
                outcome="refused",
                reason="task",
                count=2,
                detail={"n": 1},
            )
        ],
        cursor=None,
    ),
    messages.AccessAnswer(
        tenants=[
            messages.TenantAccess(
                tenant="t",
                account="A" * 56,
                suspended=False,
                keys=[messages.KeyRecord(key="U" * 56, name="k", role="owner", created=DAY)],
                max_connections=64,
                max_message_bytes=2**20,
            )
        ],
        cursor=None,
    ),
    messages.CheckEnvironment(
        tenant="t", task="a", family="e", environment=EnvironmentSection(name="e:x"), seed=1, weight=1.0, by_operator=True
    ),
    messages.OpenGroup(group=GROUP),
    messages.SampleTurns(group=GROUP, members=[REQUEST]),
    messages.TurnsSampled(group=GROUP, members=[TURN]),
    messages.TrajectoriesScored(group=GROUP, members=[SCORED]),
    messages.EnvironmentChecked(tenant="t", task="a", objection=None),
    messages.TrainBatch(
        tenant="t",
        task="a",
        pool="p",
        version=0,
        spec=SPEC,
        checkpoint=None,
        groups=[messages.BatchGroup(group=4, version=0, members=[messages.BatchMember(member=0, sequence=11, reward=0.5)])],
        weight=1.0,
    ),
    messages.WeightUpdated(
        tenant="t",
        task="a",
        pool="p",
        version=1,
        adapter=ADAPTER,
        checkpoint=messages.CheckpointRef(**dict(BLOB), since=None),
        metrics={"loss": 0.5},
        trained_tokens=3,
        started_s=1.0,
        finished_s=2.0,
        trained="0" * 64,
    ),
    messages.Event(tenant="t", task="a", event="step", at_s=1.0, data={"version": 1}),
    messages.DeadLetter(stage="train", subject="s", reason="r", attempts=1, headers={}, body=b"b", sequence=1),
    STATUS,
    messages.HistoryMark(deployment="d", position=3),
    messages.StatusesRemoved(until_s=1.5),
    messages.ProcessLife(
        service="trainer", replica="r", pool="p", began_s=1.5, ready_s=2.5, start_s=1.0, ended="no", deaths=2, died_s=3.5, cause="no"
    ),
    messages.ReplicaReport(replica="r", service="env", families=["e"], environments=["e:x"]),
    messages.ServeRequest(
        request="r",
        attempt=1,
        gateway="g-1",
        tenant="t",
        key=None,
        pool="p",
        adapter=ADAPTER,
        messages=[
            messages.ServedMessage(role="assistant", tool_calls=[messages.ServedCall(id="c", name="f", arguments="{}")]),
            messages.ServedMessage(role="tool", content="7", tool_call_id="c"),
        ],
        sampling=messages.ServedSampling(max_tokens=3, seed=2**63 - 1, logit_bias={5: -1.5}, stop=["x"], top_logprobs=2),
        sampled=RECORD.ids,
        first_token_by_s=1.5,
    ),
    messages.Served(
        replica="r",
        deltas=[
            messages.ServedDelta(
                request="r",
                attempt=1,
                number=0,
                ids=RECORD.ids,
                text="a",
                tokens=[
                    messages.ServedToken(
                        token="a", logprob=-0.5, bytes=[97], top=[messages.TopToken(token="b", logprob=messages.MIN_LOGPROB, bytes=[98])]
                    )
                ],
                calls=[messages.ServedCall(id="c", name="f", arguments="{}")],
                finish="tool_calls",
                prompt_tokens=2,
                cached_tokens=1,
                fingerprint="f",
            )
        ],
        alive=[messages.ServedAttempt(request="r", attempt=1)],
    ),
    messages.CancelServing(gateway="g-1", requests=[messages.ServedAttempt(request="r", attempt=1)]),
]


ATTEMPT = messages.KeptAttempt(
    group=1,
    member=0,
    version=0,
    reward=0.5,
    components={"correct": 1.0},
    advantage=-0.5,
    finish="stop",
    turns=1,
    tokens=messages.TokenRecord(ids=bytes(8), logprobs=bytes(8), sampled=b"\x00\x01"),
    trainer_logprobs=bytes(8),
)


KEPT = messages.StepSamples(tenant="t", task="a", pool="p", version=1, attempts=[ATTEMPT], left_out=1)
SAMPLES += [
    KEPT,
    messages.AskSamples(task="a", step=1),
    messages.SamplesAnswer(task="a", steps=[1], samples=KEPT),
    messages.TextsRequest(request="r", gateway="g-1", pool="p", ids=bytes(8), answer_by_s=1.0),
]


LEASE = {"accelerator": "a", "executor": "rollout-p", "pool": "p", "replica": "r", "epoch": 3}
SAMPLES += [
    messages.LeaseOrder(accelerator="a", executor="rollout-p", epoch=3, wake=False, tier=Tier.DISK, drain_s=None),
    messages.LeaseDone.model_validate(
        LEASE
        | {"state": "parked", "from_tier": "device", "tier": "disk", "move_s": 0.5, "at_s": 1.5, "device_bytes": 9, "host_bytes": 4}
        | {"freed_bytes": 8, "served": {"a": 2}, "busy_ms": 7, "pieces": 1, "failure": "f"}
    ),
    messages.ExecutorReport.model_validate(
        LEASE
        | {"state": "awake", "tier": "device", "device_bytes": 9, "host_bytes": 4, "running": "generate", "begun": 2, "left_s": 0.5}
        | {"ready": 1, "ready_since_s": 1.0, "piece_s": 0.25, "pieces": 5, "at_s": 1.5}
        | {"budget_bytes": 11}
    ),
    messages.Lease(executor="rollout-p", replica="r", epoch=3, renewed_s=1.5),
    messages.PoolClock(parked_s=2.5, parked_since_s=1.0),
    messages.MovePool(request="r", pool="p", verb="drain", service="rollout", accelerator="a"),
]
