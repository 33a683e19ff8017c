"""Public entries of the Gaussian mixture."""

import jax.numpy as jnp
import numpy as np

from jaxicml.diffusion import gmm, mixture
from tests.contract import Bad, Row

NAME = "diffusion.mixture."


def arrays(rng):
    """Weights, means, σ_k², points and ᾱ."""
    return (
        rng.dirichlet(np.full(3, 4.0)),
        rng.normal(size=(3, 2)),
        rng.uniform(0.3, 1, 3),
        rng.normal(size=(4, 2)),
        np.array(rng.uniform(0.3, 0.7)),
    )


def of(quantity):
    return lambda w, means, cov, x, abar: quantity(gmm.gaussian_mixture(w, means, cov), x, abar)


BAD = (
    Bad("dimension", {3: jnp.ones((4, 3))}, r"x: expected shape \(4, 2\), got \(4, 3\)"),
    Bad("abar", {4: 1.5}, r"abar: expected values in \[0.0, 1.0\], got 1.5"),
    Bad("NaN", {4: jnp.nan}, "abar: expected values in"),
    Bad("vector", {4: jnp.ones(2)}, "abar: expected one number, got an array of shape"),
    Bad("weights", {0: jnp.ones(3)}, "weights: expected rows that sum to 1"),
)

ROWS = [
    *(
        Row(
            NAME + quantity.__name__,
            of(quantity),
            arrays,
            vmap=(0, 1, 2, 3, 4),
            grad=(0, 1, 2, 3, 4),
            bad=BAD,
        )
        for quantity in (
            mixture.gmm_log_prob,
            mixture.gmm_score,
            mixture.gmm_eps,
            mixture.gmm_denoise,
            mixture.gmm_hess_trace,
            mixture.gmm_responsibilities,
        )
    ),
    Row(
        NAME + "gmm_marginal",
        lambda w, means, cov, abar: gmm.gmm_marginal(gmm.gaussian_mixture(w, means, cov), abar),
        lambda rng: (*arrays(rng)[:3], arrays(rng)[4]),
        vmap=(0, 1, 2, 3),
        grad=(0, 1, 2, 3),
        bad=(Bad("abar", {3: -0.1}, r"abar: expected values in \[0.0, 1.0\]"),),
        also=(NAME + "gaussian_mixture", NAME + "GMM"),
    ),
    Row(
        NAME + "draw_labels",
        lambda key, w: gmm.draw_labels(key, jnp.log(w), 5),
        lambda rng: (rng.dirichlet(np.ones(3)),),
        random=True,
        vmap=(0,),
        dtypes=(),
        bad=(Bad("matrix", {0: jnp.ones((2, 3))}, r"log_weights: expected shape \(any\), got"),),
    ),
    Row(
        NAME + "gmm_sample",
        lambda key, w, means, cov: gmm.gmm_sample(key, gmm.gaussian_mixture(w, means, cov), 5),
        lambda rng: arrays(rng)[:3],
        random=True,
        vmap=(0, 1, 2),
        grad=(1, 2),
    ),
]
