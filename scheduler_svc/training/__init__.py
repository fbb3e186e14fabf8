"""Tasks from their submission to their end.

submission.py          a submission: examined, completed, previewed
environment_checks.py  checks of its environment, whose answers start the task
admission.py           opens groups
group_messages.py      messages that open groups
steps.py               sends steps to the trainer
results/               scores, trained steps and dead letters
evaluations.py         evaluations, from plan to result
termination.py         ending a task; voiding and refunding groups
waiting.py             why a task waits
budget_pauses.py       warns, pauses and resumes by tenants' budgets
accounting.py          ledger rows, corrected charges, and virtual times of a task that starts to run
task_events.py         events and the published status
aliases.py             names for versions
homes.py               home replica of each task in its pool
decisions/             pure functions
queries/               SQL shared by several modules
"""
