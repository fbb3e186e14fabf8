"""Questions of a tenant: one of each verb whose answer grows with what the tenants have."""

from common.messages import (
    AskAudit,
    AskBudgets,
    AskDeployment,
    AskEvaluations,
    AskEvents,
    AskFailures,
    AskInvoice,
    AskSteps,
    AskTask,
    AskTasks,
    AskTimeline,
    AskUsage,
    AskVersions,
    Message,
)


def questions_of(task: str) -> dict[str, Message]:
    """Verb → request. `task`: the one that is asked about where one task is."""
    return {
        "tasks": AskTasks(),
        "status": AskTask(task=task),
        "events": AskEvents(task=task),
        "usage": AskUsage(),
        "why": AskTask(task=task),
        "invoice": AskInvoice(),
        "budgets": AskBudgets(),
        "audit": AskAudit(),
        "failures": AskFailures(),
        "envs": AskDeployment(),
        "spec": AskTask(task=task),
        "steps": AskSteps(task=task),
        "evaluations": AskEvaluations(task=task),
        "timeline": AskTimeline(),
        "versions": AskVersions(task=task),
    }
