"""The benchmark stays alive, and its NumPy side computes what the method does."""

import numpy as np
import pytest

from experiments.bench import ddpm_gmm as bench
from jaxicml.diffusion import schedules
from jaxicml.harness.progress import Silent
from jaxicml.methods import ddpm_gmm as lab


@pytest.mark.slow
def test_smallest_size():
    out = bench.run(bench.SIZES["smoke"], Silent())
    ids = {entry.id for entry in out.entries}
    assert {"memory, B × K responsibilities", "law, T = 12", "sampler, K = 5, score calls"} <= ids
    peers = {entry.peer for entry in out.entries} | set(out.missing)
    assert {"torch", "smalldiffusion", "scikit-learn", "NumPy", "XLA", "limit"} <= peers
    assert all(entry.ratio > 0 for entry in out.entries)


def test_numpy_law_equals_ours(x64):
    schedule = schedules.theory(12)
    ours = lab.output_density_1d(lab.three_modes(), schedule, "component", n_grid=701)
    theirs = bench.numpy_law(np.asarray(schedule.betas), 701)
    # both interpolate a logarithm on the same grid, by different cubics
    np.testing.assert_allclose(np.exp(ours.log_q), theirs, atol=1e-6)
