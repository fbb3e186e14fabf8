"""Verbs of `ask.<tenant>.<verb>` and `jobs.<verb>.<tenant>`, and the messages of each.

An ask receives its answer, or `AskRefused`. A request in JSON is answered in JSON, one in MessagePack in MessagePack; an empty
request counts as an empty JSON object. A job is answered by events.
"""

from typing import NamedTuple

from common.messages import accelerators, asks, jobs, progress
from common.messages.base import Message
from common.messages.tenancy import access, aliases, billing, files, webhooks


class Question(NamedTuple):
    request: type[Message]
    answer: type[Message]


QUESTIONS = {
    "tasks": Question(asks.AskTasks, asks.TasksAnswer),
    "status": Question(asks.AskTask, asks.StatusAnswer),
    "events": Question(asks.AskEvents, asks.EventsAnswer),
    "usage": Question(asks.AskUsage, asks.UsageAnswer),
    "why": Question(asks.AskTask, asks.WhyAnswer),
    "envs": Question(asks.AskDeployment, asks.EnvironmentsAnswer),
    "files": Question(files.AskFiles, files.FilesAnswer),
    "file-chunk": Question(files.AskFileChunk, asks.ChunkAnswer),
    "pools": Question(asks.AskDeployment, asks.PoolsAnswer),
    "replicas": Question(asks.AskDeployment, asks.ReplicasAnswer),
    "spec": Question(asks.AskTask, progress.SpecAnswer),
    "steps": Question(progress.AskSteps, progress.StepsAnswer),
    "evaluations": Question(progress.AskEvaluations, progress.EvaluationsAnswer),
    "versions": Question(progress.AskVersions, progress.VersionsAnswer),
    "samples": Question(progress.AskSamples, progress.SamplesAnswer),
    "timeline": Question(progress.AskTimeline, progress.TimelineAnswer),
    "aliases": Question(aliases.AskAliases, aliases.AliasesAnswer),
    "failures": Question(asks.AskFailures, asks.FailuresAnswer),
    "adapter": Question(asks.AskAdapter, asks.AdapterAnswer),
    "chunk": Question(asks.AskChunk, asks.ChunkAnswer),
    "invoice": Question(billing.AskInvoice, billing.InvoiceAnswer),
    "prices": Question(billing.AskPrices, billing.PricesAnswer),
    "budgets": Question(billing.AskBudgets, billing.BudgetsAnswer),
    "access": Question(access.AskAccess, access.AccessAnswer),
    "audit": Question(access.AskAudit, access.AuditAnswer),
    "webhooks": Question(webhooks.AskWebhooks, webhooks.WebhooksAnswer),
    "executors": Question(accelerators.AskExecutors, accelerators.ExecutorsAnswer),
    "slices": Question(accelerators.AskSlices, accelerators.SlicesAnswer),
    "moves": Question(accelerators.AskMoves, accelerators.MovesAnswer),
    "trace": Question(accelerators.AskTrace, accelerators.TraceAnswer),
}
"""Questions of clients; only gateways ask `terms`."""
JOBS: dict[str, type[Message]] = {
    "submit": jobs.SubmitTask,
    "preview": jobs.PreviewTask,
    "cancel": jobs.ControlTask,
    "pause": jobs.ControlTask,
    "resume": jobs.ControlTask,
    "resend": jobs.ResendLetter,
    "delete": jobs.ControlTask,
    "prune": jobs.PruneTasks,
    "upload": files.UploadPackage,
    "upload-file": files.UploadFile,
    "delete-package": files.DeletePackage,
    "set-alias": aliases.SetAlias,
    "delete-alias": aliases.DeleteAlias,
    "set-webhook": webhooks.SetWebhook,
    "delete-webhook": webhooks.DeleteWebhook,
    "set-tenant": jobs.SetTenant,
    "delete-tenant": jobs.DeleteTenant,
    "set-price": billing.SetPrice,
    "set-budget": billing.SetBudget,
    "set-access": access.SetAccess,
    "move-pool": accelerators.MovePool,
}
