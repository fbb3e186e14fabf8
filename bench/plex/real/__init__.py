"""Shared accelerators as they are, beside pools of their own: `python -m bench.plex.real NAME`.

Real vLLM, trainer, NATS, PostgreSQL and environments; no time is injected but the tools'. Core 1 is the accelerator, everything else runs
on core 0.

    two        two pools, all arms
    tiny-cut   a run of a minute, whose numbers mean nothing

Layout    bases.py three base models · workloads.py pools and tasks · arms.py how the pools share the core · recorder.py what really
          happened, from outside · slices.py what was booked of it · runs.py one run · kept.py finished runs · figures.py runs to
          figures · faults/ kills and cuts · tiers/ what each tier frees, and how long moves take
"""
