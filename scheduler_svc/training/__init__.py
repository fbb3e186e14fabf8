"""Tasks from their submission to their end.

intake/             a submission: examined, completed, its environment checked
dispatch/           opens groups, and sends steps to the trainer
results/            scores, trained steps and dead letters
evaluations.py      evaluations, from plan to result
termination.py      ending a task; voiding and refunding groups
waiting.py          why a task waits
budget_pauses.py    warns, pauses and resumes by tenants' budgets
fair_queue.py       virtual times of a task that starts to run
group_messages.py   messages that open groups
accounting.py       ledger rows and corrected charges
task_events.py      events and the published status
aliases.py          names for versions · homes/ which replica of its pool a task keeps to
decisions/          pure functions · queries/ SQL
"""
