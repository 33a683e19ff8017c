"""Tests by weighted samples against loops and enumeration."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxicml.methods.sinkhorn_effect import baselines
from tests.methods.sinkhorn_effect import reference as ref
from tests.methods.sinkhorn_effect.baselines import loops
from tests.methods.sinkhorn_effect.cases import as_numpy, sample

KEY = jax.random.key(0)


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_dr_xkte_equals_the_loops(epsilon, x64):
    case = sample(9, n=11)
    z, difference, rows = loops.signed_measures(case)
    phi, g = rows + difference, loops.kernel_matrix(z, epsilon)
    along = [np.mean([phi[i] @ g @ phi[j] for j in range(5, 11)]) for i in range(5)]
    statistic = np.sqrt(5) * np.mean(along) / np.std(along)
    ours = baselines.dr_xkte(*case, bandwidth=epsilon)
    np.testing.assert_allclose(ours, (statistic, scipy.stats.norm.sf(statistic)), rtol=1e-8)


def test_kte_equals_the_loops_and_weighs_assignments_by_their_probability(x64):
    """p-value against the sum over all 2⁶ assignments that are as extreme."""
    rng = np.random.default_rng(2)
    y, e = rng.normal(size=(6, 1)), np.array([0.15, 0.3, 0.5, 0.6, 0.8, 0.7])
    a = np.array([0.0, 1, 1, 0, 1, 0])
    observed, exact = loops.ipw_mmd(y, a, e, 1.0), 0.0
    for assignment in itertools.product((0.0, 1.0), repeat=6):
        draw = np.array(assignment)
        extreme = loops.ipw_mmd(y, draw, e, 1.0) >= observed - 1e-12
        exact += extreme * np.prod(np.where(draw == 1, e, 1 - e))
    ours = baselines.ipw_kte_permutation(
        KEY, *map(jnp.asarray, (y, a, e)), bandwidth=1.0, num_permutations=8000
    )
    np.testing.assert_allclose(ours.statistic, observed, rtol=1e-9)
    assert 0.1 < exact < 0.9
    assert abs(ours.p_value - exact) < 4 * np.sqrt(exact * (1 - exact) / 8000)


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_sinkhorn_plugin_equals_the_reference(epsilon, x64):
    y, a, e, *_ = as_numpy(sample(11))
    p1, p0 = a / e / (a / e).sum(), (1 - a) / (1 - e) / ((1 - a) / (1 - e)).sum()
    ours = baselines.ipw_sinkhorn_plugin(*map(jnp.asarray, (y, a, e)), epsilon=epsilon)
    np.testing.assert_allclose(ours, ref.divergence(y, p1, p0, epsilon), atol=1e-8)


def test_no_convergence_is_nan(x64):
    y, a, e, _ = sample(12)
    assert np.isnan(baselines.ipw_sinkhorn_plugin(y, a, e, epsilon=1e-6))


def test_naive_p_value_against_all_relabellings(x64):
    rng = np.random.default_rng(3)
    y, a = rng.normal(size=(8, 2)), np.array([1.0, 0, 0, 1, 0, 1, 0, 0])
    y[a == 1] += 0.7
    value = lambda labels: ref.divergence(y, labels / 3, (1 - labels) / 5, 2.0)
    relabelled = [
        value(np.isin(np.arange(8), chosen) * 1.0) for chosen in itertools.combinations(range(8), 3)
    ]
    exact = np.mean(np.array(relabelled) >= value(a) - 1e-9)
    ours = baselines.naive_two_sample(
        KEY, jnp.asarray(y), jnp.asarray(a), epsilon=2.0, num_permutations=2000, tol=1e-10
    )
    np.testing.assert_allclose(ours.statistic, value(a), atol=1e-8)
    assert 0.02 < exact < 0.9
    assert abs(ours.p_value - exact) < 4 * np.sqrt(exact * (1 - exact) / 2000)
