"""The contract on the wire: golden bytes per kind, and what may and may not change."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from bench.harness.load.groups import group_context
from common import messages
from common.errors import Reject
from common.messages import (
    BlobRef,
    Canary,
    ChatMessage,
    Message,
    SampledTurn,
    ScoredTrajectory,
    TokenRecord,
    TurnRequest,
    as_json,
    from_json,
)
from common.spec import EnvironmentSection, TaskSpec, parse_spec

GOLDEN = Path(__file__).parent / "golden_messages.json"
OLDER = Path(__file__).parent / "golden_messages_older.json"
"""The golden file of a former version; it stays as it is, but for its blob, which had a name and digest that no blob has."""
BLOB = BlobRef(name="a.v1-00", size_bytes=7, sha256="0" * 64)
RECORD = TokenRecord().with_context([1, 2]).with_sampled([3], [-0.5])
ADAPTER = messages.AdapterRef(task="a", version=1, rank=8, blob=BLOB, canary=Canary(ids=RECORD.ids, logprobs=b"\x87\xff\x00\xc1"))
SPEC = parse_spec({"name": "n", "tenant": "t", "pool": "p", "steps": 1, "environment": {"name": "e:x", "options": {"size": 2}}})
GROUP = group_context("a", 4, tenant="t", pool="p", size=2, version=1, adapter=ADAPTER, family="e", seed=9, deadline_s=1.5)
REQUEST = TurnRequest(member=0, turn=1, transcript=RECORD, messages=[ChatMessage(role="user", content="hi")], state=b"s")
TURN = SampledTurn(member=0, turn=1, transcript=RECORD, reply="hi", finish="stop", state=b"s")
SCORED = ScoredTrajectory(member=0, transcript=RECORD, reward=0.5, components={"score": 0.5}, turns=2)
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
            )
        ],
        cursor=None,
    ),
    messages.CheckEnvironment(tenant="t", task="a", family="e", environment=EnvironmentSection(name="e:x"), seed=1),
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
    ),
    messages.Event(tenant="t", task="a", event="step", at_s=1.0, data={"version": 1}),
    messages.DeadLetter(stage="train", subject="s", reason="r", attempts=1, headers={}, body=b"b"),
    STATUS,
    messages.HistoryMark(deployment="d", position=3),
    messages.StatusesRemoved(until_s=1.5),
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
ASKS: list[Message] = [
    messages.AskTasks(cursor="a"),
    messages.AskTask(task="a"),
    messages.AskEvents(task="a", after=3),
    messages.AskUsage(cursor="a"),
    messages.AskInvoice(first=DAY.date(), cursor=3),
    messages.AskPrices(),
    messages.SetBudget(tenant="t", request="r", period="month", unit="money", amount=Decimal("99.50")),
    messages.AskBudgets(),
    messages.BudgetsAnswer(
        budgets=[
            messages.BudgetOf(tenant="t", period="day", unit="tokens", amount=Decimal(7), spent=Decimal(3), reserved=Decimal(2)),
        ]
    ),
    messages.InvoiceAnswer(
        lines=[messages.InvoiceLine(day=DAY.date(), tenant="t", pool="p", kind="void", quantity=7, money=Decimal("0.10"))], cursor=1
    ),
    messages.PricesAnswer(prices=[messages.PriceOf(of="trained", pool=None, price=Decimal("0.0000007"), per=1, valid_from=DAY)]),
    messages.AskFailures(task="a", after=3),
    messages.AskDeployment(),
    messages.AskAdapter(task="a", version=1),
    messages.AskChunk(task="a", version=1, offset=4),
    messages.AskFiles(after=3, file=f"file-{'a' * 64}"),
    messages.AskFileChunk(file=f"file-{'a' * 64}", offset=4),
    messages.FilesAnswer(
        files=[
            messages.StoredFile(
                number=1,
                tenant="t",
                file=f"file-{'a' * 64}",
                name="rows.jsonl",
                size_bytes=2,
                kept_bytes=2,
                state="usable",
                reason="",
                rows=1,
                uploaded_s=1.0,
                live_tasks=0,
            )
        ],
        has_more=False,
    ),
    messages.TasksAnswer(tasks=[STATUS], cursor="a"),
    messages.StatusAnswer(status=STATUS),
    messages.EventsAnswer(events=[messages.Event(tenant="t", task="a", event="step", at_s=1.0, number=3)], last=3),
    messages.UsageAnswer(
        tenants=[messages.TenantUsage(tenant="t", live_tasks=1, prompt_tokens=2)],
        tasks=[messages.TaskUsage(task="a", adapter_bytes=7)],
        cursor=None,
    ),
    messages.FailuresAnswer(
        failures=[messages.FailedMessage(letter=3, tenant="t", task="a", stage="train", subject="s", reason="r", attempts=1)],
        has_more=False,
    ),
    messages.WhyAnswer(task="a", cause="pace", number=2.0, sentence="s"),
    messages.EnvironmentsAnswer(environments=["e:x"], sandboxes=["none"]),
    messages.PoolsAnswer(
        pools=[messages.PoolOffer(name="p", model="m", context_tokens=64, max_rank=8, adapters=2, sequences=4, profile=None, serves=True)]
    ),
    messages.AskTerms(),
    messages.TermsAnswer(
        is_known=True,
        weight=2.0,
        limits={"requests_per_minute": 60, "max_streams": None},
        spent=[messages.SpentBudget(unit="money", period="month", amount=Decimal("5"), spent=Decimal("5.1"), until=DAY)],
    ),
    messages.HttpUse(
        slots=[messages.SlotUse(slot=9, requests=2, tokens=7)], streams=[messages.StreamsOf(gateway="g", streams=1, until_s=20.5)]
    ),
    messages.AdapterAnswer(adapter=ADAPTER),
    messages.ChunkAnswer(data=b"\x00\xff"),
    messages.ReplicasAnswer(
        replicas=[
            messages.ReplicasOf(
                service="rollout", pool="p", replicas=2, sequences=4, kv_tokens=64, busy={"sequences": 1.0}, names=["one", "two"]
            )
        ]
    ),
    messages.ServingEnded(
        request="r1",
        attempt=1,
        tenant="t",
        key="U" * 56,
        pool="p",
        task="a",
        version=2,
        prompt_tokens=9,
        cached_tokens=8,
        sampled_tokens=3,
    ),
    messages.SpecAnswer(task="a", spec={"name": "n"}),
    messages.AskSteps(task="a", after=1),
    messages.StepsAnswer(
        steps=[
            messages.StepOf(
                version=1,
                state="trained",
                reward=0.5,
                staleness_mean=0.5,
                staleness_max=1,
                sampled_tokens=4,
                trained_tokens=7,
                groups=[0, 2],
                metrics={"loss": 0.25},
                times=messages.StepTimes(
                    first_admitted_s=1.0,
                    first_sampled_s=2.0,
                    last_sampled_s=3.0,
                    batched_s=4.0,
                    started_s=5.0,
                    trained_s=6.0,
                    advanced_s=7.0,
                ),
                durations=messages.StepDurations(
                    sampling_s=2.0, wait_for_batch_s=1.0, wait_for_trainer_s=1.0, training_s=1.0, publishing_s=1.0
                ),
            )
        ],
        has_more=True,
    ),
    messages.AskEvaluations(task="a", version=1, protocol="main"),
    messages.EvaluationsAnswer(
        evaluations=[messages.EvaluationOf(version=1, protocol="main", finished_s=2.0, is_best=True, report={"reward": 0.5})],
        has_more=False,
    ),
    messages.AskTimeline(cursor="1000000~a", steps=10),
    messages.TimelineAnswer(tasks=[messages.TaskTimes(task="a", steps=b"\x01" * 32)], cursor=None),
    messages.AskVersions(task="a", after=1),
    messages.VersionsAnswer(
        versions=[
            messages.VersionOf(
                version=2, adapter_bytes=7, sha256="0" * 64, rank=8, advanced_s=2.0, reward=0.5, is_best=True, is_latest=False
            )
        ],
        best=2,
        latest=None,
        has_more=False,
    ),
    messages.SetAlias(tenant="t", request="r", name="prod", task="a", version="best", expected="a@1"),
    messages.DeleteAlias(tenant="t", request="r", name="prod", expected=None),
    messages.KnownAlias(tenant="t", name="prod", pool="p", adapter=ADAPTER, changed_s=2.0),
    messages.AskAliases(name="prod", after="t/a"),
    messages.AliasesAnswer(
        aliases=[messages.AliasOf(tenant="t", name="prod", task="a", version=2, pool="p", changed_s=2.0)], cursor="t/prod"
    ),
    messages.SetWebhook(
        tenant="t", request="r", name="pager", url="https://x.example/a", events=["failed"], secret=f"whsec_{'A' * 43}=", new_secret=True
    ),
    messages.DeleteWebhook(tenant="t", request="r", name="pager"),
    messages.AskWebhooks(name="pager", after="t/a"),
    messages.WebhooksAnswer(
        webhooks=[
            messages.WebhookOf(
                tenant="t",
                name="pager",
                url="https://x.example/a",
                events=["failed"],
                changed_s=1.0,
                waiting=1,
                dropped=2,
                deliveries=[
                    messages.DeliveryOf(
                        id="msg_1", event="failed", state="waiting", created_s=1.0, attempts=1, next_s=2.0, status=500, reason="r"
                    )
                ],
            )
        ],
        cursor="t/pager",
    ),
    messages.AskRefused(code="unknown", reason="r"),
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
SAMPLES += ASKS
BY_KIND = {sample.kind: sample for sample in SAMPLES}


def test_every_kind_has_a_sample() -> None:
    assert {kind.kind for kind in Message.__subclasses__()} == set(BY_KIND)


@pytest.mark.parametrize("kind", sorted(BY_KIND))
def test_bytes_of_a_kind_stay_readable(kind: str) -> None:
    """Changed deliberately and compatibly? Then `python -m tests.common.test_messages` rewrites the golden file."""
    golden = bytes.fromhex(json.loads(GOLDEN.read_text())[kind])
    sample = BY_KIND[kind]
    assert type(sample).decode(golden) == sample
    assert sample.encode() == golden


def test_bytes_of_older_senders_stay_readable() -> None:
    """Messages as they were before their kind, or a section of a task in it, got another optional field."""
    for kind, older in json.loads(OLDER.read_text()).items():
        assert type(BY_KIND[kind]).decode(bytes.fromhex(older)) == BY_KIND[kind], kind


FREE = {
    "options",
    "protocols",
    "headers",
    "report",
    "weights",
    "rank_weights",
    "components",
    "metrics",
    "data",
    "busy",
    "warnings",
    "template",
    "logit_bias",
    "metadata",
}
"""Fields whose keys are anybody's; `spec` of a job and `detail` of the audit are others."""


@pytest.mark.parametrize("kind", sorted(BY_KIND))
def test_newer_senders_may_add_fields(kind: str) -> None:
    """New fields at the top, in every value, and in every section of a task, which is strict only where a user writes it."""
    sample = BY_KIND[kind]
    free = FREE | {
        "submit-task.1": {"spec"},
        "preview-task.1": {"spec"},
        "audit-answer.1": {"detail"},
        "spec-answer.1": {"spec"},
        "terms-answer.1": {"limits"},
    }.get(kind, set())
    newer = with_fields_of_the_future(msgpack.unpackb(sample.encode()), free)
    assert type(sample).decode(msgpack.packb(newer) or b"") == sample
    newer = with_fields_of_the_future(sample.model_dump(mode="json"), free)
    assert type(sample).decode(json.dumps(newer).encode()) == sample


def with_fields_of_the_future(raw: Any, free: set[str]) -> Any:
    """The same with one more field in each map but those that are free."""
    match raw:
        case dict():
            found = {key: value if key in free else with_fields_of_the_future(value, free) for key, value in raw.items()}
            return found | {"field_of_the_future": 1}
        case list():
            return [with_fields_of_the_future(value, free) for value in raw]
        case _:
            return raw


def test_a_wrong_value_in_a_section_is_still_refused() -> None:
    raw = msgpack.unpackb(BY_KIND["train-batch.1"].encode())
    raw["spec"]["lora"]["rank"] = 0
    with pytest.raises(Reject, match=r"spec\.lora\.rank"):
        messages.TrainBatch.decode(msgpack.packb(raw) or b"")


def test_a_task_that_a_user_writes_may_not_have_unknown_fields() -> None:
    job = messages.SubmitTask(task="a", tenant="t", spec=as_json(SPEC) | {"lora": {"rnk": 4}})
    with pytest.raises(Reject, match=r"lora\.rnk: no such field; did you mean 'rank'\?"):
        parse_spec(messages.SubmitTask.decode(job.encode()).spec)


@pytest.mark.parametrize("kind", sorted(BY_KIND))
def test_json_carries_the_same(kind: str) -> None:
    """Key-value entries and database columns are JSON."""
    sample = BY_KIND[kind]
    assert from_json(type(sample), as_json(sample)) == sample
    assert type(sample).decode(sample.model_dump_json().encode()) == sample


def test_token_record_keeps_what_was_sampled_apart_from_what_was_not() -> None:
    record = TokenRecord().with_context([5, 6]).with_sampled([7, 8], [-0.25, -0.5]).with_context([9])
    assert len(record) == 5
    assert record.sampled_tokens == 2
    np.testing.assert_array_equal(record.ids_T(), [5, 6, 7, 8, 9])
    np.testing.assert_array_equal(record.sampled_T(), [0, 0, 1, 1, 0])
    np.testing.assert_array_equal(record.logprobs_T(), np.float32([0, 0, -0.25, -0.5, 0]))


def test_token_record_with_unequal_lengths_is_refused() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        TokenRecord(ids=b"\0" * 8, logprobs=b"\0" * 8, sampled=b"\0")


def test_trajectory_costs_nine_bytes_a_token() -> None:
    record = TokenRecord().with_context(list(range(1000)))
    assert len(messages.SampleTurns(group=GROUP, members=[REQUEST.model_copy(update={"transcript": record})]).encode()) < 9 * 1000 + 1500


def test_reward_that_is_not_a_number_cannot_travel() -> None:
    raw = msgpack.unpackb(BY_KIND["trajectories-scored.1"].encode())
    raw["members"][0]["reward"] = float("nan")
    with pytest.raises(Reject, match="reward"):
        messages.TrajectoriesScored.decode(msgpack.packb(raw) or b"")


def test_header_names_what_shaping_reads() -> None:
    context = GROUP.model_copy(update={"environment": EnvironmentSection(name="e:x", rank_weights={"short": 0.2, "odd": 1.0})})
    record = RECORD.with_context([4, 5]).with_sampled([6, 7], [-0.5, -0.5])
    attempt = SCORED.model_copy(update={"transcript": record, "components": {"short": 3.0, "odd": float("nan"), "other": 1.0}})
    settlement = messages.TrajectoriesScored(group=context, members=[attempt]).settlement()
    (member,) = messages.Settlement.model_validate_json(settlement.model_dump_json()).members
    assert (member.sampled_tokens, member.longest_turn_tokens, member.components) == (3, 2, {"short": 3.0})


def test_header_of_an_older_environment_service_stays_readable() -> None:
    member = '{"member":0,"reward":0.5,"prompt_tokens":2,"sampled_tokens":1,"turns":2,"truncated":false,"failure":null}'
    found = messages.Settlement.model_validate_json(f'{{"task":"a","group":4,"members":[{member}]}}')
    assert (found.members[0].reward, found.members[0].longest_turn_tokens, found.members[0].components) == (0.5, None, {})


def test_spec_survives_the_wire() -> None:
    assert TaskSpec.model_validate(msgpack.unpackb(msgpack.packb(SPEC.model_dump()) or b"")) == SPEC


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({kind: sample.encode().hex() for kind, sample in sorted(BY_KIND.items())}, indent=1) + "\n")
