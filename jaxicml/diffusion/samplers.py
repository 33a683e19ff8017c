"""Samplers: from noise to data along a grid of levels, each one a single `lax.scan`.

One step goes from level t to the next, less noisy one (primed). With x_t = a x_0 + b ε, the
prediction of the network as x̂_0 and ε̂, α = ᾱ/ᾱ', β = 1 − α and z standard normal:

    DDPM         x' = (x + β s) / √α + sd z          s = (a x̂_0 − x) / b² the score
                    = (a' β x̂_0 + √α b'² x) / b² + sd z
    DDIM(η)      x' = a' x̂_0 + √(b'² − s²) ε̂ + s z    s = η (b'/b) √β
    DPM++ 2M     x' = (b'/b) x + a' (1 − e^−h) D      h = λ' − λ, λ = log(a/b),
                 D  = x̂_0 + h/(2 h_previous) (x̂_0 − x̂_0 of the previous step)
    Euler        x' = x̂_0 + σ' ε̂                      x = x_0 + σ ε, dx/dσ = ε̂
    Heun         x' = x + (σ' − σ) (ε̂ + ε̂ at Euler's x') / 2

DDPM's mean is E[x' | x] by Tweedie, also on a strided grid; its second form stays finite at zero
signal. DPM++ takes its first and last step with D = x̂_0, Heun its last one as Euler where σ' = 0;
DDIM, DPM++ and Euler return exactly x̂_0 from a last step to no noise.

The network is `denoise(x, t, carry) -> (out, carry)`: t is the timestep as an integer scalar, or σ
for Euler and Heun; `carry` is any pytree, handed from call to call (state of a network, a counter
into per-step embeddings) and returned at the end. `hook(x, info, carry) -> (x, carry)` sees every
new x, as blending and inpainting need. States keep the dtype of `x`; half precisions are computed
in float32 inside a step. NaN is not looked for: it arrives in the result.

References:
    Ho, Jain, Abbeel, "Denoising diffusion probabilistic models", 2020, arXiv 2006.11239. Song,
    Meng, Ermon, "Denoising diffusion implicit models", 2021, arXiv 2010.02502. Lu et al.,
    "DPM-Solver++: fast solver for guided sampling of diffusion probabilistic models", 2022, arXiv
    2211.01095. Karras et al., "Elucidating the design space of diffusion-based generative models",
    2022, arXiv 2206.00364.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Real

from jaxicml import checks
from jaxicml.diffusion import parameterization as P
from jaxicml.diffusion import schedules
from jaxicml.types import Key, Scalar

__all__ = [
    "Denoise",
    "Hook",
    "SampleResult",
    "StepInfo",
    "sample_ddim",
    "sample_ddpm",
    "sample_dpmpp_2m",
    "sample_euler",
    "sample_heun",
]

Denoise = Callable[[Array, Array, Any], tuple[Array, Any]]
"""A network: `denoise(x, t, carry) -> (out, carry)`."""


class StepInfo(NamedTuple):
    """What a hook learns of the step that was just taken."""

    index: Int[Array, ""]
    """Number of the step, from 0."""
    t: Real[Array, ""]
    """What the network saw: timestep or σ."""
    a: Float[Array, ""]
    """Signal before the step."""
    b: Float[Array, ""]
    """Noise before the step."""
    next_a: Float[Array, ""]
    """Signal of the new x."""
    next_b: Float[Array, ""]
    """Noise of the new x."""
    last: Bool[Array, ""]
    """Whether no step follows."""
    x0: Float[Array, "..."]
    """Predicted data."""
    eps: Float[Array, "..."]
    """Predicted noise."""


Hook = Callable[[Array, StepInfo, Any], tuple[Array, Any]]
"""Changes each new x: `hook(x, info, carry) -> (x, carry)`."""


class SampleResult(NamedTuple):
    """Where a sampler ended."""

    x: Float[Array, "..."]
    """The sample."""
    carry: Any
    """The network's carry after the last call."""
    trajectory: Float[Array, "levels ..."] | None
    """The start and the x after each step, when asked for."""


def sample_ddpm(
    key: Key,
    denoise: Denoise,
    x: Float[Array, "*shape"],
    schedule: schedules.Schedule,
    timesteps: Int[Array, " steps"] | None = None,
    *,
    variance: schedules.Variance = "posterior",
    sigma2: Scalar = 0.0,
    prediction: P.Prediction = "eps",
    last: Literal["mean", "noise", "stop"] = "mean",
    hook: Hook | None = None,
    carry: Any = None,
    trajectory: bool = False,
) -> SampleResult:
    """Ancestral sampling: the mean of x' given x, plus noise.

    Args:
        key: random key.
        denoise: the network.
        x: start, at the level of the first timestep.
        schedule: the forward process.
        timesteps: descending indices; all of them by default.
        variance: rule for the variance of a step, see `schedules`.
        sigma2: variance of a component, for the rule "component".
        prediction: what the output of the network means.
        last: what the step below the last timestep does: its mean alone (Ho et al.), mean and noise
            by the rule, or nothing ("stop": the result keeps the noise of the last timestep).
        hook: called on every new x.
        carry: handed to the first call of the network.
        trajectory: whether to keep every x.

    Returns:
        The sample, the carry and, when asked for, every x.

    Raises:
        ValueError: unknown options, timesteps that are not descending indices, a negative
            `sigma2`, or "upper" from a level without signal, where it is infinite.

    >>> from jaxicml.diffusion import schedules
    >>> point_mass = lambda x, t, carry: (jnp.full_like(x, 3.0), carry)
    >>> start = jax.random.normal(jax.random.key(0), (2,))
    >>> sample_ddpm(
    ...     jax.random.key(1), point_mass, start, schedules.linear(50), prediction="x0"
    ... ).x
    Array([3., 3.], dtype=float32)
    """
    checks.check_choice("variance", variance, get_args(schedules.Variance))
    checks.check_choice("last", last, ["mean", "noise", "stop"])
    levels = schedules.grid(schedule, timesteps)
    if last == "stop":
        checks.check_min_rows("timesteps, for last='stop'", levels.timesteps, 2)
        levels = schedules.Grid(*(table[:-1] for table in levels))
    rows = _rows(x, levels, prediction)
    if variance == "upper":
        checks.check_below("betas, under the variance 'upper'", levels.betas, 1.0)
    variances = schedules.transition_variance(
        levels.betas, levels.log_abar[:-1], levels.log_abar[1:], variance, sigma2
    )
    if last == "mean":
        variances = variances.at[-1].set(0)
    b2, next_b2 = levels.noise[:-1] ** 2, levels.noise[1:] ** 2
    of_x0 = levels.signal[1:] * levels.betas / b2
    of_x = jnp.sqrt(1 - levels.betas) * next_b2 / b2
    table = *_cast(x, (of_x0, of_x, jnp.sqrt(variances))), jax.random.split(key, len(b2))

    def update(x, info, row, memory, carry):
        of_x0, of_x, deviation, step_key = row
        z = jax.random.normal(step_key, x.shape, x.dtype)
        return of_x0 * info.x0 + of_x * x + deviation * z, memory, carry

    return _scan(denoise, x, rows, table, update, prediction, hook, carry, trajectory)


def sample_ddim(
    denoise: Denoise,
    x: Float[Array, "*shape"],
    schedule: schedules.Schedule,
    timesteps: Int[Array, " steps"] | None = None,
    *,
    eta: Scalar = 0.0,
    key: Key | None = None,
    prediction: P.Prediction = "eps",
    hook: Hook | None = None,
    carry: Any = None,
    trajectory: bool = False,
) -> SampleResult:
    """DDIM: deterministic at η = 0, DDPM with the variance "posterior" at η = 1.

    Args:
        denoise: the network.
        x: start, at the level of the first timestep.
        schedule: the forward process.
        timesteps: descending indices; all of them by default.
        eta: share of noise η in [0, 1].
        key: random key; without one, η must be 0.
        prediction: what the output of the network means.
        hook: called on every new x.
        carry: handed to the first call of the network.
        trajectory: whether to keep every x.

    Returns:
        The sample, the carry and, when asked for, every x.

    Raises:
        ValueError: an unknown prediction, timesteps that are not descending indices, η outside
            [0, 1], or noise without a key.

    >>> from jaxicml.diffusion import schedules
    >>> standard_normal = lambda x, t, carry: (jnp.zeros_like(x), carry)  # v of N(0, 1)
    >>> start, made = jnp.array([1.0, -2.0]), schedules.linear(1000)
    >>> sample_ddim(standard_normal, start, made, made.timesteps(500), prediction="v").x
    Array([ 0.9963, -1.9926], dtype=float32)
    """
    checks.check_scalar("eta", eta)
    checks.check_range("eta", eta, 0.0, 1.0)
    if checks.is_traced(eta) or eta != 0:
        checks.check_given("key", key, "where eta may differ from 0")
    levels = schedules.grid(schedule, timesteps)
    b, next_b = levels.noise[:-1], levels.noise[1:]
    share = jnp.asarray(eta, b.dtype) ** 2 * levels.betas / b**2
    table = _cast(x, (levels.signal[1:], next_b * _root(1 - share), next_b * _root(share)))
    keys = None if key is None else jax.random.split(key, len(b))

    def update(x, info, row, memory, carry):
        (of_x0, of_eps, deviation), step_key = row
        new = of_x0 * info.x0 + of_eps * info.eps
        if step_key is not None:
            new = new + deviation * jax.random.normal(step_key, x.shape, x.dtype)
        return new, memory, carry

    rows = _rows(x, levels, prediction)
    return _scan(denoise, x, rows, (table, keys), update, prediction, hook, carry, trajectory)


def sample_dpmpp_2m(
    denoise: Denoise,
    x: Float[Array, "*shape"],
    schedule: schedules.Schedule,
    timesteps: Int[Array, " steps"] | None = None,
    *,
    prediction: P.Prediction = "eps",
    hook: Hook | None = None,
    carry: Any = None,
    trajectory: bool = False,
) -> SampleResult:
    """DPM-Solver++(2M): second order with one call of the network a step.

    Args:
        denoise: the network.
        x: start, at the level of the first timestep.
        schedule: the forward process.
        timesteps: descending indices; all of them by default.
        prediction: what the output of the network means.
        hook: called on every new x.
        carry: handed to the first call of the network.
        trajectory: whether to keep every x.

    Returns:
        The sample, the carry and, when asked for, every x.

    Raises:
        ValueError: an unknown prediction, or timesteps that are not descending indices.

    >>> from jaxicml.diffusion import schedules
    >>> point_mass = lambda x, t, carry: (jnp.full_like(x, 3.0), carry)
    >>> made = schedules.linear(1000)
    >>> sample_dpmpp_2m(point_mass, jnp.zeros(2), made, made.timesteps(5), prediction="x0").x
    Array([3., 3.], dtype=float32)
    """
    levels = schedules.grid(schedule, timesteps)
    half_log_snr = levels.log_abar / 2 - jnp.log(levels.noise)
    h = jnp.diff(half_log_snr)
    inner = jnp.zeros_like(h).at[1:-1].set(h[1:-1] / (2 * h[:-2]))
    of_x, of_x0 = levels.noise[1:] / levels.noise[:-1], levels.signal[1:] * -jnp.expm1(-h)
    table = _cast(x, (of_x, of_x0, inner))

    def update(x, info, row, before, carry):
        of_x, of_x0, extrapolation = row
        best = info.x0 + extrapolation * (info.x0 - before)
        return of_x * x + of_x0 * best, info.x0, carry

    rows, memory = _rows(x, levels, prediction), jnp.zeros(x.shape, _wide(x))
    return _scan(denoise, x, rows, table, update, prediction, hook, carry, trajectory, memory)


def sample_euler(
    denoise: Denoise,
    x: Float[Array, "*shape"],
    sigmas: Float[Array, " levels"],
    *,
    prediction: P.Prediction = "x0",
    hook: Hook | None = None,
    carry: Any = None,
    trajectory: bool = False,
) -> SampleResult:
    """Euler's method on dx/dσ = (x − x̂_0)/σ, first order.

    Args:
        denoise: the network, of x = x_0 + σ ε and σ.
        x: start, x_0 + σ ε at the first level.
        sigmas: descending levels, the last one may be 0 (`schedules.karras`).
        prediction: what the output of the network means; not "v".
        hook: called on every new x.
        carry: handed to the first call of the network.
        trajectory: whether to keep every x.

    Returns:
        The sample, the carry and, when asked for, every x.

    Raises:
        ValueError: fewer than two levels, levels that are negative or not descending, or a
            prediction of v, which belongs to a² + b² = 1.

    >>> from jaxicml.diffusion import schedules
    >>> standard_normal = lambda x, sigma, carry: (x / (1 + sigma**2), carry)
    >>> sample_euler(standard_normal, jnp.array([80.0]), schedules.karras(200)).x
    Array([0.9871], dtype=float32)
    """
    rows = _sigma_rows(x, sigmas, prediction)

    def update(x, info, row, memory, carry):
        return info.x0 + info.next_b * info.eps, memory, carry

    return _scan(denoise, x, rows, None, update, prediction, hook, carry, trajectory)


def sample_heun(
    denoise: Denoise,
    x: Float[Array, "*shape"],
    sigmas: Float[Array, " levels"],
    *,
    prediction: P.Prediction = "x0",
    hook: Hook | None = None,
    carry: Any = None,
    trajectory: bool = False,
) -> SampleResult:
    """Heun's method on dx/dσ = (x − x̂_0)/σ, second order with two calls a step.

    The step to σ = 0 is Euler's, with one call.

    Args:
        denoise: the network, of x = x_0 + σ ε and σ.
        x: start, x_0 + σ ε at the first level.
        sigmas: descending levels, the last one may be 0 (`schedules.karras`).
        prediction: what the output of the network means; not "v".
        hook: called on every new x; its `info` holds the first of the two predictions.
        carry: handed to the first call of the network.
        trajectory: whether to keep every x.

    Returns:
        The sample, the carry and, when asked for, every x.

    Raises:
        ValueError: fewer than two levels, levels that are negative or not descending, or a
            prediction of v, which belongs to a² + b² = 1.

    >>> from jaxicml.diffusion import schedules
    >>> standard_normal = lambda x, sigma, carry: (x / (1 + sigma**2), carry)
    >>> sample_heun(standard_normal, jnp.array([80.0]), schedules.karras(200)).x
    Array([1.0002], dtype=float32)
    """
    rows = _sigma_rows(x, sigmas, prediction)

    def update(x, info, _, memory, carry):
        def corrected(carry):
            out, carry = denoise(euler.astype(dtype), info.next_b, carry)
            next_eps = P.to_eps(out.astype(x.dtype), euler, 1.0, info.next_b, prediction)
            return x + (info.next_b - info.b) * (info.eps + next_eps) / 2, carry

        euler = info.x0 + info.next_b * info.eps
        last = lambda carry: (euler, carry)
        new, carry = jax.lax.cond(info.next_b > 0, corrected, last, carry)
        return new, memory, carry

    dtype = x.dtype
    return _scan(denoise, x, rows, None, update, prediction, hook, carry, trajectory)


def _scan(denoise, x, rows, table, update, prediction, hook, carry, trajectory, memory=None):
    """Runs `update(x, info, row of the table, memory, carry)` over the rows of `StepInfo`."""
    dtype, wide = x.dtype, _wide(x)

    def step(state, inputs):
        x, carry, memory = state
        known, row = inputs
        _, t, a, b, *_ = known
        out, carry = denoise(x, t, carry)
        x, out = x.astype(wide), out.astype(wide)
        x0, eps = (to(out, x, a, b, prediction) for to in (P.to_x0, P.to_eps))
        info = StepInfo._make((*known, x0, eps))
        new, memory, carry = update(x, info, row, memory, carry)
        new = new.astype(dtype)
        if hook is not None:
            new, carry = hook(new, info, carry)
            new = new.astype(dtype)
        return (new, carry, memory), new if trajectory else None

    (end, carry, _), visited = jax.lax.scan(step, (x, carry, memory), (rows, table))
    path = None if visited is None else jnp.concatenate([x[None], visited])
    return SampleResult(end, carry, path)


def _rows(x, levels: schedules.Grid, prediction):
    """The fields of `StepInfo` that are known before the run, one entry a step."""
    P.check_dtype("x", x)
    P.check_prediction(prediction)
    a, b = _cast(x, (levels.signal, levels.noise))
    index = jnp.arange(len(b) - 1)
    return index, levels.timesteps, a[:-1], b[:-1], a[1:], b[1:], index == index[-1]


def _sigma_rows(x, sigmas, prediction):
    """Likewise for x = x_0 + σ ε."""
    P.check_dtype("x", x)
    checks.check_choice("prediction", prediction, ["eps", "x0", "score"])
    checks.check_shape("sigmas", sigmas, (None,))
    checks.check_min_rows("sigmas", sigmas, 2)
    checks.check_range("sigmas", sigmas, 0.0, float("inf"))
    checks.check_descending("sigmas", sigmas)
    sigmas = _cast(x, sigmas)
    index, one = jnp.arange(len(sigmas) - 1), jnp.ones_like(sigmas[1:])
    return index, sigmas[:-1], one, sigmas[:-1], one, sigmas[1:], index == index[-1]


def _wide(x):
    """The dtype in which a step is computed."""
    return jnp.promote_types(x.dtype, jnp.float32)


def _cast(x, tables):
    return jax.tree.map(lambda table: table.astype(_wide(x)), tables)


def _root(square):
    """√ of what rounding may have made negative; no infinite slope at 0."""
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), 0)
