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
from tests.methods.sinkhorn_effect.cases import sample


@pytest.mark.parametrize("scale", [1e-9, 1e-4, 1e4])
def test_the_guard_does_not_depend_on_units(scale, x64):
    y, a, e, law = sample(3, n=24, shift=1.5)
    grid = epsilon_grid(y)
    scaled = ConditionalLaw(scale * law.atoms1, scale * law.atoms0, law.weights1, law.weights0)
    call = lambda y, law, grid: sinkhorn_effect_aggregated(
        jax.random.key(0), y, a, e, law, epsilons=grid, num_null=99
    )
    plain, other = call(y, law, grid), call(scale * y, scaled, scale**2 * grid)
    np.testing.assert_allclose(other.regime_ratio, plain.regime_ratio, rtol=1e-5)
    np.testing.assert_array_equal(other.kept, plain.kept)
    np.testing.assert_allclose(other.p_value, plain.p_value)


@pytest.mark.parametrize(
    ("propensity", "factor"), [(2.0, 1.0), (-0.5, 1.0), (0.5, 2.0), (0.5, -1.0)]
)
def test_nuisances_that_are_no_probabilities_give_no_p_value(propensity, factor, x64):
    """They come out of a trace, where no check can look at them."""
    x = jax.random.normal(jax.random.key(0), (40, 2))
    y, a = x[:, :1], jnp.arange(40.0) % 2

    def law_fn(key, x, a, y, x_eval):
        good = kernel_law(x, a, y, x_eval, bandwidth=1.0)
        return ConditionalLaw(
            good.atoms1, good.atoms0, factor * good.weights1, good.weights0, shared=True
        )

    out = cross_fit(
        jax.random.key(1),
        x,
        a,
        y,
        propensity_fn=lambda key, x, a: lambda x_eval: jnp.full(len(x_eval), propensity),
        law_fn=law_fn,
        epsilons=epsilon_grid(y),
        num_null=99,
    )
    assert jnp.isnan(out.p_value)
    assert not out.per_eps.converged.any()


def test_only_the_plugin_is_differentiated(x64):
    y, a, e, law = sample(5)

    def field(name, atoms):
        moved = ConditionalLaw(atoms, law.atoms0, law.weights1, law.weights0)
        key = jax.random.key(0)
        out = sinkhorn_treatment_effect(key, y, a, e, moved, epsilon=1.0, num_null=99)
        return getattr(out, name)

    for name in ("onestep", "second_order", "ci_low", "statistic"):
        gradient = jax.grad(field, argnums=1)(name, law.atoms1)
        np.testing.assert_array_equal(gradient, jnp.zeros_like(gradient))


def test_epsilon_beyond_the_digits_of_float32_is_flagged():
    y, a, e, law = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), sample(6))
    call = lambda epsilon: sinkhorn_treatment_effect(
        jax.random.key(0), y, a, e, law, epsilon=epsilon, num_null=99
    )
    assert call(1.0).converged
    assert not call(1e8).converged
    assert jnp.isnan(call(1e8).p_value)


def test_shared_atoms_must_be_equal(as_user):
    y, a, e, law = sample(7, m1=8, m0=8)
    other = ConditionalLaw(law.atoms1, law.atoms0, law.weights1, law.weights0, shared=True)
    with pytest.raises(ValueError, match="atoms0: expected the atoms of atoms1"):
        sinkhorn_treatment_effect(jax.random.key(0), y, a, e, other, epsilon=1.0)


def test_integers_and_halves_are_refused_by_name(as_user):
    y, a, e, law = sample(8)
    for dtype in ("int32", "bfloat16", "float16"):
        with pytest.raises(ValueError, match=f"outcome: expected float32 or float64, got {dtype}"):
            sinkhorn_treatment_effect(jax.random.key(0), y.astype(dtype), a, e, law, epsilon=1.0)
        with pytest.raises(ValueError, match=f"outcome: expected float32 or float64, got {dtype}"):
            epsilon_grid(y.astype(dtype))
        with pytest.raises(ValueError, match=f"x: expected float32 or float64, got {dtype}"):
            kernel_law(y.astype(dtype), a, y, y, bandwidth=1.5)
