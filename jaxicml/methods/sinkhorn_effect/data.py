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

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

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
    "block_means",
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

MAX_POOL_BYTES = 4 * 2**30
"""Largest table of features that is held."""


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
        ValueError: n below 1, an unknown kind, NaN, a Σ that is no covariance, or a θ for which
            the treated covariance is not positive definite: |θ| must stay below the geometric mean
            of the extreme eigenvalues of Σ, 1.47 for the default. Where θ is traced, outcomes are
            NaN instead.

    >>> import jax
    >>> x, a, y = simulate_gaussian(jax.random.key(0), 100, 0.9, "mean")
    >>> x.shape, a.shape, y.shape
    ((100, 3), (100,), (100, 2))
    """
    checks.check_key("key", key)
    law = gaussian_law(theta, kind, sigma)
    return sample_gaussian(key, n, law, confounding=confounding, overlap=overlap)


def gaussian_law(theta: Scalar, kind: str, sigma: Float[Array, "d d"] | None = None) -> GaussianLaw:
    """The outcome laws of a kind and strength as arrays.

    Args:
        theta: strength of the effect.
        kind: "mean", "cov" or "bimodal".
        sigma: covariance Σ; of "bimodal" only its size is used.

    Raises:
        ValueError: see `simulate_gaussian`.

    >>> gaussian_law(0.9, "mean").shift.tolist()
    [0.9, 0.9]
    """
    checks.check_choice("kind", kind, KINDS)
    theta = _number("theta", theta)
    covariance = np.array(DEFAULT_SIGMA) if sigma is None else sigma
    checks.check_array("sigma", covariance)
    checks.check_min_rows("sigma", covariance, 2 if kind == "cov" else 1)
    checks.check_covariance("sigma", covariance, covariance.shape[0])
    if kind == "cov" and not checks.is_traced(theta, covariance):
        values = np.linalg.eigvalsh(np.asarray(covariance))
        checks.check_below("|theta|", abs(theta), np.sqrt(values[0] * values[-1]))
    return _gaussian_law(jnp.asarray(theta, float), kind, jnp.asarray(covariance, float))


@functools.partial(jax.jit, static_argnames="kind")
def _gaussian_law(theta, kind, sigma) -> GaussianLaw:
    d = sigma.shape[0]
    eye, nothing = jnp.eye(d, dtype=sigma.dtype), jnp.zeros(d, sigma.dtype)
    if kind == "bimodal":
        return GaussianLaw(theta + nothing, eye, eye, jnp.array(True))
    chol0 = jnp.linalg.cholesky(sigma)
    if kind == "mean":
        return GaussianLaw(theta + nothing, chol0, chol0, jnp.array(False))
    vectors = jnp.linalg.eigh(sigma)[1]
    # an eigenvector has no sign of its own; without one θ would have none either
    u, v = (w * jnp.where(w[0] < 0, -1, 1) for w in (vectors[:, 0], vectors[:, -1]))
    treated = sigma + theta * (jnp.outer(u, v) + jnp.outer(v, u))
    return GaussianLaw(nothing, chol0, jnp.linalg.cholesky(treated), jnp.array(False))


def sample_gaussian(
    key: Key, n: int, law: GaussianLaw, *, confounding: Scalar = 0.0, overlap: Scalar = 1.0
) -> Sample:
    """Draws a Gaussian trial of given outcome laws.

    Args:
        key: randomness.
        n: observations.
        law: see `gaussian_law`.
        confounding: how much of 1ᵀX/√3 enters both outcomes.
        overlap: slope of the log odds of treatment in 1ᵀX; small is good overlap.

    Raises:
        ValueError: n below 1, or NaN.

    >>> import jax
    >>> sample_gaussian(jax.random.key(0), 5, gaussian_law(0.9, "cov")).y.shape
    (5, 2)
    """
    checks.check_key("key", key)
    checks.check_integer("n", n, low=1)
    checks.check_instance("law", law, GaussianLaw)
    confounding, overlap = _number("confounding", confounding), _number("overlap", overlap)
    return _sample_gaussian(key, n, law, confounding, overlap)


@functools.partial(jax.jit, static_argnames="n")
def _sample_gaussian(key, n, law, confounding, overlap) -> Sample:
    dtype, d = law.shift.dtype, law.shift.shape[0]
    normal_key, uniform_key = jax.random.split(key)
    x, noise = jnp.split(jax.random.normal(normal_key, (n, 3 + d), dtype), [3], axis=1)
    assign, mode = jax.random.uniform(uniform_key, (2, n), dtype)
    total = x.sum(1)
    a = assign < jax.nn.sigmoid(overlap * total)
    sign = jnp.where(law.bimodal & (mode < 0.5), -1, 1).astype(dtype)
    treated = sign[:, None] * law.shift + noise @ law.chol1.T
    y = jnp.where(a[:, None], treated, noise @ law.chol0.T)
    shared = jnp.asarray(confounding, dtype) * total / np.sqrt(3)
    return Sample(x, a.astype(dtype), y + shared[:, None].astype(dtype))


def simulate_image_trial(
    key: Key,
    n: int,
    theta: Scalar,
    pool0: Float[Array, "m0 d"],
    pool1: Float[Array, "m1 d"],
    *,
    pi0: Scalar = 0.0,
    pi1: Scalar | Float[Array, " p"] = 0.5,
    gamma0: Scalar = 0.0,
    gamma1: Scalar | Float[Array, " p"] = 0.5,
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
        pi1: their slopes, one for all covariates or one for each.
        gamma0: intercept of the log odds of treatment.
        gamma1: their slopes, likewise.
        p: number of covariates.

    Raises:
        ValueError: n or p below 1, NaN, pools of different width or empty ones, or slopes that are
            not p many.

    >>> import jax, jax.numpy as jnp
    >>> sick, healthy = jnp.ones((3, 10)), jnp.zeros((4, 10))
    >>> x, a, y = simulate_image_trial(jax.random.key(0), 100, 20.0, healthy, sick)
    >>> bool(y[a == 1].any())  # treatment heals everybody
    False
    """
    checks.check_key("key", key)
    checks.check_integer("n", n, low=1)
    checks.check_floats("pool0", pool0, (None, None))
    checks.check_floats("pool1", pool1, (None, pool0.shape[1]))
    checks.check_min_rows("pool0", pool0, 1)
    checks.check_min_rows("pool1", pool1, 1)
    theta, pi0, gamma0 = _number("theta", theta), _number("pi0", pi0), _number("gamma0", gamma0)
    checks.check_integer("p", p, low=1)
    slopes = _slopes("pi1", pi1, p), _slopes("gamma1", gamma1, p)
    return _image_trial(key, n, theta, pool0, pool1, pi0, gamma0, slopes)


@functools.partial(jax.jit, static_argnames="n")
def _image_trial(key, n, theta, pool0, pool1, pi0, gamma0, slopes) -> Sample:
    dtype, (pi1, gamma1) = pool0.dtype, slopes
    keys = jax.random.split(key, 6)
    x = jax.random.normal(keys[0], (n, len(pi1)), dtype)
    sick = _bernoulli(keys[1], pi0 + x @ pi1.astype(dtype))
    a = _bernoulli(keys[2], gamma0 + x @ gamma1.astype(dtype))
    healed = _bernoulli(keys[3], theta + 0.01 * x.sum(1))
    healthy_image = jax.random.choice(keys[4], pool0, (n,))
    sick_image = jax.random.choice(keys[5], pool1, (n,))
    shows_sick = sick & ~(a & healed)
    return Sample(x, a.astype(dtype), jnp.where(shows_sick[:, None], sick_image, healthy_image))


def _bernoulli(key, log_odds):
    return jax.random.bernoulli(key, jax.nn.sigmoid(log_odds))


def _number(name: str, value):
    """One finite number; integers, which compiled programs bound, as floats."""
    if isinstance(value, (jax.Array, np.ndarray)):
        checks.check_shape(name, value, ())
    checks.check_scalar(name, value)
    checks.check_finite(name, value)
    return float(value) if isinstance(value, int) else value


def _slopes(name, value, p):
    if isinstance(value, (jax.Array, np.ndarray)) and value.ndim:
        checks.check_array(name, value, (p,))
        checks.check_finite(name, value)
        return jnp.asarray(value, float)
    return jnp.broadcast_to(jnp.asarray(_number(name, value), float), (p,))


def digits_pools(num_components: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Features of handwritten threes (healthy) and eights (sick) from scikit-learn's digits.

    A stand-in for pathology images: 8 x 8 pixels, standardised, first principal components of both
    classes together. The pools are the population that a trial draws from, so nothing is held out.

    Args:
        num_components: principal components kept.

    Returns:
        Pools of shape (183, num_components) and (174, num_components), float64.
    """
    from sklearn.datasets import load_digits

    images, labels = map(np.asarray, load_digits(return_X_y=True))
    chosen = np.isin(labels, (3, 8))
    features = principal_components(images[chosen], num_components)
    return features[labels[chosen] == 3], features[labels[chosen] == 8]


def principal_components(table: np.ndarray, num_components: int) -> np.ndarray:
    """Scores of the leading principal components of the standardised columns.

    The sign of a component is such that its largest loading is positive. Memory: the table in
    float64 twice, and one square matrix of its columns.

    Args:
        table: one row an image or embedding; constant columns are dropped.
        num_components: how many to keep.

    Raises:
        ValueError: more components than rows or varying columns, or NaN.

    >>> import numpy as np
    >>> principal_components(np.array([[0.0, 5.0], [1.0, 5.0]]), 1)
    array([[-1.], [ 1.]])
    """
    table = checks.as_numbers("table", table).astype(np.float64)
    checks.check_shape("table", table, (None, None))
    checks.check_min_rows("table", table, 1)
    checks.check_finite("table", table)
    spread = table.std(0)
    standard = (table - table.mean(0))[:, spread > 0] / spread[spread > 0]
    checks.check_integer("num_components", num_components, low=1, high=min(standard.shape))
    loadings = np.linalg.eigh(standard.T @ standard)[1][:, ::-1][:, :num_components]
    largest = loadings[np.abs(loadings).argmax(0), np.arange(num_components)]
    return standard @ (loadings * np.sign(largest))


def block_means(images: np.ndarray) -> np.ndarray:
    """Means over 8 x 8 blocks of pixels, one row an image: features without any weights."""
    checks.check_array("images", images, (None, None, None, None))
    n, height, width, channels = images.shape
    blocks = images[:, : height // 8 * 8, : width // 8 * 8]
    blocks = blocks.reshape(n, height // 8, 8, width // 8, 8, channels)
    return blocks.mean((2, 4)).reshape(n, -1)


def load_pcam(
    path: str | os.PathLike,
    *,
    split: str = "train",
    embed: Callable[[np.ndarray], Any] = block_means,
    num_components: int = 10,
    max_images: int | None = None,
    batch_size: int = 512,
) -> tuple[np.ndarray, np.ndarray]:
    """Pools of healthy and metastatic patches of PatchCamelyon.

    Reads either the published pair `camelyonpatch_level_2_split_{split}_{x,y}.h5` in the folder
    `path` (keys "x", uint8 of shape (N, 96, 96, 3), and "y", of shape (N, 1, 1, 1)), or precomputed
    embeddings: `path` is then an `.npy` file of shape (N, k), with its labels beside it in
    `<name>_labels.npy`. Either is reduced to principal components of both classes together.

    Args:
        path: folder of the HDF5 pair, or the `.npy` file of embeddings.
        split: "train", "valid" or "test".
        embed: a batch of uint8 images to one row of features each, for example a ResNet-18
            without its last layer as in the paper.
        num_components: principal components kept.
        max_images: read only that many leading images.
        batch_size: images in memory at a time.

    Returns:
        Features of label 0 and of label 1, float64.

    Raises:
        FileNotFoundError: a file is missing.
        ImportError: HDF5 files need h5py.
        ValueError: a wrong key, shape, dtype or label, data that lies in another file, or more
            features than fit the size bound.
    """
    checks.check_choice("split", split, ("train", "valid", "test"))
    checks.check_callable("embed", embed)
    if not isinstance(path, (str, os.PathLike)):
        raise ValueError(f"path: expected the path of a file or folder, got {type(path).__name__}")
    path = Path(path)
    checks.check_integer("batch_size", batch_size, low=1)
    if max_images is not None:
        checks.check_integer("max_images", max_images, low=2)
    if path.suffix == ".npy":
        table, labels = _embedded(path, max_images)
    else:
        table, labels = _embed_patches(path, split, embed, max_images, batch_size)
    checks.check_binary("labels", labels)
    features = principal_components(table, num_components)
    return features[labels == 0], features[labels == 1]


def _embedded(path: Path, max_images: int | None):
    table, labels = _open_array(path), _open_array(path.with_name(f"{path.stem}_labels.npy"))
    checks.check_shape("embeddings", table, (None, None))
    checks.check_shape("labels", labels, (table.shape[0],))
    if not np.issubdtype(table.dtype, np.floating):
        raise ValueError(f"embeddings: expected floating point numbers, got {table.dtype}")
    _check_size("embeddings", min(len(table), max_images or len(table)), table.shape[1])
    return np.asarray(table[:max_images], np.float64), np.asarray(labels[:max_images])


def _open_array(path: Path) -> np.ndarray:
    """Maps an `.npy` file without reading it; pickled objects are refused."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path.name}: expected an array in .npy format, got {error}") from error


def _embed_patches(path: Path, split: str, embed, max_images: int | None, batch_size: int):
    try:
        import h5py
    except ImportError as error:
        raise ImportError('h5py is not installed: pip install "jaxicml[data]"') from error

    stem = path / f"camelyonpatch_level_2_split_{split}"
    with _open_hdf5(h5py, f"{stem}_x.h5") as x, _open_hdf5(h5py, f"{stem}_y.h5") as y:
        patches, targets = _dataset(h5py, x, "x"), _dataset(h5py, y, "y")
        checks.check_shape("x", patches, (None, None, None, 3))
        checks.check_shape("y", targets, (patches.shape[0], 1, 1, 1))
        if patches.dtype != np.uint8:
            raise ValueError(f"x: expected uint8 pixels, got {patches.dtype}")
        count = min(patches.shape[0], max_images or patches.shape[0])
        _check_size("one batch", batch_size, int(np.prod(patches.shape[1:])))
        batches = []
        for start in range(0, count, batch_size):
            images = patches[start : min(start + batch_size, count)]
            features = checks.as_numbers("embed(images)", embed(images)).astype(np.float64)
            checks.check_shape("embed(images)", features, (len(images), None))
            _check_size("features", count, features.shape[1])
            batches.append(features)
        checks.check_integer("images", count, low=2)
        return np.concatenate(batches), np.asarray(targets[:count]).reshape(-1)


def _open_hdf5(h5py, file: str):
    if not Path(file).is_file():
        raise FileNotFoundError(f"{file}: no such file")
    try:
        return h5py.File(file, "r")
    except OSError as error:
        raise ValueError(f"{Path(file).name}: expected an HDF5 file, got {error}") from error


def _dataset(h5py, file, name: str) -> Any:
    """A data set that lies in the file itself: others may point to any file of the machine."""
    checks.check_known("key", name, file)
    is_here = isinstance(file.get(name, getlink=True), h5py.HardLink)
    data = file[name] if is_here else None
    if data is None or not hasattr(data, "is_virtual") or data.is_virtual or data.external:
        raise ValueError(f"{name}: expected a data set within the file, got a link or a group")
    return data


def _check_size(name: str, rows: int, columns: int) -> None:
    size = rows * columns * 8
    if size > MAX_POOL_BYTES:
        raise ValueError(
            f"{name}: expected at most {MAX_POOL_BYTES / 2**30:g} GiB as float64, got "
            f"{size / 2**30:.3g} GiB; lower max_images or batch_size, or use fewer features"
        )
