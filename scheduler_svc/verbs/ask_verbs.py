"""The verbs of `ask.<tenant>.<verb>`."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from common.messages import Message
from common.messages.tenancy.billing import AskTerms
from common.messages.verbs import QUESTIONS
from scheduler_svc.accelerators.handlers.asked import answer_executors, answer_moves, answer_slices, answer_trace
from scheduler_svc.reading.deployment import answer_envs, answer_pools, answer_replicas
from scheduler_svc.reading.training.adapters import answer_adapter, answer_chunk
from scheduler_svc.reading.training.progress import answer_evaluations, answer_spec, answer_steps, answer_timeline, answer_versions
from scheduler_svc.reading.training.samples import answer_samples
from scheduler_svc.reading.training.tasks import answer_events, answer_failures, answer_status, answer_tasks, answer_usage
from scheduler_svc.reading.training.waiting import answer_why
from scheduler_svc.tenancy.answer_access import answer_access
from scheduler_svc.tenancy.answer_audit import answer_audit
from scheduler_svc.tenancy.answer_terms import answer_terms
from scheduler_svc.tenancy.billing.answers import answer_budgets, answer_invoice, answer_prices
from scheduler_svc.tenancy.question import Question
from scheduler_svc.tenancy.webhooks.answers import answer_webhooks
from scheduler_svc.training.aliases.answers import answer_aliases
from scheduler_svc.uploads.file_answers import answer_file_chunk, answer_files


@dataclass(frozen=True)
class Verb:
    request: type[Message]
    answer: Callable[[Question, Any], Awaitable[Message]]
    """`Any`: a message of the type `request`."""


ANSWERS: dict[str, Callable[[Question, Any], Awaitable[Message]]] = {
    "tasks": answer_tasks,
    "status": answer_status,
    "events": answer_events,
    "usage": answer_usage,
    "why": answer_why,
    "invoice": answer_invoice,
    "prices": answer_prices,
    "budgets": answer_budgets,
    "access": answer_access,
    "audit": answer_audit,
    "failures": answer_failures,
    "envs": answer_envs,
    "files": answer_files,
    "file-chunk": answer_file_chunk,
    "pools": answer_pools,
    "replicas": answer_replicas,
    "spec": answer_spec,
    "steps": answer_steps,
    "evaluations": answer_evaluations,
    "versions": answer_versions,
    "terms": answer_terms,
    "samples": answer_samples,
    "timeline": answer_timeline,
    "aliases": answer_aliases,
    "webhooks": answer_webhooks,
    "adapter": answer_adapter,
    "chunk": answer_chunk,
    "executors": answer_executors,
    "slices": answer_slices,
    "moves": answer_moves,
    "trace": answer_trace,
}
REQUESTS: dict[str, type[Message]] = {"terms": AskTerms, **{verb: question.request for verb, question in QUESTIONS.items()}}
VERBS = {verb: Verb(REQUESTS[verb], answer) for verb, answer in ANSWERS.items()}
