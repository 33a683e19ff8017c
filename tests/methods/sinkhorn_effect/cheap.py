"""Terms of a fold that compile in no time, for tests of what is done with a fold.

They are of no statistical use, but depend on all that the fold is given. `test_terms` has the real
ones.
"""

import jax
import jax.numpy as jnp

from jaxicml.methods.sinkhorn_effect import estimator


def terms(xp, outcome, treatment, propensity, means, epsilons, null):
    """The terms in NumPy or jax; `means` are those of the two laws at every row."""
    effect = (outcome + means[0] - means[1]).sum(1)
    eif1 = effect / epsilons[:, None] + treatment / propensity
    fine = (propensity > 0) & (propensity < 1) & xp.isfinite(effect)
    return estimator.FoldTerms(
        plugin=eif1.max(1),
        eif1=eif1,
        correction=eif1.std(1),
        null=len(outcome) * null,
        regime=1 + eif1.mean(1),
        converged=fine.all() & (epsilons > 0),
    )


def null_draws(xp, bits, epsilons, num_null):
    """Numbers that depend on every bit of a key."""
    steps = xp.arange(1.0, 1 + len(epsilons) * num_null).reshape(len(epsilons), num_null)
    return 4 * (xp.sin(steps * bits[0] / 2**32) + xp.cos(steps * bits[1] / 2**32))


def fold_terms(key, outcome, treatment, propensity, law, epsilons, *, num_null, **_):
    """In the place of `estimator.fold_terms`."""
    stochastic = lambda w: (w >= 0).all() & (jnp.abs(w.sum(1) - 1) < 1e-6).all()
    mean = lambda w, t: jnp.where(stochastic(w), w @ t, jnp.nan)
    means = mean(law.weights1, law.atoms1), mean(law.weights0, law.atoms0)
    null = null_draws(jnp, jax.random.key_data(key), epsilons, num_null).astype(outcome.dtype)
    return terms(jnp, outcome, treatment, propensity, means, epsilons, null)
