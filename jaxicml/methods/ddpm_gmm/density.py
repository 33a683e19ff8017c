"""The exact law of a diffusion sampler on the line, by propagating its density.

Each step of DDPM, DDIM(η) or Langevin is  y = m_t(x) + sd_t z,  m_t(x) = scale_t x + gain_t s_t(x).
The log density on a uniform grid goes through the map,
    f(y) = q(x) / m'(x)  at  x = m⁻¹(y),
by cubic Hermite interpolation of (m(x), log q − log m'), and then through the Gaussian, as a
product in Fourier space. With an exact score m' = √α_t Var(X_{t-1} | X_t = x) / (1 − α_t) > 0, so
that DDPM's map is monotone; where a perturbed score makes it fold, the step is a dense quadrature
    q'(y) = ∫ q(x) N(y; m(x), sd²) dx.
What is lost shows as mass that differs from one: `mass` is the largest deviation over the steps.

Cost per step: O(n log n) for n grid points, O(n²) where the map folds.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxicml import checks
from jaxicml.diffusion.gmm import GMM
from jaxicml.diffusion.mixture import gmm_log_prob, gmm_score
from jaxicml.diffusion.schedules import Schedule, Variance, reverse_variance
from jaxicml.types import Scalar

__all__ = [
    "DensityResult",
    "LineSteps",
    "check_shared_variance",
    "compare_densities",
    "ddim_steps",
    "ddpm_steps",
    "line_grid",
    "output_density_1d",
    "output_law",
    "propagate_density",
]

MASS_TOLERANCE = 1e-6
"""Largest deviation of the mass from one that a law may show."""

_POINTS_PER_SIGMA = 15
_POINTS = 2001
_MOST_POINTS = 200_001
_FLOOR = 1e-18
"""Relative to the maximum: below it, what Fourier space returns is rounding."""


class LineSteps(NamedTuple):
    """Steps y = scale x + gain s(x) + sd z in the order in which they are taken.

    Attributes:
        scale: factor of x.
        gain: factor of the score.
        abar: ᾱ at which the score is taken.
        noise: √(1 − ᾱ) there.
        sd: standard deviation of the noise added.
    """

    scale: Float[Array, " steps"]
    gain: Float[Array, " steps"]
    abar: Float[Array, " steps"]
    noise: Float[Array, " steps"]
    sd: Float[Array, " steps"]


class DensityResult(NamedTuple):
    """A sampler's output law q beside its target p.

    Attributes:
        grid: points, in units of x.
        log_q: log density of the output, in nats.
        log_p: log density of X_1, in nats.
        tv: total variation between them.
        kl: KL(q ‖ p) in nats.
        w2: Wasserstein-2 distance, in units of x.
        mass: largest deviation of the mass of q from one over the steps.
        valid: whether that is within 1e-6, the grid fine enough, and the variance rule applies.
    """

    grid: Float[Array, " n"]
    log_q: Float[Array, " n"]
    log_p: Float[Array, " n"]
    tv: Float[Array, ""]
    kl: Float[Array, ""]
    w2: Float[Array, ""]
    mass: Float[Array, ""]
    valid: Bool[Array, ""]


def output_density_1d(
    g: GMM,
    schedule: Schedule,
    variance: Variance,
    *,
    n_grid: int | None = None,
    score_perturb: Callable[[Array, Array], Array] | None = None,
    throw: bool = False,
) -> DensityResult:
    """The exact law of DDPM's output Y_1 against that of X_1, on the line.

    Args:
        g: target, one-dimensional, with one σ² for all components.
        schedule: T noise levels; float64 is wanted.
        variance: reverse variance, as in `reverse_variance`.
        n_grid: grid points over ±(max|μ| + 8); at least 15 to the smallest σ of x_1. None takes
            as many as that needs and at least 2001.
        score_perturb: (x of shape (n, 1), index of the noise level) -> what is added to the score.
        throw: raise where mass is lost (not under `jit`).

    Returns:
        Densities, distances and the mass lost.

    Raises:
        ValueError: another dimension than one, "component" with unequal variances, too coarse a
            grid, or, with `throw`, mass lost above 1e-6.

    >>> import jax, jax.numpy as jnp
    >>> from jaxicml.diffusion import gmm, schedules
    >>> with jax.enable_x64(True):
    ...     g = gmm.gaussian_mixture(jnp.ones(2) / 2, jnp.array([[-2.0], [2.0]]), 0.25)
    ...     law = output_density_1d(g, schedules.theory(50), "component")
    >>> law.tv
    Array(0.0349, dtype=float64)
    """
    checks.check_choice("variance", variance, get_args(Variance))
    grid = line_grid(g, schedule, n_grid)
    if variance == "component":
        check_shared_variance(g)
    result = _output_density(g, schedule, grid, variance, score_perturb)
    if throw:
        checks.check_range("mass lost by the propagated density", result.mass, 0, MASS_TOLERANCE)
    return result


@partial(jax.jit, static_argnames=("variance", "score_perturb"))
def _output_density(g, schedule, grid, variance, score_perturb) -> DensityResult:
    sigma2 = g.variances.ravel()[0]
    steps = ddpm_steps(schedule, variance, sigma2)

    def score(x, i):
        t = schedule.num_steps - 1 - i
        exact = gmm_score(g, x, schedule.abar[t], noise=schedule.noise[t])
        return exact if score_perturb is None else exact + score_perturb(x, t)

    law = output_law(g, schedule, grid, steps, score)
    # traced variances cannot be refused
    known = jnp.all(g.variances == sigma2) | (variance != "component")
    return law._replace(valid=law.valid & known)


def output_law(
    g: GMM,
    schedule: Schedule,
    grid: Float[Array, " n"],
    steps: LineSteps,
    score: Callable[[Array, Array], Array] | None = None,
) -> DensityResult:
    """The law of a Markov sampler that starts from N(0, 1), against that of X_1.

    Args:
        g: target, one-dimensional.
        schedule: T noise levels.
        grid: uniform points.
        steps: what the sampler does, in order.
        score: (x of shape (n, 1), index of the step) -> score; the exact one by default.

    Returns:
        Densities, distances and the mass lost.

    Raises:
        ValueError: another dimension than one, a grid that is no vector.
    """
    checks.check_shape("means", g.means, (None, 1))
    _check_grid(grid)
    grid = jnp.asarray(grid, jnp.result_type(grid, g.offsets, steps.scale))
    if score is None:
        score = lambda x, i: gmm_score(g, x, steps.abar[i], noise=steps.noise[i])
    start = -0.5 * grid**2 - 0.5 * jnp.log(2 * jnp.pi)
    log_q, mass = propagate_density(score, grid, start, steps)
    log_p = gmm_log_prob(g, grid[:, None], schedule.abar[0], noise=schedule.noise[0])
    tv, kl, w2 = compare_densities(grid, log_q, log_p)
    # the rounding of a spacing that just suffices
    fine = _points_needed(g, schedule, grid[-1]) <= grid.size + 0.5
    return DensityResult(grid, log_q, log_p, tv, kl, w2, mass, fine & (mass <= MASS_TOLERANCE))


def check_shared_variance(g: GMM) -> None:
    """Checks that all components have one σ², as the "component" rule needs.

    Raises:
        ValueError: they are not isotropic or differ.
    """
    checks.check_equal(
        'variances (for the "component" rule)',
        g.variances,
        "sample each component with its own variance, or choose another rule",
    )


def line_grid(g: GMM, schedule: Schedule, n_grid: int | None = None) -> Float[Array, " n"]:
    """The uniform grid over ±(max|μ| + 8).

    Args:
        g: one-dimensional target.
        schedule: T noise levels.
        n_grid: points; None takes as many as the smallest standard deviation of x_1 needs, at
            least 2001 (just these under `jit`, where the need is not known).

    Returns:
        The points, in units of x.

    Raises:
        ValueError: `g` is not one-dimensional, or the spacing exceeds a fifteenth of the
            smallest standard deviation of x_1, or would need more than 200,001 points.
    """
    checks.check_shape("means", g.means, (None, 1))
    reach = jnp.max(jnp.abs(g.means)) + 8
    needed = _points_needed(g, schedule, reach)
    if n_grid is None:
        checks.check_range("points needed for the smallest σ", needed, 0, _MOST_POINTS)
        n_grid = _POINTS if checks.is_traced(needed) else max(_POINTS, math.ceil(needed))
    checks.check_integer("n_grid", n_grid, low=64)
    checks.check_range("n_grid (points needed for the smallest σ)", needed, 0, n_grid)
    return jnp.linspace(-reach, reach, n_grid)


def _points_needed(g, schedule, reach):
    least = jnp.sqrt(jnp.min(g.variances) * schedule.abar[0] + schedule.noise[0] ** 2)
    return 1 + 2 * reach * _POINTS_PER_SIGMA / least


def ddpm_steps(schedule: Schedule, variance: Variance, sigma2: Scalar = 0.0) -> LineSteps:
    """DDPM from t = T to 2: y = (x + (1 − α_t) s_t(x)) / √α_t + sd_t z."""
    down = slice(None, 0, -1)
    beta = schedule.betas[down]
    root = jnp.sqrt(1 - beta)
    sd = jnp.sqrt(reverse_variance(schedule, variance, sigma2))[down]
    return LineSteps(1 / root, beta / root, schedule.abar[down], schedule.noise[down], sd)


def ddim_steps(schedule: Schedule, eta: Scalar = 0.0) -> LineSteps:
    """DDIM(η) from t = T to 1, where η = 0 is the Euler step of the probability flow.

    x' = a' x̂_0 + √(b'² − s²) ε + s z with x̂_0 = (x + b² s_t)/a, ε = −b s_t and
    s = η (b'/b) √(1 − ᾱ/ᾱ').

    Raises:
        ValueError: η outside [0, 1].
    """
    checks.check_scalar("eta", eta)
    checks.check_range("eta", eta, 0.0, 1.0)
    high, low = slice(None, 0, -1), slice(-2, None, -1)
    a, b = schedule.signal[high], schedule.noise[high]
    a2, b2 = schedule.signal[low], schedule.noise[low]
    sd = eta * b2 / b * jnp.sqrt(schedule.betas[high])
    gain = a2 * b**2 / a - jnp.sqrt(jnp.maximum(b2**2 - sd**2, 0)) * b
    return LineSteps(a2 / a, gain, schedule.abar[high], schedule.noise[high], sd)


def propagate_density(
    score: Callable[[Array, Array], Array],
    grid: Float[Array, " n"],
    log_q: Float[Array, " n"],
    steps: LineSteps,
) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """Takes a density through Markov steps.

    Args:
        score: (x of shape (n, 1), index of the step) -> score of shape (n, 1).
        grid: uniform points.
        log_q: log density of the start.
        steps: what is done, in order.

    Returns:
        The log density after the last step and the largest deviation of the mass from one.

    Raises:
        ValueError: a grid that is no vector, a density of another shape.
    """
    _check_grid(grid)
    checks.check_shape("log_q", log_q, grid.shape)
    h = (grid[-1] - grid[0]) / (grid.size - 1)
    frequencies = 2 * jnp.pi * jnp.fft.rfftfreq(2 * grid.size).astype(grid.dtype) / h

    def step(carry, inputs):
        log_q, worst = carry
        i, s = inputs
        at = lambda x: s.scale * x + s.gain * score(x[:, None], i)[:, 0]
        m, slope = jax.jvp(at, (grid,), (jnp.ones_like(grid),))
        pushed = lambda: _smoothed(_pushed(grid, h, log_q, m, slope), s.sd, frequencies)
        folded = lambda: _quadrature(grid, h, log_q, m, s.sd)
        # a deterministic map that folds has no density to smooth it: its mass will tell
        q = jax.lax.cond(jnp.all(slope > 0), pushed, folded)
        mass = h * q.sum()
        log_q = jnp.log(jnp.maximum(q, _FLOOR * q.max()))
        return (log_q, jnp.maximum(worst, jnp.abs(mass - 1))), None

    inputs = jnp.arange(steps.sd.size), steps
    (log_q, mass), _ = jax.lax.scan(step, (log_q, jnp.zeros((), grid.dtype)), inputs)
    return log_q, mass


def _check_grid(grid) -> None:
    checks.check_shape("grid", grid, (None,))
    checks.check_min_rows("grid", grid, 8)


def _pushed(grid, h, log_q, m, slope):
    """Density of m(x) on the grid, for x ~ q and increasing m; cubic Hermite in the logarithm."""
    value = log_q - jnp.log(slope)
    tangent = _derivative(value, h) / slope
    right = jnp.clip(jnp.searchsorted(m, grid), 1, grid.size - 1)
    left = right - 1
    width = m[right] - m[left]
    t = (grid - m[left]) / width
    inside = (t >= 0) & (t <= 1)
    t = jnp.clip(t, 0, 1)
    cubic = (
        value[left] * (1 + 2 * t) * (1 - t) ** 2
        + value[right] * t**2 * (3 - 2 * t)
        + width * t * (1 - t) * (tangent[left] * (1 - t) - tangent[right] * t)
    )
    return jnp.where(inside, jnp.exp(cubic), 0)


def _derivative(value, h):
    """Fourth-order differences inside, first order at the two ends."""
    inner = (8 * (value[3:-1] - value[1:-3]) - (value[4:] - value[:-4])) / (12 * h)
    ends = jnp.diff(value) / h
    return jnp.concatenate([ends[:2], inner, ends[-2:]])


def _smoothed(f, sd, frequencies):
    """Convolution with N(0, sd²): a product in Fourier space, padded so that nothing wraps."""
    spectrum = jnp.fft.rfft(f, 2 * f.size) * jnp.exp(-0.5 * (sd * frequencies) ** 2)
    return jnp.fft.irfft(spectrum, 2 * f.size)[: f.size]


def _quadrature(grid, h, log_q, m, sd):
    """∫ q(x) N(y; m(x), sd²) dx on the grid, whatever the map does."""
    z = (grid[:, None] - m[None, :]) / sd
    kernel = jnp.exp(log_q - 0.5 * z**2) / (jnp.sqrt(2 * jnp.pi) * sd)
    return h * kernel.sum(1)


def compare_densities(
    grid: Float[Array, " n"], log_q: Float[Array, " n"], log_p: Float[Array, " n"]
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """Total variation, KL(q ‖ p) and Wasserstein-2 between two densities on a uniform grid.

    Args:
        grid: uniform points.
        log_q: log density of one law.
        log_p: log density of the other.

    Returns:
        Total variation, KL in nats, W2 in units of the grid.

    Raises:
        ValueError: a grid that is no vector, densities of another shape.

    >>> import jax.numpy as jnp
    >>> x = jnp.linspace(-9, 9, 901)
    >>> normal = lambda mean: -0.5 * (x - mean) ** 2 - 0.5 * jnp.log(2 * jnp.pi)
    >>> tv, kl, w2 = compare_densities(x, normal(0.5), normal(0.0))
    >>> f"{tv:.4f} {kl:.4f} {w2:.3f}"  # 2Φ(1/4) − 1, 1/8, 1/2
    '0.1974 0.1250 0.500'
    """
    _check_grid(grid)
    checks.check_shape("log_q", log_q, grid.shape)
    checks.check_shape("log_p", log_p, grid.shape)
    h = (grid[-1] - grid[0]) / (grid.size - 1)
    q, p = jnp.exp(log_q), jnp.exp(log_p)
    tv = 0.5 * h * jnp.abs(q - p).sum()
    kl = h * jnp.sum(jnp.where(q > 0, q * (log_q - log_p), 0))
    return tv, kl, jnp.sqrt(_squared_w2(grid, h, q, p))


def _squared_w2(grid, h, q, p):
    """∫ q(x) (x − T(x))² dx with the monotone map T = F_p⁻¹ ∘ F_q."""
    below = lambda f: jnp.concatenate([jnp.zeros(1, f.dtype), jnp.cumsum((f[1:] + f[:-1]) / 2) * h])
    F_q, F_p = below(q), below(p)
    image = jnp.interp(F_q / F_q[-1], F_p / F_p[-1], grid)
    # beyond the last digits of a distribution function its inverse means nothing
    known = (F_q > 1e-12) & (F_q < F_q[-1] - 1e-12)
    return h * jnp.sum(jnp.where(known, q * (grid - image) ** 2, 0))
