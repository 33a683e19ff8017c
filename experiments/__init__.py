"""Experiment drivers: one file per method, run with `python -m experiments`."""
