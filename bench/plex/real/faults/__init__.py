"""Kills and cuts on a shared accelerator, with real processes: `python -m bench.plex.real.faults`.

Two pools take turns on one core whose memory budget holds one of them; two tenants have a task in each, which is submitted again when it
has finished. An undisturbed run gives the digests of all adapters. Then faults are put into the same stack one after another, each once
the one before has been recovered from. Every task of every run must end with the same digests.

    schedule.py   runs, and the faults of each
    run.py        one run: its stack, its faults, what is true at its end
    scene.py      the stack as faults see it: processes, rows, who holds the accelerator
    rows.py       rows of a PostgreSQL that may be killed
    armed.py      a service that dies or hangs at a point which is named while it runs
    tasks.py      tasks that are submitted again when they have finished
    points.py     faults of an executor: killed or hung at a point, stopped
    servers.py    NATS, PostgreSQL and the scheduler
    stores.py     PostgreSQL or NATS restored to an older copy
    resources.py  no memory, no folder of the model, locks that cannot be opened
    figures.py    outcomes to figures, and what must hold
"""
