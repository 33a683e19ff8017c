"""The exact law of DDPM in the plane, by propagating its density.

As on the line, with the map inverted by Newton's method: m_t is the gradient of a convex function
when the score is exact (its Jacobian is √α_t Cov(X_{t-1} | X_t) / (1 − α_t)), so that every point
has one preimage, and
    f(y) = q(x) / det Dm(x)  at  x = m⁻¹(y),    q' = f * N(0, sd² I).
The log density at x comes from six-point interpolation, the convolution from Fourier space. Cost
per step: O(n² (K + log n)) for n points an axis.
"""

import functools
import itertools
import math
import operator
from typing import NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxicml import checks
from jaxicml.diffusion.gmm import GMM
from jaxicml.diffusion.mixture import gmm_log_prob, gmm_score
from jaxicml.diffusion.schedules import Schedule, Variance
from jaxicml.methods.ddpm_gmm.density import MASS_TOLERANCE, check_shared_variance, ddpm_steps

__all__ = ["PlaneResult", "output_density_2d"]

_NEWTON_STEPS = 16
"""At most; short schedules, whose maps differ most from a line, need about eight."""

_POINTS_PER_SIGMA = 4
_GOOD_POINTS_PER_SIGMA = 9
"""Keeps the mass within 1e-6 over 400 steps."""
_POINTS = 256
_MOST_POINTS = 4096
_NODES = (-2, -1, 0, 1, 2, 3)
_FLOOR = 1e-18
_ROUGH = math.log(1e-13)
"""Relative to the largest log density."""


class PlaneResult(NamedTuple):
    """A sampler's output law q beside its target p, on a square grid.

    Attributes:
        axis: points of both axes, in units of x.
        log_q: log density of the output, in nats; first index along the first coordinate.
        log_p: log density of X_1, in nats.
        tv: total variation between them.
        kl: KL(q ‖ p) in nats.
        mass: largest deviation of the mass of q from one over the steps.
        valid: whether that is within 1e-6, and the variance rule applies.
    """

    axis: Float[Array, " n"]
    log_q: Float[Array, "n n"]
    log_p: Float[Array, "n n"]
    tv: Float[Array, ""]
    kl: Float[Array, ""]
    mass: Float[Array, ""]
    valid: Bool[Array, ""]


def output_density_2d(
    g: GMM,
    schedule: Schedule,
    variance: Variance,
    *,
    n_grid: int | None = None,
    throw: bool = False,
) -> PlaneResult:
    """The exact law of DDPM's output Y_1 against that of X_1, in the plane.

    Args:
        g: target, two-dimensional, with one σ² for all components.
        schedule: T noise levels; float64 is wanted.
        variance: reverse variance, as in `reverse_variance`.
        n_grid: points per axis over ±(max|μ| + 8); at least 4 to the smallest σ of x_1. None takes
            9 to it and at least 256 in all (just these under `jit`).
        throw: raise where mass is lost (not under `jit`).

    Returns:
        Densities, distances and the mass lost.

    Raises:
        ValueError: another dimension than two, "component" with unequal variances, too coarse a
            grid or one of more than 4096 points an axis, or, with `throw`, mass lost above 1e-6.
    """
    checks.check_shape("means", g.means, (None, 2))
    checks.check_choice("variance", variance, get_args(Variance))
    if variance == "component":
        check_shared_variance(g)
    reach = jnp.max(jnp.abs(g.means)) + 8
    least = jnp.sqrt(jnp.min(g.variances) * schedule.abar[0] + schedule.noise[0] ** 2)
    needed = 1 + 2 * reach * _POINTS_PER_SIGMA / least
    if n_grid is None:
        good = 1 + 2 * reach * _GOOD_POINTS_PER_SIGMA / least
        checks.check_range("points needed for the smallest σ", good, 0, _MOST_POINTS)
        n_grid = _POINTS if checks.is_traced(good) else max(_POINTS, math.ceil(good))
    checks.check_integer("n_grid", n_grid, low=32, high=_MOST_POINTS)
    checks.check_range("n_grid (points needed for the smallest σ)", needed, 0, n_grid)
    result = _output_density(g, schedule, jnp.linspace(-reach, reach, n_grid), variance)
    if throw:
        checks.check_range("mass lost by the propagated density", result.mass, 0, MASS_TOLERANCE)
    return result


@functools.partial(jax.jit, static_argnames="variance")
def _output_density(g, schedule, axis, variance) -> PlaneResult:
    n, h = axis.size, (axis[-1] - axis[0]) / (axis.size - 1)
    points = jnp.stack(jnp.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    frequencies = 2 * jnp.pi * jnp.fft.fftfreq(2 * n).astype(axis.dtype) / h
    steps = ddpm_steps(schedule, variance, g.variances.ravel()[0])

    def step(carry, s):
        log_q, worst = carry
        at = lambda x: s.scale * x + s.gain * gmm_score(g, x, s.abar, noise=s.noise)
        x, log_det = _preimage(at, points)
        value = jnp.exp(_interpolated(log_q, (x - axis[0]) / h) - log_det).reshape(n, n)
        q = _smoothed(value, s.sd, frequencies)
        log_q = jnp.log(jnp.maximum(q, _FLOOR * q.max()))
        return (log_q, jnp.maximum(worst, jnp.abs(h * h * q.sum() - 1))), None

    start = (-0.5 * jnp.sum(points**2, -1) - jnp.log(2 * jnp.pi)).reshape(n, n)
    (log_q, mass), _ = jax.lax.scan(step, (start, jnp.zeros((), axis.dtype)), steps)
    log_p = gmm_log_prob(g, points, schedule.abar[0], noise=schedule.noise[0]).reshape(n, n)
    q, p = jnp.exp(log_q), jnp.exp(log_p)
    tv = 0.5 * h * h * jnp.abs(q - p).sum()
    kl = h * h * jnp.sum(q * (log_q - log_p))
    # traced variances cannot be refused
    known = jnp.all(g.variances == g.variances.ravel()[0]) | (variance != "component")
    return PlaneResult(axis, log_q, log_p, tv, kl, mass, known & (mass <= MASS_TOLERANCE))


def _preimage(at, y):
    """X with m(x) = y by damped Newton steps, and log det Dm(x)."""

    def columns(x):
        first = jax.jvp(at, (x,), (jnp.zeros_like(x).at[:, 0].set(1),))
        second = jax.jvp(at, (x,), (jnp.zeros_like(x).at[:, 1].set(1),))
        return first[0], first[1], second[1]

    def step(state):
        x, _, count = state
        value, c1, c2 = columns(x)
        det = c1[:, 0] * c2[:, 1] - c1[:, 1] * c2[:, 0]
        rest = y - value
        move = jnp.stack(
            [c2[:, 1] * rest[:, 0] - c2[:, 0] * rest[:, 1],
             c1[:, 0] * rest[:, 1] - c1[:, 1] * rest[:, 0]], -1,
        ) / det[:, None]  # fmt: skip
        # far from a mode the Jacobian changes quickly: no step longer than one unit
        length = jnp.sqrt(jnp.sum(move**2, -1, keepdims=True))
        return x + move / jnp.maximum(length, 1), length.max(), count + 1

    # the error of the next step is the square of this one
    enough = jnp.sqrt(jnp.finfo(y.dtype).eps)
    going = lambda state: (state[1] > enough) & (state[2] < _NEWTON_STEPS)
    x, _, _ = jax.lax.while_loop(going, step, (y, jnp.full((), jnp.inf, y.dtype), 0))
    _, c1, c2 = columns(x)
    return x, jnp.log(
        jnp.maximum(c1[:, 0] * c2[:, 1] - c1[:, 1] * c2[:, 0], jnp.finfo(x.dtype).tiny)
    )


def _interpolated(table, at):
    """Six points along both axes, two where the table is rough; −∞ outside it."""
    n = table.shape[0]
    base = jnp.clip(jnp.floor(at).astype(int), 2, n - 4)
    node = lambda i, j: table[base[:, 0] + i, base[:, 1] + j]
    rough = _tensor_product({0: 1 - (t := jnp.clip(at - base, 0, 1)), 1: t}, node)
    smooth = _tensor_product(dict(zip(_NODES, _lagrange(at - base), strict=True)), node)
    least = functools.reduce(
        jnp.minimum, itertools.starmap(node, itertools.product(_NODES, _NODES))
    )
    # below the digits of the transform a polynomial would amplify the roughness from step to step
    value = jnp.where(least < table.max() + _ROUGH, rough, smooth)
    return jnp.where(jnp.all((at >= 0) & (at <= n - 1), -1), value, -jnp.inf)


def _tensor_product(weights, node):
    """Σ_ij w_i w_j table_ij, with a weight for either axis at each node."""
    pairs = itertools.product(weights, repeat=2)
    return sum(weights[i][:, 0] * weights[j][:, 1] * node(i, j) for i, j in pairs)


def _lagrange(t):
    """Weight of each node at t."""
    others = [[m for m in _NODES if m != node] for node in _NODES]
    return [
        functools.reduce(operator.mul, [(t - m) / (node - m) for m in rest])
        for node, rest in zip(_NODES, others, strict=True)
    ]


def _smoothed(f, sd, frequencies):
    """Convolution with N(0, sd² I): a product in Fourier space, padded so that nothing wraps."""
    n = f.shape[0]
    damping = jnp.exp(-0.5 * (sd * frequencies) ** 2)
    spectrum = jnp.fft.rfft2(f, (2 * n, 2 * n)) * damping[:, None] * damping[None, : n + 1]
    return jnp.fft.irfft2(spectrum, (2 * n, 2 * n))[:n, :n]
