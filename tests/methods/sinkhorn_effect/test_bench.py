"""The benchmark stays alive; `test_estimator` compares its NumPy side with the method."""

import dataclasses

import jax
import pytest

from experiments.bench import sinkhorn_effect as bench
from jaxicml.harness.progress import Silent
from jaxicml.methods.sinkhorn_effect import mmd_effect_aggregated, mmd_treatment_effect


def test_ours_takes_what_is_drawn():
    draw = lambda key: bench.draw(key, 8, (1.0, 2.0))
    ours = lambda key: [call(key, draw(key), 99) for call in (bench.aggregated, bench.single)]
    many, one = jax.eval_shape(ours, jax.random.key(0))
    assert many.per_eps.eif1.shape == (2, 8)
    assert one.eif1.shape == (8,)


def aggregated(key, sample, num_null):
    """In the place of the method, which takes longer to compile than all the rest."""
    *observed, epsilons = sample
    return mmd_effect_aggregated(key, *observed, epsilons=epsilons, num_null=num_null)


def single(key, sample, num_null):
    *observed, epsilons = sample
    return mmd_treatment_effect(key, *observed, epsilon=epsilons[0], num_null=num_null)


@pytest.mark.slow
def test_smallest_size(monkeypatch):
    monkeypatch.setattr(bench, "aggregated", aggregated)
    monkeypatch.setattr(bench, "single", single)
    size = dataclasses.replace(bench.SIZES["smoke"], growth=(8, 80))
    out = bench.run(size, Silent())
    ids = {entry.id for entry in out.entries}
    assert {"potentials, ott-jax", "pipeline", "memory", "cost", "growth"} <= ids
    peers = {entry.peer for entry in out.entries} | set(out.missing)
    assert peers == {"ott-jax", "POT", "geomloss", "NumPy", "limit"}
    assert all(entry.ratio > 0 for entry in out.entries)
