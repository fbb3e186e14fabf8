"""Simulation of several base models on one accelerator: `python -m bench.plex NAME`.

Discrete events over the decision modules of `scheduler_svc/accelerators/decisions`, which are imported, not copied. Of an executor's
work they are given what its service would report: its own meters measure simulated operations. Executors are tables of durations of
moves and operations.

Each writes bench/results/plex-NAME.json.

    cells      policies in 240 cells: pools, tasks, idle share, cost of a switch
    histories  random histories: the bound on waiting, and shares by weight

`python -m bench.plex simulate TRACE` plays one trace (`common/accelerators/trace.py`) on one accelerator and prints what came out.

Layout    events.py the clock · pieces.py operations · meters.py what executors measure
          accelerator.py a simulated accelerator · tasks.py tasks and one run · workloads.py made-up traces
"""
