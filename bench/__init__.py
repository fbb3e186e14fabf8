"""Benchmarks: modules that print JSON, from which `docs/benchmarks.md` is written."""
