"""Small samples with nuisances that the tests of this method share."""

import jax.numpy as jnp
import numpy as np

from jaxicml.methods.sinkhorn_effect.laws import conditional_law


def weights(rng, rows, columns, zeros=0):
    """Random row-stochastic weights, the last `zeros` columns empty."""
    raw = rng.random((rows, columns)) + 0.05
    if zeros:
        raw[:, -zeros:] = 0
    return raw / raw.sum(1, keepdims=True)


def sample(seed=0, n=12, m1=9, m0=8, d=2, shift=0.7, zeros=0):
    """(outcome, treatment, propensity, law) with arms of different sizes, as jax arrays."""
    rng = np.random.default_rng(seed)
    treatment = (np.arange(n) % 2).astype(float)
    outcome = rng.normal(size=(n, d)) + shift * treatment[:, None]
    propensity = rng.uniform(0.3, 0.7, n)
    law = conditional_law(
        jnp.array(rng.normal(size=(m1, d)) + shift),
        jnp.array(rng.normal(size=(m0, d))),
        jnp.array(weights(rng, n, m1, zeros)),
        jnp.array(weights(rng, n, m0, zeros)),
    )
    return jnp.array(outcome), jnp.array(treatment), jnp.array(propensity), law


def same_laws(seed=0, n=12, m=9, d=2):
    """An exact null: both arms have the same atoms and the same weights."""
    outcome, treatment, propensity, _ = sample(seed, n=n, d=d, shift=0.0)
    rng = np.random.default_rng(seed + 1)
    atoms, rows = jnp.array(rng.normal(size=(m, d))), jnp.array(weights(rng, n, m))
    return outcome, treatment, propensity, conditional_law(atoms, atoms, rows, rows)
