"""Tiers of executors, measured from outside: `python -m bench.plex.real.tiers [--bases small,middle,large] [--parts tiers]`.

For each base model, a sampler with an engine that sleeps and a trainer, each in a process of its own that is given orders. What it has
freed is read from the kernel, and on a GPU from the driver, never from the process. Writes bench/results/plex-tiers.json.

Layout    orders.py orders to a process, and what is seen of it · sampler.py trainer.py the two executors ·
          traffic.py random moves under seeded requests · versions.py adapters and their canaries · worker.py a worker whose cache
          can be filled · figures.py the measurement
"""
