"""Who computes on an accelerator that several base models share, for how long, and where the others' state is kept meanwhile.

state.py         executors, their ready work and tiers; the rules; the decisions
tiers.py         seconds of moves between tiers and of operations; which executors leave the device for the next one, and how deep
waits.py         what a pool waits for while none of its executors is awake, and executors that never fit
situation.py     one accelerator at one moment: costs of each switch, who is overdue, who is ahead of its share, newcomers among them
slicing.py       `next_slice`: the holder keeps, idles, or another executor is next; how a holder is parked
load.py          seconds of a step in which it is sampled; expected step times of jobs that share one, and whether that is worth it
advice.py        what sharing would save and slow down, by a trace; which accelerator a pool is placed on

`scheduler_svc/accelerators` asks them where the pools file has shared accelerators; `bench/plex` simulates accelerators with them.

An *executor* is a service process that computes: a pool's sampler or trainer. Its *slice* is its uninterrupted time on the
accelerator, from the order of the switch to it until the order of the next. A *switch* parks what has to leave the device and wakes the
next executor.
"""
