"""Mixtures of every covariance form, and their densities written in NumPy."""

import jax.numpy as jnp
import numpy as np
import scipy.special
import scipy.stats

from jaxicml.diffusion import gmm

FORMS = ("shared", "each", "diagonal", "full")


def parts(form, d=2, K=3, seed=0):
    """Weights, means and covariances (K, d, d), and the covariance as the constructor takes it."""
    rng = np.random.default_rng(seed)
    weights, means = rng.dirichlet(np.full(K, 4.0)), 2 * rng.normal(size=(K, d))
    if form == "shared":
        cov = np.array(0.5)
        full = np.broadcast_to(0.5 * np.eye(d), (K, d, d))
    elif form == "each":
        cov = rng.uniform(0.2, 1, K)
        full = cov[:, None, None] * np.eye(d)
    elif form == "diagonal":
        cov = rng.uniform(0.2, 1, (K, d))
        full = np.stack([np.diag(row) for row in cov])
    else:
        root = rng.normal(size=(K, d, d))
        cov = full = root @ root.transpose(0, 2, 1) + 0.3 * np.eye(d)
    return weights, means, full, cov


def mixture(form, d=2, K=3, seed=0, dtype="float64"):
    weights, means, _, cov = parts(form, d, K, seed)
    return gmm.gaussian_mixture(*(jnp.asarray(a, dtype) for a in (weights, means, cov)))


def points(d=2, n=5, seed=1):
    return 2 * np.random.default_rng(seed).normal(size=(n, d))


def log_density(form, x, abar, d=2, K=3, seed=0):
    """log Σ_k π_k N(x; √ᾱ μ_k, ᾱ Σ_k + (1 − ᾱ) I)."""
    weights, means, full, _ = parts(form, d, K, seed)
    logs = [
        np.log(w)
        + scipy.stats.multivariate_normal(
            np.sqrt(abar) * mu, abar * cov + (1 - abar) * np.eye(d)
        ).logpdf(x)
        for w, mu, cov in zip(weights, means, full, strict=True)
    ]
    return scipy.special.logsumexp(logs, axis=0)
