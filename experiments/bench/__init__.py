"""Benchmarks against peers: one file per method, run with `python -m experiments bench NAME`."""
