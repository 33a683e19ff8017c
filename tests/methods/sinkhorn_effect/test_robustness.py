"""Laws and numbers that every function refuses by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxicml.methods.sinkhorn_effect import (
    ConditionalLaw,
    epsilon_grid,
    kernel_law,
    sinkhorn_treatment_effect,
)
from tests.methods.sinkhorn_effect import cases
from tests.methods.sinkhorn_effect.cases import sample

KEY = jax.random.key(0)


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
