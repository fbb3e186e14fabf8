"""Benchmarks: each is a module that prints JSON. `docs/benchmarks.md` is written from what they print."""
