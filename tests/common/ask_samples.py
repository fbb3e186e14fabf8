"""A sample of each kind of ask and answer, as golden bytes have it."""

from decimal import Decimal

from common import messages
from common.accelerators import ExecutorState, Function, Tier
from common.messages import (
    Message,
)
from tests.common.message_samples import ADAPTER, DAY, STATUS

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
        tenants=[messages.TenantUsage(tenant="t", live_tasks=1, prompt_tokens=2, env_ms=0, package_bytes=0)],
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
        ],
        troubles=[
            messages.TroubleOf(service="trainer", pool="p", replica="r", state="faulty", deaths=3, died_s=1.5, cause="no", starts_in_s=2.0)
        ],
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
    messages.SpecAnswer(task="a", spec={"name": "n"}, submission="0" * 64),
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
    messages.AskExecutors(pool="p"),
    messages.ExecutorsAnswer(
        executors=[
            messages.ExecutorOf(
                accelerator="a",
                executor="rollout-p",
                pool="p",
                service="rollout",
                state=ExecutorState.PARKED,
                tier=Tier.HOST,
                held="drain",
                is_holder=False,
                since_s=1.0,
                waiting_since_s=2.0,
                wake_s=0.5,
                is_measured=True,
                switch_share=0.25,
                parked_s=3.5,
                device_bytes=9,
                host_bytes=4,
                fault="f",
                retry_s=4.0,
            )
        ]
    ),
    messages.AskSlices(since_s=1.0, before=7, accelerator="a", most=2),
    messages.SlicesAnswer(
        slices=[
            messages.SliceOf(
                number=6,
                accelerator="a",
                epoch=3,
                executor="rollout-p",
                pool="p",
                function=Function.GENERATE,
                reason="ratio",
                from_tier=Tier.HOST,
                to_tier=Tier.DISK,
                ordered_s=1.0,
                awake_s=1.5,
                asked_s=2.5,
                ended_s=3.0,
                ended="switched",
                expected_s=0.5,
                switch_ms=500,
                busy_ms=1000,
                idle_ms=500,
                shares=[messages.ShareOf(task="a", ms=2000)],
            )
        ],
        before=6,
    ),
    messages.AskMoves(),
    messages.MovesAnswer(
        moves=[
            messages.MoveOf(
                accelerator="a",
                executor="rollout-p",
                from_tier=Tier.HOST,
                to_tier=Tier.DEVICE,
                n=3,
                p50_s=0.5,
                p90_s=0.75,
                bytes_per_s=8.0,
                latest_s=1.0,
            )
        ]
    ),
    messages.AskTrace(cursor="a", since_s=1.0),
    messages.TraceAnswer(
        tasks=[
            messages.TracedTask(
                task="a",
                tenant="t",
                pool="p",
                weight=2.0,
                at_s=1.0,
                steps=[messages.StepPhases(version=0, at_s=1.5, generate_s=2.0, environment_s=3.0, train_s=0.5)],
            )
        ],
        cursor="a",
    ),
]
