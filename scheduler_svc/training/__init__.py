"""Beginning and end of tasks, groups and evaluations, shared by all handlers.

environment_resolution.py  the queue of a task's environment, and the check of its options
waiting.py                 why a task waits
warm_start.py              adapter of version 0, from another task
fair_queue.py              virtual times of a task that starts to run
group_messages.py          messages that open groups
evaluations.py             evaluations, from plan to result
termination.py             ending a task; voiding and refunding groups
accounting.py              ledger rows and corrected charges
task_events.py             events and the published status
kept_adapters.py           adapters that outlive the rules of their task
deletion.py                a task's rows
tenancy/                   keys, limits, aliases and uploads of a tenant
"""
