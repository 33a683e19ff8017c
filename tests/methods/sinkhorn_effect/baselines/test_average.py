"""The average treatment effect against its formula, a z test and statsmodels."""

import warnings

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxicml.methods.sinkhorn_effect import ate_aipw
from tests.methods.sinkhorn_effect import cases
from tests.methods.sinkhorn_effect.baselines.loops import doubly_robust_scores
from tests.methods.sinkhorn_effect.cases import as_numpy, sample


@pytest.mark.parametrize("zeros", [0, 2])
def test_equals_the_formula(zeros, x64):
    case = sample(1, zeros=zeros)
    psi = doubly_robust_scores(case)
    n, effect = len(psi), psi.mean(0)
    ours = ate_aipw(*case, alpha=0.1)
    se = np.sqrt(((psi - effect) ** 2).sum(0)) / n
    half = scipy.stats.norm.ppf(0.95) * se
    wald = n * effect @ np.linalg.solve(np.cov(psi.T, bias=True), effect)
    expected = (effect, se, effect - half, effect + half, wald, scipy.stats.chi2(2).sf(wald))
    chex.assert_trees_all_close(tuple(ours), expected, rtol=1e-9)


@pytest.mark.slow
def test_one_component_is_the_z_test(x64):
    ours = ate_aipw(*sample(2, d=1))
    z = ours.effect[0] / ours.se[0]
    np.testing.assert_allclose(ours.p_value, 2 * scipy.stats.norm.sf(abs(z)), rtol=1e-9)


def law_with_means(m1, m0):
    """A law on two far atoms whose conditional means are the given ones."""
    atoms = np.array([[-50.0], [50.0]])
    rows = [np.stack([50 - m, 50 + m], axis=1) / 100 for m in (m1, m0)]
    return cases.law(atoms, atoms, *rows, shared=True)


@pytest.mark.oracle
def test_equals_that_of_statsmodels(x64):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        discrete = pytest.importorskip("statsmodels.discrete.discrete_model")
        linear = pytest.importorskip("statsmodels.regression.linear_model")
        effects = pytest.importorskip("statsmodels.treatment.treatment_effects")
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(80), rng.normal(size=(80, 2))])
    a = (rng.random(80) < 0.5).astype(float)
    y = x @ [1.0, 0.5, -1.0] + a * x[:, 1] + rng.normal(size=80)
    outcome_model = linear.OLS(y, x)
    propensity = discrete.Probit(a, x).fit(disp=0)
    theirs = effects.TreatmentEffect(outcome_model, a, results_select=propensity)
    fits = [np.linalg.lstsq(x[a == arm], y[a == arm])[0] for arm in (1, 0)]
    law = law_with_means(*(x @ beta for beta in fits))
    e = jnp.array(propensity.predict())
    ours = ate_aipw(jnp.array(y)[:, None], jnp.array(a), e, law, clip=0.001)
    np.testing.assert_allclose(ours.effect[0], theirs.aipw(return_results=False)[0], atol=1e-6)


def with_changed_outcomes(change, dtype):
    """The average effect where outcomes and atoms are changed alike."""
    y, a, e, t1, t0, w1, w0 = as_numpy(sample())
    case = (change(y), a, e), (change(t1), change(t0), w1, w0)
    observed, law = jax.tree.map(lambda v: np.asarray(v, dtype), case)
    return ate_aipw(*map(jnp.asarray, observed), cases.law(*law))


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
@pytest.mark.parametrize("second", [lambda first: first, lambda first: 0 * first + 3.1])
def test_undefined_where_the_covariance_is_singular(second, dtype, x64):
    ours = with_changed_outcomes(lambda v: np.stack([v[:, 0], second(v[:, 0])], 1), dtype)
    assert np.isnan(ours.statistic)
    assert np.isnan(ours.p_value)
    chex.assert_tree_all_finite((ours.effect, ours.se))


@pytest.mark.slow
def test_large_means_cost_no_digits(x64):
    changes = lambda v: v, lambda v: v.astype("float32") + 2**12
    near, far = (with_changed_outcomes(change, "float32") for change in changes)
    np.testing.assert_allclose(near.effect, far.effect, atol=5e-3)
