"""What a subject says, the body and the headers say too; otherwise nothing is read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from common import messages, streams
from common.accelerators import ExecutorState, Tier
from common.bus import Delivery
from common.errors import Reject
from common.message_consistency import READ_BY, is_read_by, settlement_in
from common.messages import AdapterRef, BlobRef, Canary, ChatMessage, Message, TokenRecord
from common.spec import EnvironmentSection, parse_spec
from common.streams import KIND_HEADER, SETTLEMENT_HEADER, Consumer
from tests.support.groups import group_context

DIGEST = "0123456789abcdef" * 4
SPEC = parse_spec({"name": "n", "tenant": "t", "pool": "p", "steps": 3, "environment": {"name": "e:x"}})
RECORD = TokenRecord().with_context([1, 2]).with_sampled([3], [-0.5])


def blob(name: str) -> BlobRef:
    return BlobRef(name=f"{name}-{DIGEST[:16]}", size_bytes=7, sha256=DIGEST)


def adapter(task: str = "a", version: int = 1, name: str = "a.v1.adapter") -> AdapterRef:
    return AdapterRef(task=task, version=version, rank=8, blob=blob(name), canary=Canary(ids=b"", logprobs=b""))


GROUP = group_context("a", 4, tenant="t", pool="p", size=2, version=1, adapter=adapter(), family="e")
ASKED = messages.TurnRequest(member=1, turn=0, transcript=RECORD, messages=[ChatMessage(role="user", content="hi")], state=b"")
PLAYED = messages.SampledTurn(member=1, turn=0, transcript=RECORD, reply="hi", finish="stop", state=b"")
SCORED = messages.TrajectoriesScored(
    group=GROUP,
    members=[messages.ScoredTrajectory(member=1, transcript=RECORD, reward=0.5, components={"score": 0.5}, turns=1, env_ms=0, away_ms=0)],
)
BATCH = messages.TrainBatch(
    tenant="t", task="a", pool="p", version=1, spec=SPEC, checkpoint=blob("a.v1.checkpoint"),
    groups=[messages.BatchGroup(group=4, version=1, members=[messages.BatchMember(member=0, sequence=11, reward=0.5)])], weight=1.0,
)  # fmt: skip
UPDATE = messages.WeightUpdated(
    tenant="t", task="a", pool="p", version=1, adapter=adapter(), checkpoint=messages.CheckpointRef(**dict(blob("a.v1.checkpoint"))),
    batch=blob("a.v1.batch"), metrics={}, trained_tokens=3, started_s=1.0, finished_s=2.0, trained="0" * 64,
)  # fmt: skip
LETTER = messages.DeadLetter(stage="turn", subject="trajectories.turn.e.a.4-1", reason="r", attempts=1, headers={}, body=b"", sequence=1)
JOB: dict[str, Any] = {"tenant": "t", "request": "r"}
LEASE: dict[str, Any] = {
    "accelerator": "g", "executor": "rollout-p", "pool": "p", "replica": "r", "epoch": 1, "at_s": 1.0,
    "state": ExecutorState.COLD, "tier": Tier.OFF,
}  # fmt: skip


@dataclass(frozen=True)
class Sent:
    subject: str
    message: Message
    headers: Mapping[str, str] = field(default_factory=dict)

    def read(self) -> Message:
        headers = {KIND_HEADER: self.message.kind, **self.headers}
        return Delivery(self.subject, headers, self.message.encode(), sequence=1, attempt=1).read(type(self.message))


HONEST = [
    Sent("jobs.submit.t", messages.SubmitTask(task="a", tenant="t", spec={})),
    Sent("jobs.submit.t.KEY", messages.SubmitTask(task="a", tenant="t", spec={})),
    Sent("jobs.cancel.t", messages.ControlTask(task="a", tenant="t")),
    Sent("jobs.preview.t", messages.PreviewTask(**JOB, spec={})),
    Sent("jobs.prune.t", messages.PruneTasks(**JOB)),
    Sent("jobs.resend.t", messages.ResendLetter(tenant="t", letter=3)),
    Sent("jobs.delete-tenant.t", messages.DeleteTenant(**JOB)),
    Sent("jobs.set-tenant.t", messages.SetTenant(**JOB)),
    Sent("jobs.set-budget.t", messages.SetBudget(**JOB, period="day", unit="tokens", amount=Decimal(7))),
    Sent("jobs.set-access.t", messages.SetAccess(**JOB)),
    Sent("jobs.set-access._all", messages.SetAccess(tenant=None, request="r")),
    Sent(
        "jobs.set-price._all",
        messages.SetPrice(request="r", of="sampled", pool="p", price=Decimal(2), per=1, valid_from=datetime(2030, 1, 2, tzinfo=UTC)),
    ),
    Sent(
        "prompts.check.e.a",
        messages.CheckEnvironment(
            tenant="t", task="a", family="e", environment=EnvironmentSection(name="e:x"), seed=1, weight=1.0, by_operator=True
        ),
    ),
    Sent("prompts.open.e.a.4", messages.OpenGroup(group=GROUP)),
    Sent("prompts.sample.p.a.4-1", messages.SampleTurns(group=GROUP, members=[ASKED])),
    Sent("prompts.sample.p@g.a.4-1", messages.SampleTurns(group=GROUP.model_copy(update={"home": "g"}), members=[ASKED])),
    Sent("trajectories.turn.e.a.4-1", messages.TurnsSampled(group=GROUP, members=[PLAYED])),
    Sent("trajectories.checked.a", messages.EnvironmentChecked(tenant="t", task="a", objection=None)),
    Sent("trajectories.scored.a.4-1", SCORED, {SETTLEMENT_HEADER: SCORED.settlement().model_dump_json()}),
    Sent("trajectories.batch.p.a", BATCH),
    Sent("trajectories.batch.p@g.a", BATCH),
    Sent("weight-updated.p.a", UPDATE),
    Sent("events.t.a", messages.Event(tenant="t", task="a", event="step", at_s=1.0)),
    Sent("leases.order.g.rollout-p", messages.LeaseOrder(accelerator="g", executor="rollout-p", epoch=1, wake=True)),
    Sent("leases.done.g.rollout-p", messages.LeaseDone(**LEASE, from_tier=Tier.OFF)),
    Sent("leases.now.g.rollout-p", messages.ExecutorReport(**LEASE, device_bytes=1, host_bytes=1, budget_bytes=2)),
    Sent("failed.turn.a", LETTER),
    Sent("failed.jobs.none", LETTER.model_copy(update={"stage": "jobs", "subject": "jobs.submit.t"})),
    Sent("failed.settle.none", LETTER.model_copy(update={"stage": "settle", "subject": "weight-updated.p"})),
]


def named_parts() -> list[tuple[Sent, str]]:
    """Each message with a subject in which one of the parts that the body repeats is another one's."""
    found: list[tuple[Sent, str]] = []
    for sent in HONEST:
        parts = sent.subject.split(".")
        for place in range(2 if parts[0] in ("jobs", "prompts", "trajectories", "leases") else 1, len(parts)):
            if parts[place] != "KEY":
                found.append((sent, ".".join([*parts[:place], "other", *parts[place + 1 :]])))
    return found


@pytest.mark.parametrize("sent", HONEST, ids=lambda sent: sent.subject)
def test_message_that_agrees_with_its_subject_is_read(sent: Sent) -> None:
    assert sent.read() == sent.message


@pytest.mark.parametrize(("sent", "subject"), named_parts(), ids=lambda value: value if isinstance(value, str) else "")
def test_message_on_a_subject_with_another_part_is_rejected(sent: Sent, subject: str) -> None:
    with pytest.raises(Reject, match=r"the subject names|reads no message of this task|is no subject"):
        Sent(subject, sent.message, sent.headers).read()


OTHER_GROUP = GROUP.model_copy(update={"adapter": adapter(task="b", name="b.v1.adapter")})
OLD_ADAPTER = GROUP.model_copy(update={"adapter": adapter(version=2, name="a.v2.adapter")})
OTHER_BLOB = GROUP.model_copy(update={"adapter": adapter(name="b.v1.adapter")})
SETTLED = SCORED.settlement()
LIES = {
    "adapter of another task": (Sent("prompts.open.e.a.4", messages.OpenGroup(group=OTHER_GROUP)), "has the adapter b.v1"),
    "adapter of another version": (Sent("prompts.open.e.a.4", messages.OpenGroup(group=OLD_ADAPTER)), "has the adapter a.v2"),
    "blob of another task": (Sent("prompts.sample.p.a.4-1", messages.SampleTurns(group=OTHER_BLOB, members=[ASKED])), "b.v1.adapter"),
    "start of another task": (
        Sent("trajectories.batch.p.a", BATCH.model_copy(update={"start": adapter(task="b", version=0)})),
        "starts from is that of b.v0",
    ),
    "checkpoint of another task": (
        Sent("trajectories.batch.p.a", BATCH.model_copy(update={"checkpoint": blob("b.v1.checkpoint")})),
        "its checkpoint b.v1.checkpoint-0123456789abcdef is not that of task a version 1",
    ),
    "checkpoint of another version": (
        Sent("trajectories.batch.p.a", BATCH.model_copy(update={"checkpoint": blob("a.v2.checkpoint")})),
        "is not that of task a version 1",
    ),
    "update with another's adapter": (
        Sent("weight-updated.p.a", UPDATE.model_copy(update={"adapter": adapter(task="b", name="b.v1.adapter")})),
        "has the adapter b.v1",
    ),
    "update with another's blob": (
        Sent("weight-updated.p.a", UPDATE.model_copy(update={"adapter": adapter(name="b.v1.adapter")})),
        "its blob b.v1.adapter-0123456789abcdef is not the adapter of task a version 1",
    ),
    "update with a batch as its checkpoint": (
        Sent("weight-updated.p.a", UPDATE.model_copy(update={"checkpoint": messages.CheckpointRef(**dict(blob("a.v1.batch")))})),
        "is not the checkpoint of task a version 1",
    ),
    "update with another's batch": (
        Sent("weight-updated.p.a", UPDATE.model_copy(update={"batch": blob("b.v1.batch")})), "is not the batch of task a version 1"
    ),
    "blob that is not named after its digest": (
        Sent(
            "weight-updated.p.a",
            UPDATE.model_copy(update={"batch": BlobRef(name="a.v1.batch-ffffffffffffffff", size_bytes=7, sha256=DIGEST)}),
        ),
        "is not the batch of task a version 1",
    ),
    "header of another group": (
        Sent("trajectories.scored.a.4-1", SCORED, {SETTLEMENT_HEADER: SETTLED.model_copy(update={"group": 5}).model_dump_json()}),
        r"its header is about \(task, group, members\) \('a', 5, \[1\]\), its body about \('a', 4, \[1\]\)",
    ),
    "header that is malformed": (Sent("trajectories.scored.a.4-1", SCORED, {SETTLEMENT_HEADER: "{}"}), "malformed Marlaas-Settlement"),
    "letter about another stage's message": (
        Sent("failed.turn.a", LETTER.model_copy(update={"subject": "weight-updated.p.a"})),
        "stage 'turn' reads no message of this task on weight-updated.p.a",
    ),
    "letter about another task's message": (
        Sent("failed.turn.a", LETTER.model_copy(update={"subject": "trajectories.turn.e.b.4-1"})),
        "stage 'turn' reads no message of this task on trajectories.turn.e.b.4-1",
    ),
    "letter about a stranger's subject": (Sent("failed.turn.a", LETTER.model_copy(update={"subject": "$KV.tasks.a"})), "reads no message"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_message_that_contradicts_itself_is_rejected(lie: str) -> None:
    sent, reason = LIES[lie]
    with pytest.raises(Reject, match=reason):
        sent.read()


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        ("trajectories.scored.b.4-1", "the subject names task 'b', the message 'a'"),
        ("trajectories.scored.a.5-1", "the subject names trajectory '5-1', the message '4-1'"),
        ("trajectories.scored.a", "is no subject of such a message: it names no"),
    ],
)
def test_header_that_disagrees_with_the_subject_settles_nothing(subject: str, reason: str) -> None:
    headers = {SETTLEMENT_HEADER: SETTLED.model_dump_json()}
    assert settlement_in("trajectories.scored.a.4-1", headers) == SETTLED
    with pytest.raises(Reject, match=reason):
        settlement_in(subject, headers)


def test_group_without_a_home_is_sent_as_it_was_before_there_were_any() -> None:
    """By its bytes; and a replica that knows no homes reads one that has one."""
    assert "home" not in GROUP.model_dump() and "home" not in GROUP.model_dump(mode="json")
    at_home = messages.OpenGroup(group=GROUP.model_copy(update={"home": "g"}))
    assert messages.OpenGroup.decode(at_home.encode()).group.home == "g"


def test_every_consumers_stage_reads_its_subjects() -> None:
    consumers: list[Consumer] = [
        streams.scheduler_jobs("t"), streams.env_checks("e"), streams.env_opens("e"), streams.env_turns("e"), streams.rollout_samples("p"),
        streams.rollout_samples("p@g"), streams.trainer_batches("p@g"), streams.rollout_serves("p"),
        streams.trainer_batches("p"), streams.SCHEDULER_CHECKED, streams.SCHEDULER_SCORED, streams.SCHEDULER_WEIGHTS,
        streams.SCHEDULER_FAILED, streams.SCHEDULER_SERVED, streams.env_packages("e"), streams.SCHEDULER_PACKAGES, streams.SCHEDULER_LEASES,
    ]  # fmt: skip
    for consumer in consumers:
        parts = consumer.subject.replace("*", "x").replace(">", "x.x").split(".")
        task = parts[consumer.task_token] if consumer.task_token >= 0 else None
        assert is_read_by(consumer.stage, ".".join(parts), task), consumer
        assert not is_read_by(consumer.stage, ".".join(parts), "other"), consumer
    assert {consumer.stage for consumer in consumers} == READ_BY.keys()
