"""Shared accelerators as they are, beside pools of their own: `python -m bench.plex.real NAME`.

Real vLLM, trainer, NATS, PostgreSQL and environments; no time is injected but the tools'. Core 1 is the accelerator, everything else runs
on core 0.

    two        two pools, all arms; two-busy and two-idle: with shorter and longer tools; two-private: only the trainers share
    three      three pools of four tasks
    pair       two other pools, for moves; third: three pools, which `python -m bench.plex.real.predict` simulates before it looks
    tiny-cut   a run of a minute, whose numbers mean nothing

Layout    bases.py three base models · workloads.py pools and tasks · arms.py how the pools share the core · recorder.py what really
          happened, from outside · slices.py what was booked of it · runs.py one run · kept.py finished runs · figures.py runs to
          figures · calibration.py times of one pool alone · predict.py the simulator against runs
"""
