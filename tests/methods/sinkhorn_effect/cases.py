"""Small samples with nuisances that the tests of this method share.

All are made in NumPy and have one shape: a program that was compiled for one serves every other.
"""

import jax.numpy as jnp
import numpy as np

from jaxicml.methods.sinkhorn_effect import ConditionalLaw

N = 24
TOL = 1e-12
"""Of the Sinkhorn problems, where an oracle is to be met to many digits."""


def weights(rng, rows, columns, zeros=0):
    """Random row-stochastic weights, the last `zeros` columns empty."""
    raw = rng.random((rows, columns)) + 0.05
    if zeros:
        raw[:, -zeros:] = 0
    return raw / raw.sum(1, keepdims=True)


def law(*arrays, **options):
    """A law of NumPy arrays: atoms and weights of the treated, then of the controls."""
    t1, t0, w1, w0 = map(jnp.asarray, arrays)
    return ConditionalLaw(t1, t0, w1, w0, **options)


def sample(seed=0, n=N, m1=9, m0=8, d=2, shift=0.7, zeros=0):
    """(outcome, treatment, propensity, law) with arms of different sizes, as jax arrays."""
    rng = np.random.default_rng(seed)
    treatment = (np.arange(n) % 2).astype(float)
    outcome = rng.normal(size=(n, d)) + shift * treatment[:, None]
    propensity = rng.uniform(0.3, 0.7, n)
    atoms = rng.normal(size=(m1, d)) + shift, rng.normal(size=(m0, d))
    rows = weights(rng, n, m1, zeros), weights(rng, n, m0, zeros)
    return *map(jnp.asarray, (outcome, treatment, propensity)), law(*atoms, *rows)


def same_laws(seed=0):
    """An exact null: the atoms of both arms and their weights agree, but for an empty atom."""
    *observed, _ = sample(seed, shift=0.0)
    rng = np.random.default_rng(seed + 1)
    atoms, rows = rng.normal(size=(8, 2)), weights(rng, N, 8)
    wider = np.vstack([atoms, np.ones((1, 2))]), np.pad(rows, ((0, 0), (0, 1)))
    return *observed, law(wider[0], atoms, wider[1], rows)


def as_numpy(case):
    """(outcome, treatment, propensity, atoms1, atoms0, weights1, weights0) of a sample."""
    y, a, e, law = case
    fields = (y, a, e, law.atoms1, law.atoms0, law.weights1, law.weights0)
    return tuple(map(np.asarray, fields))
