"""The verbs of `ask.<tenant>.<verb>`."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from common.messages import (
    AskAccess,
    AskAdapter,
    AskAliases,
    AskAudit,
    AskBudgets,
    AskChunk,
    AskDeployment,
    AskEvaluations,
    AskEvents,
    AskExecutors,
    AskFailures,
    AskFileChunk,
    AskFiles,
    AskInvoice,
    AskMoves,
    AskPrices,
    AskSamples,
    AskSlices,
    AskSteps,
    AskTask,
    AskTasks,
    AskTerms,
    AskTimeline,
    AskTrace,
    AskUsage,
    AskVersions,
    AskWebhooks,
    Message,
)
from scheduler_svc.ask.accelerators import answer_executors, answer_moves, answer_slices, answer_trace
from scheduler_svc.ask.deployment import answer_envs, answer_pools, answer_replicas
from scheduler_svc.ask.question import Question
from scheduler_svc.ask.tenancy.access import answer_access
from scheduler_svc.ask.tenancy.aliases import answer_aliases
from scheduler_svc.ask.tenancy.audit import answer_audit
from scheduler_svc.ask.tenancy.billing import answer_budgets, answer_invoice, answer_prices
from scheduler_svc.ask.tenancy.files import answer_file_chunk, answer_files
from scheduler_svc.ask.tenancy.terms import answer_terms
from scheduler_svc.ask.tenancy.webhooks import answer_webhooks
from scheduler_svc.ask.training.adapters import answer_adapter, answer_chunk
from scheduler_svc.ask.training.progress import answer_evaluations, answer_spec, answer_steps, answer_timeline, answer_versions
from scheduler_svc.ask.training.samples import answer_samples
from scheduler_svc.ask.training.tasks import answer_events, answer_failures, answer_status, answer_tasks, answer_usage
from scheduler_svc.ask.training.waiting import answer_why


@dataclass(frozen=True)
class Verb:
    request: type[Message]
    answer: Callable[[Question, Any], Awaitable[Message]]
    """`Any`: a message of the type `request`."""


VERBS = {
    "tasks": Verb(AskTasks, answer_tasks),
    "status": Verb(AskTask, answer_status),
    "events": Verb(AskEvents, answer_events),
    "usage": Verb(AskUsage, answer_usage),
    "why": Verb(AskTask, answer_why),
    "invoice": Verb(AskInvoice, answer_invoice),
    "prices": Verb(AskPrices, answer_prices),
    "budgets": Verb(AskBudgets, answer_budgets),
    "access": Verb(AskAccess, answer_access),
    "audit": Verb(AskAudit, answer_audit),
    "failures": Verb(AskFailures, answer_failures),
    "envs": Verb(AskDeployment, answer_envs),
    "files": Verb(AskFiles, answer_files),
    "file-chunk": Verb(AskFileChunk, answer_file_chunk),
    "pools": Verb(AskDeployment, answer_pools),
    "replicas": Verb(AskDeployment, answer_replicas),
    "spec": Verb(AskTask, answer_spec),
    "steps": Verb(AskSteps, answer_steps),
    "evaluations": Verb(AskEvaluations, answer_evaluations),
    "versions": Verb(AskVersions, answer_versions),
    "terms": Verb(AskTerms, answer_terms),
    "samples": Verb(AskSamples, answer_samples),
    "timeline": Verb(AskTimeline, answer_timeline),
    "aliases": Verb(AskAliases, answer_aliases),
    "webhooks": Verb(AskWebhooks, answer_webhooks),
    "adapter": Verb(AskAdapter, answer_adapter),
    "chunk": Verb(AskChunk, answer_chunk),
    "executors": Verb(AskExecutors, answer_executors),
    "slices": Verb(AskSlices, answer_slices),
    "moves": Verb(AskMoves, answer_moves),
    "trace": Verb(AskTrace, answer_trace),
}
