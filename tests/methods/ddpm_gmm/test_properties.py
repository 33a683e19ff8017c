"""What holds for the law of every mixture on the line, and of every set of draws."""

import chex
import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxicml.diffusion import gmm, schedules
from jaxicml.methods import ddpm_gmm as lab

STEPS, GRID = 9, np.linspace(-12.0, 12.0, 801)


@jax.jit
def law_of(weights, means, sigma2):
    g = gmm.gaussian_mixture(weights, means[:, None], sigma2)
    made = schedules.theory(STEPS)
    return lab.output_law(g, made, jnp.asarray(GRID), lab.ddpm_steps(made, "component", sigma2))


@jax.jit
def draws_of(key, weights, means, sigma2):
    g = gmm.gaussian_mixture(weights, means[:, None], sigma2)
    made = schedules.theory(STEPS)
    score = lab.mixture_score(g, made)
    return lab.ddpm_sample(
        key, score, made, (64, 1), variance="component", sigma2=sigma2, trajectory=True
    )


@st.composite
def mixtures(draw):
    shares = draw(hnp.arrays(float, 3, elements=st.floats(0.05, 1)))
    means = draw(hnp.arrays(float, 3, elements=st.floats(-4, 4)))
    return shares / shares.sum(), means, draw(st.floats(0.25, 2))


@settings(max_examples=25, deadline=None)
@given(mixtures())
def test_laws(mixture):
    with jax.enable_x64(True):
        weights, means, sigma2 = mixture
        law, turned = jax.tree.map(
            np.asarray,
            (law_of(weights, means, sigma2), law_of(weights[::-1], -means[::-1], sigma2)),
        )
    chex.assert_tree_all_finite(law)
    chex.assert_equal_shape([law.grid, law.log_q, law.log_p])
    assert bool(law.valid)
    assert 0 <= law.tv <= 1
    # Pinsker, and distances between laws that occupy 24 units
    assert law.tv <= np.sqrt(max(float(law.kl), 0) / 2) + 1e-9
    assert 0 <= law.w2 <= 24
    # neither the order of the components nor the direction of the line matters
    chex.assert_trees_all_close(
        (law.tv, law.kl, law.w2), (turned.tv, turned.kl, turned.w2), rtol=1e-6, atol=1e-9
    )
    chex.assert_trees_all_close(law.log_p, turned.log_p[::-1], atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(mixtures(), st.integers(0, 2**31 - 1))
def test_draws(mixture, seed):
    weights, means, sigma2 = (np.asarray(a, np.float32) for a in mixture)
    result = draws_of(jax.random.key(seed), weights, means, sigma2)
    chex.assert_shape(result.x, (64, 1))
    chex.assert_shape(result.trajectory, (STEPS, 64, 1))
    chex.assert_type([result.x, result.trajectory], jnp.float32)
    chex.assert_tree_all_finite(result)
    chex.assert_trees_all_equal(result.x, result.trajectory[-1])
    assert np.abs(result.x).max() < 4 + 8 * np.sqrt(2)
