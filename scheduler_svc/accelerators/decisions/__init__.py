"""Decisions on a shared accelerator: which executor computes, for how long, and where the others' state is kept meanwhile.

state.py         executors, their ready work and tiers; the rules; the decisions
tiers.py         seconds of moves between tiers and of operations; which executors leave the device for the next one, and to which tier
waits.py         the wait of a pool without an awake executor, and executors that never fit
situation.py     one accelerator at one moment: switch costs, overdue executors, executors ahead of their share, newcomers
slicing.py       `next_slice`: keep the holder, idle, or switch; how a holder is parked
load.py          sampling time of a step; expected step times of jobs that share an accelerator, and whether sharing pays
advice.py        expected savings and slowdown of sharing, from a trace; on which accelerator to place a pool

`scheduler_svc/accelerators` uses them if the pools file has shared accelerators; `bench/plex` simulates accelerators with them.
An *executor* is a service process that computes: a pool's sampler or trainer. Its *slice* is its uninterrupted time on the
accelerator, from the order of the switch to it until the order of the next. The *holder* is the executor whose slice it is. A *switch*
parks what has to leave the device and wakes the next executor.
"""
