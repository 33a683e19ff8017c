"""Simulated trials of the paper, and the image pools that they draw from.

Gaussian trial: X ~ N(0, I₃), A ~ Bernoulli(expit(overlap · 1ᵀX)), and Y given A = a is
    "mean":     N(a θ 1, Σ)
    "cov":      N(0, Σ + a θ (u vᵀ + v uᵀ)),  u, v the unit eigenvectors of Σ
    "bimodal":  N(0, I) against ½ N(−θ 1, I) + ½ N(θ 1, I)
plus confounding · (1ᵀX/√3) 1 in both arms. The paper has confounding 0 and overlap 1 (there X moves
treatment but not the outcome); the other settings are an extension.

Image trial: X ~ N(0, I_p), S ~ Bernoulli(expit(π₀ + π₁ᵀX)) sick or not, A ~ Bernoulli(expit(γ₀ +
γ₁ᵀX)). Healthy units show an image of pool 0, sick untreated ones of pool 1, and treatment heals a
sick unit (pool 0) with probability expit(θ + 0.01 · 1ᵀX).

References:
    Agarwal, Luedtke, "Sinkhorn Treatment Effects", 2026, arXiv 2605.08485 (Appendix I.1).
"""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxicml import checks
from jaxicml.types import Key, Scalar

__all__ = [
    "DEFAULT_SIGMA",
    "KINDS",
    "GaussianLaw",
    "Sample",
    "digits_pools",
    "gaussian_law",
    "load_pcam",
    "principal_components",
    "sample_gaussian",
    "simulate_gaussian",
    "simulate_image_trial",
]

KINDS = ("mean", "cov", "bimodal")
"""Families of outcome laws of the Gaussian trial."""

DEFAULT_SIGMA = ((2.1, 1.5), (1.5, 2.1))
"""Covariance Σ; the paper does not print it, this one reproduces its published effects."""

MAX_POOL_BYTES = 8 * 2**30
"""Largest image file that is read into memory."""


class Sample(NamedTuple):
    """A trial: covariates, treatment (0 or 1, as floats) and outcomes."""

    x: Float[Array, "n p"]
    a: Float[Array, " n"]
    y: Float[Array, "n d"]


class GaussianLaw(NamedTuple):
    """Outcome laws of a Gaussian trial as arrays, so that one program serves every kind."""

    shift: Float[Array, " d"]
    """Mean of the treated; the half distance of the two modes when bimodal."""
    chol0: Float[Array, "d d"]
    """Cholesky factor of the covariance of the untreated."""
    chol1: Float[Array, "d d"]
    """Cholesky factor of the covariance of the treated, within a mode."""
    bimodal: Bool[Array, ""]
    """Whether the treated have modes at plus and minus the shift."""


def simulate_gaussian(
    key: Key,
    n: int,
    theta: Scalar,
    kind: str,
    *,
    confounding: Scalar = 0.0,
    overlap: Scalar = 1.0,
    sigma: Float[Array, "d d"] | None = None,
) -> Sample:
    """Draws the Gaussian trial.

    Args:
        key: randomness.
        n: observations.
        theta: strength of the effect.
        kind: "mean", "cov" or "bimodal".
        confounding: how much of 1ᵀX/√3 enters both outcomes.
        overlap: slope of the log odds of treatment in 1ᵀX; small is good overlap.
        sigma: covariance Σ of "mean" and "cov"; `DEFAULT_SIGMA` by default.

    Raises:
        ValueError: an unknown kind, or a θ for which the treated covariance is not positive
            definite (1.47 is about the largest for "cov" with the default Σ).

    >>> import jax
    >>> x, a, y = simulate_gaussian(jax.random.key(0), 100, 0.9, "mean")
    >>> x.shape, a.shape, y.shape
    ((100, 3), (100,), (100, 2))
    """
    law = gaussian_law(theta, kind, sigma)
    return sample_gaussian(key, n, law, confounding=confounding, overlap=overlap)


def gaussian_law(theta: Scalar, kind: str, sigma: Float[Array, "d d"] | None = None) -> GaussianLaw:
    """The outcome laws of a kind and strength, see `simulate_gaussian`."""
    checks.check_choice("kind", kind, KINDS)
    checks.check_finite("theta", theta)
    sigma = jnp.asarray(DEFAULT_SIGMA if sigma is None else sigma, float)
    checks.check_shape("sigma", sigma, (sigma.shape[0], sigma.shape[0]))
    d = sigma.shape[0]
    theta = jnp.asarray(theta, sigma.dtype)
    eye, nothing = jnp.eye(d, dtype=sigma.dtype), jnp.zeros(d, sigma.dtype)
    if kind == "bimodal":
        return GaussianLaw(theta + nothing, eye, eye, jnp.array(True))
    chol0 = jnp.linalg.cholesky(sigma)
    if kind == "mean":
        return GaussianLaw(theta + nothing, chol0, chol0, jnp.array(False))
    vectors = jnp.linalg.eigh(sigma)[1]
    u, v = vectors[:, 0], vectors[:, -1]
    treated = sigma + theta * (jnp.outer(u, v) + jnp.outer(v, u))
    checks.check_positive("eigenvalues of the treated covariance", jnp.linalg.eigvalsh(treated))
    return GaussianLaw(nothing, chol0, jnp.linalg.cholesky(treated), jnp.array(False))


def sample_gaussian(
    key: Key, n: int, law: GaussianLaw, *, confounding: Scalar = 0.0, overlap: Scalar = 1.0
) -> Sample:
    """Draws a Gaussian trial of given outcome laws, see `simulate_gaussian`."""
    checks.check_integer("n", n, low=1)
    dtype, d = law.shift.dtype, law.shift.shape[0]
    x_key, a_key, y_key, mode_key = jax.random.split(key, 4)
    x = jax.random.normal(x_key, (n, 3), dtype)
    a = jax.random.bernoulli(a_key, jax.nn.sigmoid(overlap * x.sum(1))).astype(dtype)
    noise = jax.random.normal(y_key, (n, d), dtype)
    sign = jnp.where(law.bimodal, jax.random.rademacher(mode_key, (n,), dtype), 1)
    treated = sign[:, None] * law.shift + noise @ law.chol1.T
    y = jnp.where(a[:, None] == 1, treated, noise @ law.chol0.T)
    return Sample(x, a, y + confounding * x.sum(1, keepdims=True) / jnp.sqrt(3.0).astype(dtype))


def simulate_image_trial(
    key: Key,
    n: int,
    theta: Scalar,
    pool0: Float[Array, "m0 d"],
    pool1: Float[Array, "m1 d"],
    *,
    pi0: Scalar = 0.0,
    pi1: Scalar = 0.5,
    gamma0: Scalar = 0.0,
    gamma1: Scalar = 0.5,
    p: int = 5,
) -> Sample:
    """Draws the image trial: treatment turns sick images into healthy ones.

    Args:
        key: randomness.
        n: observations.
        theta: log odds that treatment heals; −20 is no effect.
        pool0: features of healthy images, drawn with replacement.
        pool1: features of sick images.
        pi0: intercept of the log odds of being sick.
        pi1: their slope in each covariate.
        gamma0: intercept of the log odds of treatment.
        gamma1: their slope in each covariate.
        p: number of covariates.

    Raises:
        ValueError: pools of different width, or empty ones.
    """
    checks.check_integer("n", n, low=1)
    checks.check_shape("pool0", pool0, (None, None))
    checks.check_shape("pool1", pool1, (None, pool0.shape[1]))
    checks.check_min_rows("pool0", pool0, 1)
    checks.check_min_rows("pool1", pool1, 1)
    dtype = pool0.dtype
    keys = jax.random.split(key, 6)
    x = jax.random.normal(keys[0], (n, p), dtype)
    total = x.sum(1)
    sick = jax.random.bernoulli(keys[1], jax.nn.sigmoid(pi0 + pi1 * total))
    a = jax.random.bernoulli(keys[2], jax.nn.sigmoid(gamma0 + gamma1 * total))
    healed = jax.random.bernoulli(keys[3], jax.nn.sigmoid(theta + 0.01 * total))
    healthy_image = jax.random.choice(keys[4], pool0, (n,))
    sick_image = jax.random.choice(keys[5], pool1, (n,))
    shows_sick = sick & ~(a & healed)
    return Sample(x, a.astype(dtype), jnp.where(shows_sick[:, None], sick_image, healthy_image))


def digits_pools(num_components: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Features of handwritten threes (healthy) and eights (sick) from scikit-learn's digits.

    A stand-in for pathology images: 8 x 8 pixels, standardised, first principal components of both
    classes together.

    Returns:
        Pools of shape (183, num_components) and (174, num_components), float64.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    chosen = np.isin(labels, (3, 8))
    features = principal_components(images[chosen], num_components)
    return features[labels[chosen] == 3], features[labels[chosen] == 8]


def principal_components(table: np.ndarray, num_components: int) -> np.ndarray:
    """Scores of the leading principal components of the standardised columns.

    Args:
        table: one row an image or embedding; constant columns are dropped.
        num_components: how many to keep.

    Raises:
        ValueError: more components than rows or varying columns, or NaN.
    """
    table = np.asarray(table, np.float64)
    checks.check_shape("table", table, (None, None))
    checks.check_finite("table", table)
    spread = table.std(0)
    standard = (table - table.mean(0))[:, spread > 0] / spread[spread > 0]
    checks.check_integer("num_components", num_components, low=1, high=min(standard.shape))
    left, scale, _ = np.linalg.svd(standard, full_matrices=False)
    return left[:, :num_components] * scale[:num_components]


def load_pcam(
    path: str | Path,
    *,
    split: str = "train",
    num_components: int = 10,
    max_images: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Pools of healthy and metastatic patches of PatchCamelyon.

    Reads either the published pair `camelyonpatch_level_2_split_{split}_{x,y}.h5` in the folder
    `path` (keys "x", uint8 of shape (N, 96, 96, 3), and "y"), whose pixels are reduced to principal
    components, or precomputed embeddings: `path` is then an `.npy` file of shape (N, k), with its
    labels beside it in `<name>_labels.npy`.

    Args:
        path: folder of the HDF5 pair, or the `.npy` file of embeddings.
        split: "train", "valid" or "test".
        num_components: principal components kept.
        max_images: read only that many leading images.

    Returns:
        Features of label 0 and of label 1, float64.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a wrong key, shape, dtype or label, or more data than fits the size bound.
    """
    path = Path(path)
    checks.check_choice("split", split, ("train", "valid", "test"))
    read = _embedded if path.suffix == ".npy" else _patches
    table, labels = read(path, split, max_images)
    if table.shape[0] != labels.shape[0]:
        raise ValueError(
            f"labels: expected one for each of {table.shape[0]} images, got {labels.shape[0]}"
        )
    checks.check_binary("labels", labels)
    features = principal_components(table, num_components)
    return features[labels == 0], features[labels == 1]


def _embedded(path: Path, split: str, max_images: int | None):
    table = np.load(path, mmap_mode="r", allow_pickle=False)
    labels = np.load(path.with_name(f"{path.stem}_labels.npy"), mmap_mode="r", allow_pickle=False)
    checks.check_shape("embeddings", table, (None, None))
    checks.check_shape("labels", labels, (None,))
    if not np.issubdtype(table.dtype, np.floating):
        raise ValueError(f"embeddings: expected floating point numbers, got {table.dtype}")
    _check_size("embeddings", table[:max_images].nbytes * 8 // table.dtype.itemsize)
    return np.asarray(table[:max_images], np.float64), np.asarray(labels[:max_images])


def _patches(path: Path, split: str, max_images: int | None):
    try:
        import h5py
    except ImportError as error:
        message = 'h5py: expected to be installed to read HDF5; run pip install "jaxicml[data]"'
        raise ImportError(message) from error

    images = path / f"camelyonpatch_level_2_split_{split}_x.h5"
    labels = path / f"camelyonpatch_level_2_split_{split}_y.h5"
    for file in (images, labels):
        if not file.is_file():
            raise FileNotFoundError(f"{file}: no such file")
    with h5py.File(images, "r") as x, h5py.File(labels, "r") as y:
        for name, opened in (("x", x), ("y", y)):
            if name not in opened:
                raise ValueError(f"key: expected {name!r} in the file, got {sorted(opened)}")
        patches, targets = x["x"], y["y"]
        checks.check_shape("x", patches, (None, None, None, 3))
        if patches.dtype != np.uint8:
            raise ValueError(f"x: expected uint8 pixels, got {patches.dtype}")
        count = min(patches.shape[0], max_images or patches.shape[0])
        # as float64, which the principal components need
        _check_size("x", count * int(np.prod(patches.shape[1:])) * 8)
        table = np.asarray(patches[:count], np.float64).reshape(count, -1)
        return table, np.asarray(targets[:count]).reshape(-1)


def _check_size(name: str, size: int) -> None:
    if size > MAX_POOL_BYTES:
        raise ValueError(
            f"{name}: expected at most {MAX_POOL_BYTES / 2**30:.0f} GiB as float64, got "
            f"{size / 2**30:.1f} GiB; lower max_images or give embeddings"
        )
