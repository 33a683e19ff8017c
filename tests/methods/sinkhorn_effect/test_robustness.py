"""Units, dtypes, invalid nuisances, extreme ε: a clear refusal or an honest NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxicml.methods.sinkhorn_effect import (
    ConditionalLaw,
    cross_fit,
    epsilon_grid,
    kernel_law,
    sinkhorn_effect_aggregated,
    sinkhorn_treatment_effect,
)
from tests.methods.sinkhorn_effect import cases
from tests.methods.sinkhorn_effect.cases import as_numpy, sample

KEY = jax.random.key(0)


def aggregated(case, grid):
    out = sinkhorn_effect_aggregated(KEY, *case, epsilons=jnp.asarray(grid), num_null=99)
    return jax.tree.map(np.asarray, out)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-9, 1e-4, 1e4])
def test_the_guard_does_not_depend_on_units(scale, x64):
    y, a, e, t1, t0, w1, w0 = as_numpy(sample(3, shift=1.5))
    grid = np.array([0.5, 1.5, 8.0])
    law = cases.law(scale * t1, scale * t0, w1, w0)
    plain = aggregated(sample(3, shift=1.5), grid)
    other = aggregated((*map(jnp.asarray, (scale * y, a, e)), law), scale**2 * grid)
    assert not plain.kept.all()
    np.testing.assert_allclose(other.regime_ratio, plain.regime_ratio, rtol=1e-5)
    np.testing.assert_array_equal(other.kept, plain.kept)
    np.testing.assert_allclose(other.p_value, plain.p_value)


@jax.jit
def with_bad_nuisances(x, a, propensity, factor):
    """A cross-fit whose propensity is constant and whose treated law has the mass `factor`."""

    def law_fn(key, x, a, y, x_eval):
        good = kernel_law(x, a, y, x_eval, bandwidth=1.0)
        weights = factor * good.weights1
        return ConditionalLaw(good.atoms1, good.atoms0, weights, good.weights0, shared=True)

    return cross_fit(
        KEY,
        x,
        a,
        x[:, :1],
        propensity_fn=lambda key, x, a: lambda x_eval: jnp.full(len(x_eval), propensity),
        law_fn=law_fn,
        epsilons=epsilon_grid(x[:, :1]),
        num_null=99,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("propensity", "factor"), [(2.0, 1.0), (-0.5, 1.0), (0.5, 2.0), (0.5, -1.0)]
)
def test_nuisances_that_are_no_probabilities_give_no_p_value(propensity, factor, x64):
    """They come out of a trace, where no check can look at them."""
    sample = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40.0) % 2
    good = with_bad_nuisances(*sample, 0.5, 1.0)
    assert good.per_eps.converged.all()
    assert np.isfinite(good.p_value)
    out = with_bad_nuisances(*sample, propensity, factor)
    assert np.isnan(out.p_value)
    assert not np.asarray(out.per_eps.converged).any()


def effect(case, epsilon, dtype):
    observed = (jnp.asarray(v, dtype) for v in as_numpy(case)[:3])
    law = cases.law(*(np.asarray(v, dtype) for v in as_numpy(case)[3:]))
    return sinkhorn_treatment_effect(KEY, *observed, law, epsilon=epsilon, num_null=99)


@pytest.mark.slow
def test_float32_agrees_with_float64(x64):
    case = sample()
    for epsilon in (3.0, 0.8, 1.0):
        wide, narrow = (effect(case, epsilon, dtype) for dtype in ("float64", "float32"))
        assert narrow.converged
        for name in ("plugin", "onestep", "second_order", "se"):
            ours, theirs = getattr(narrow, name), getattr(wide, name)
            assert ours.dtype == "float32"
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, err_msg=name)


@pytest.mark.slow
def test_epsilon_beyond_the_digits_of_float32_is_flagged(x64):
    case = sample(6)
    assert effect(case, 1.0, "float32").converged
    far = effect(case, 1e8, "float32")
    assert not far.converged
    assert np.isnan(far.p_value)


def test_weights_may_not_be_off_by_more_than_rounding(x64, as_user):
    *observed, law = sample()
    rows = np.array(law.weights1)
    rows[3, 0] += 2e-6
    off = cases.law(law.atoms1, law.atoms0, rows, law.weights0)
    with pytest.raises(ValueError, match=r"law.weights1: expected rows .*rows 3"):
        sinkhorn_treatment_effect(KEY, *observed, off, epsilon=1.0)


def test_shared_atoms_must_be_equal(as_user):
    y, a, e, law = sample(7, m1=8, m0=8)
    other = ConditionalLaw(law.atoms1, law.atoms0, law.weights1, law.weights0, shared=True)
    with pytest.raises(ValueError, match="atoms0: expected the atoms of atoms1"):
        sinkhorn_treatment_effect(KEY, y, a, e, other, epsilon=1.0)


@pytest.mark.parametrize("dtype", ["int32", "bfloat16", "float16"])
def test_integers_and_halves_are_refused_by_name(dtype, as_user):
    y, a, e, law = sample(8)
    narrow = jnp.asarray(np.asarray(y).astype(jnp.dtype(dtype)))
    refused = lambda name: pytest.raises(
        ValueError, match=f"{name}: expected float32 or float64, got {dtype}"
    )
    with refused("outcome"):
        sinkhorn_treatment_effect(KEY, narrow, a, e, law, epsilon=1.0)
    with refused("outcome"):
        epsilon_grid(narrow)
    with refused("x"):
        kernel_law(narrow, a, y, y, bandwidth=1.5)
