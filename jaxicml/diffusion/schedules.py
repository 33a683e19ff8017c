"""Noise schedules of diffusion models and the variance of their reverse steps.

    x_t = √α_t x_{t−1} + √β_t w_t,   α_t = 1 − β_t,   ᾱ_t = Π_{s≤t} α_s
    x_t = a_t x_0 + b_t ε,           a_t = √ᾱ_t (signal),   b_t = √(1 − ᾱ_t) (noise)

Indices are 0-based: t = 0 is the first noisy level and t = T − 1 the last; the level below index 0
has ᾱ = `final_abar` (1: clean data). Tables are made on the host in float64, ᾱ from a cumulative
sum of log(1 − β) and b from expm1, so that small β and small noise keep their digits, and are then
rounded to the default float.

Going from level t to t' < t multiplies the signal by 1/√α with α = ᾱ_t/ᾱ_t' and β = 1 − α. Four
variances of the reverse step are in use, with v = ᾱσ² + 1 − ᾱ and v' the same at t':

    beta       β
    upper      β / α
    posterior  β (1 − ᾱ') / (1 − ᾱ)
    component  β v' / v

"posterior" is exact for a point mass and "component" for Gaussian components of variance σ²: given
its component, x_t' | x_t is Gaussian with exactly that variance. σ² = 0 makes it "posterior" and
σ² = 1 "beta".

References:
    Ho, Jain, Abbeel, "Denoising diffusion probabilistic models", 2020, arXiv 2006.11239 (linear).
    Nichol, Dhariwal, "Improved denoising diffusion probabilistic models", 2021, arXiv 2102.09672
    (cosine). Rombach et al., "High-resolution image synthesis with latent diffusion models", 2022,
    arXiv 2112.10752 (scaled linear). Karras et al., "Elucidating the design space of
    diffusion-based generative models", 2022, arXiv 2206.00364. Lin et al., "Common diffusion noise
    schedules and sample steps are flawed", 2023, arXiv 2305.08891 (zero terminal SNR, spacings).
    Li, Yan, "O(d/T) convergence theory for diffusion probabilistic models", 2024, arXiv 2409.18959
    (theory).
"""

import math
from typing import Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxicml import checks
from jaxicml.types import Scalar

__all__ = [
    "Grid",
    "Schedule",
    "Spacing",
    "Variance",
    "cosine",
    "from_betas",
    "grid",
    "karras",
    "linear",
    "reverse_variance",
    "scaled_linear",
    "theory",
    "transition_variance",
    "zero_snr",
]

Spacing = Literal["leading", "trailing", "linspace"]
"""How a few timesteps are spread over all of them."""

Variance = Literal["beta", "upper", "posterior", "component"]
"""Rule for the variance of a reverse step."""

Final = float | Literal["first"]
"""ᾱ below index 0: 1 for clean data, "first" to repeat ᾱ_0 (set_alpha_to_one=False elsewhere)."""


class Schedule(eqx.Module):
    """Tables of a variance-preserving forward process, index t = 0..T−1.

    Attributes:
        betas: β_t, the variance that step t adds.
        log_abar: log ᾱ_t; −∞ at the end of a zero-SNR schedule.
        abar: ᾱ_t.
        signal: a_t = √ᾱ_t.
        noise: b_t = √(1 − ᾱ_t).
        final_log_abar: log ᾱ of the level below index 0.
    """

    betas: Float[Array, " T"]
    log_abar: Float[Array, " T"]
    abar: Float[Array, " T"]
    signal: Float[Array, " T"]
    noise: Float[Array, " T"]
    final_log_abar: Float[Array, ""]

    @property
    def num_steps(self) -> int:
        """T, the number of levels."""
        return self.betas.shape[0]

    @property
    def final_abar(self) -> Float[Array, ""]:
        """ᾱ of the level below index 0."""
        return jnp.exp(self.final_log_abar)

    def timesteps(
        self, num: int, spacing: Spacing = "leading", steps_offset: int = 0
    ) -> Int[Array, " num"]:
        """A descending grid of `num` of the T timesteps, by the definitions of common pipelines.

        leading:  offset + ⌊T/num⌋ · (num − 1, ..., 1, 0)
        trailing: round(T − (T/num) · (0, 1, ..., num − 1)) − 1
        linspace: round of `num` equidistant points from T − 1 to 0
        Halves are rounded to even.

        Args:
            num: size of the grid.
            spacing: one of the three definitions.
            steps_offset: added to "leading" steps (1 in Stable Diffusion).

        Returns:
            Timesteps, the noisiest first.

        Raises:
            ValueError: more steps than the schedule has, an unknown spacing, or an offset that
                leaves the schedule or goes with another spacing than "leading".

        >>> linear(1000).timesteps(4, "leading", steps_offset=1)
        Array([751, 501, 251,   1], dtype=int32)
        """
        total = self.num_steps
        checks.check_integer("num", num, low=1, high=total)
        checks.check_choice("spacing", spacing, get_args(Spacing))
        stride = total // num
        room = total - 1 - stride * (num - 1) if spacing == "leading" else 0
        checks.check_integer(f"steps_offset ({spacing})", steps_offset, low=0, high=room)
        if spacing == "leading":
            steps = stride * np.arange(num)[::-1] + steps_offset
        elif spacing == "trailing":
            steps = np.round(total - total / num * np.arange(num)) - 1
        else:
            steps = np.linspace(0, total - 1, num).round()[::-1]
        return _constant(steps, int)


class Grid(NamedTuple):
    """The levels a sampler visits, the noisiest first; the last entry is the level below index 0.

    Attributes:
        timesteps: index of every level but the last.
        betas: 1 − ᾱ_t/ᾱ_t' of the step from each level to the next.
        log_abar: log ᾱ of the levels.
        signal: a of the levels.
        noise: b of the levels.
    """

    timesteps: Int[Array, " steps"]
    betas: Float[Array, " steps"]
    log_abar: Float[Array, " levels"]
    signal: Float[Array, " levels"]
    noise: Float[Array, " levels"]


def grid(schedule: Schedule, timesteps: Int[Array, " steps"] | None = None) -> Grid:
    """The levels of a descending set of timesteps, and the level below index 0 after them.

    Args:
        schedule: the forward process.
        timesteps: descending indices; all of them by default.

    Returns:
        One entry for each timestep and one more.

    Raises:
        ValueError: no timestep, or some that are no whole numbers, outside the schedule or not
            descending.

    >>> grid(linear(1000), jnp.array([999, 499])).signal
    Array([0.0064, 0.2803, 1.    ], dtype=float32)
    """
    total = schedule.num_steps
    full = timesteps is None
    if timesteps is None:
        timesteps = jnp.arange(total - 1, -1, -1)
    checks.check_array("timesteps", timesteps, (None,))
    checks.check_min_rows("timesteps", timesteps, 1)
    checks.check_integers("timesteps", timesteps)
    checks.check_range("timesteps", timesteps, 0.0, float(total - 1))
    checks.check_descending("timesteps", timesteps)
    timesteps, last = jnp.asarray(timesteps), schedule.final_log_abar
    log_abar = jnp.append(schedule.log_abar[timesteps], last)
    betas = -jnp.expm1(log_abar[:-1] - log_abar[1:])
    if full:  # the differences would lose digits that the table has
        betas = betas.at[:-1].set(schedule.betas[:0:-1])
    return Grid(
        timesteps,
        betas,
        log_abar,
        jnp.append(schedule.signal[timesteps], jnp.exp(last / 2)),
        jnp.append(schedule.noise[timesteps], jnp.sqrt(-jnp.expm1(last))),
    )


def reverse_variance(
    schedule: Schedule, kind: Variance, sigma2: Scalar = 0.0
) -> Float[Array, " T"]:
    """Variance of the reverse step from each index t to t − 1.

    Entry 0 is the step from index 0 to clean data (ᾱ' = 1): what each formula gives there, so 0
    under "posterior" and β_0 σ²/v_0 under "component".

    Args:
        schedule: the forward process.
        kind: the rule, see the table above.
        sigma2: variance σ² of a component, in squared data units; used by "component" alone.

    Returns:
        One variance per index; infinite under "upper" where the SNR is zero.

    Raises:
        ValueError: an unknown rule or a negative variance.

    >>> variances = reverse_variance(linear(1000), "posterior")
    >>> print(f"{variances[0]:.4f} {variances[1]:.3e} {variances[999]:.4f}")
    0.0000 5.453e-05 0.0200
    """
    log_abar = schedule.log_abar
    previous = jnp.concatenate([jnp.zeros(1, log_abar.dtype), log_abar[:-1]])
    return transition_variance(schedule.betas, log_abar, previous, kind, sigma2)


def transition_variance(
    betas: Float[Array, "..."],
    log_abar: Float[Array, "..."],
    next_log_abar: Float[Array, "..."],
    kind: Variance,
    sigma2: Scalar = 0.0,
) -> Float[Array, "..."]:
    """Variance of reverse steps between any two levels of a schedule.

    Args:
        betas: 1 − ᾱ/ᾱ' of each step, passed apart since the difference of logarithms has fewer
            digits.
        log_abar: log ᾱ before the step.
        next_log_abar: log ᾱ' after it, where there is less noise.
        kind: the rule, see the table above.
        sigma2: variance σ² of a component, used by "component" alone.

    Returns:
        Variances in the shape of `betas`.

    Raises:
        ValueError: an unknown rule or a negative variance.

    >>> half, quarter = jnp.log(0.5), jnp.log(0.25)
    >>> print(f"{transition_variance(jnp.array(0.5), quarter, half, 'component', 1.0):.4f}")
    0.5000
    """
    checks.check_choice("kind", kind, get_args(Variance))
    checks.check_scalar("sigma2", sigma2)
    checks.check_range("sigma2", sigma2, 0.0, math.inf)
    if kind == "beta":
        return betas
    if kind == "upper":
        return betas / (1 - betas)
    sigma2 = jnp.asarray(sigma2 if kind == "component" else 0.0, betas.dtype)
    within = lambda level: jnp.exp(level) * sigma2 - jnp.expm1(level)
    return betas * within(next_log_abar) / within(log_abar)


def linear(
    T: int = 1000, start: float = 1e-4, end: float = 0.02, *, final_abar: Final = 1.0
) -> Schedule:
    """β equidistant from `start` to `end` (Ho et al. 2020).

    Args:
        T: number of levels.
        start: first β.
        end: last β.
        final_abar: ᾱ below index 0, or "first" to repeat that of index 0.

    Returns:
        The schedule.

    Raises:
        ValueError: T below 2, a β outside (0, 1), or `final_abar` outside [ᾱ_0, 1].

    >>> print(f"{linear(1000).abar[-1]:.3e}")
    4.036e-05
    """
    checks.check_integer("T", T, low=2)
    _check_ends(start, end)
    return from_betas(np.linspace(start, end, T), final_abar=final_abar)


def scaled_linear(
    T: int = 1000, start: float = 8.5e-4, end: float = 0.012, *, final_abar: Final = 1.0
) -> Schedule:
    """√β equidistant: Stable Diffusion, which takes `final_abar="first"`.

    Args:
        T: number of levels.
        start: first β.
        end: last β.
        final_abar: ᾱ below index 0, or "first" to repeat that of index 0.

    Returns:
        The schedule.

    Raises:
        ValueError: T below 2, a β outside (0, 1), or `final_abar` outside [ᾱ_0, 1].

    >>> print(f"{scaled_linear().abar[-1]:.4e}")
    4.6601e-03
    """
    checks.check_integer("T", T, low=2)
    _check_ends(start, end)
    roots = np.linspace(math.sqrt(start), math.sqrt(end), T)
    return from_betas(roots**2, final_abar=final_abar)


def cosine(
    T: int, s: float = 0.008, max_beta: float = 0.999, *, final_abar: Final = 1.0
) -> Schedule:
    """ᾱ proportional to cos²(π/2 · (t/T + s)/(1 + s)), β at most `max_beta`.

    Args:
        T: number of levels.
        s: offset that keeps the first steps from being too small.
        max_beta: bound of β, reached at the end only.
        final_abar: ᾱ below index 0, or "first" to repeat that of index 0.

    Returns:
        The schedule.

    Raises:
        ValueError: T below 2, a negative offset, or a bound outside (0, 1).

    >>> print(f"{cosine(1000).betas[0]:.4e}")
    4.1284e-05
    """
    checks.check_integer("T", T, low=2)
    checks.check_range("s", s, 0.0, 1.0)
    checks.check_open_unit("max_beta", max_beta)
    angle = (np.arange(T + 1) / T + s) / (1 + s) * math.pi / 2
    here, there = angle[:-1], angle[1:]
    # cos²x − cos²y = sin(y + x) sin(y − x): no cancellation at the first steps
    betas = np.sin(there + here) * np.sin(there - here) / np.cos(here) ** 2
    return from_betas(np.minimum(betas, max_beta), final_abar=final_abar)


def theory(T: int, c0: float = 2.0, c1: float = 4.0) -> Schedule:
    """The schedule of convergence theory: β grows geometrically, then stays (Li & Yan 2024).

    β_1 = T^−c0 and β_{t+1} = r · min{β_1 (1 + r)^t, 1} with r = c1 log T / T (1-based), at most
    1 − 1e-4. Theory asks for constants that are large enough.

    Args:
        T: number of levels, up to 1e5 and beyond.
        c0: exponent of the first β.
        c1: rate of growth and level of the plateau.

    Returns:
        The schedule.

    Raises:
        ValueError: T below 2, constants that are not positive, or c1 log T / T of 1 or more (too
            few steps for c1; the default needs T of at least 9).

    >>> print(f"{theory(50).betas[-1]:.6f}")
    0.312962
    """
    checks.check_integer("T", T, low=2)
    checks.check_positive("c0", c0)
    checks.check_positive("c1", c1)
    rate = c1 * math.log(T) / T
    checks.check_below("c1 · log(T) / T", rate, 1.0)
    log_growth = np.minimum(np.arange(T) * math.log1p(rate) - c0 * math.log(T), 0)
    betas = rate * np.exp(log_growth)
    betas[0] = math.exp(-c0 * math.log(T))
    return from_betas(np.minimum(betas, 1 - 1e-4))


def zero_snr(schedule: Schedule) -> Schedule:
    """Shifts and scales √ᾱ so that the last level is pure noise and the first stays (Lin et al.).

    Args:
        schedule: known on the host, not traced.

    Returns:
        A schedule whose last ᾱ is 0 and last β is 1. Noise says nothing about the data there:
        predict v or x0 with it.

    Raises:
        ValueError: the tables are being traced.

    >>> zero_snr(linear(1000)).abar[jnp.array([0, 999])]
    Array([0.9999, 0.    ], dtype=float32)
    """
    checks.check_concrete("schedule", schedule.betas)
    # the β have their digits in float32 too; their products are formed again
    log_abar = _cumulative(np.asarray(schedule.betas, np.float64))
    signal = np.exp(log_abar / 2)
    share = (signal[:-1] - signal[-1]) / (signal[0] - signal[-1])
    betas = -np.expm1(np.diff(log_abar[0] + 2 * np.log(share), prepend=0.0))
    final = np.asarray(schedule.final_log_abar, np.float64)
    repeats_first = bool(final == np.asarray(schedule.log_abar)[0])
    return from_betas(
        np.append(betas, 1.0), final_abar="first" if repeats_first else float(np.exp(final))
    )


def from_betas(betas: Float[np.ndarray, " T"], *, final_abar: Final = 1.0) -> Schedule:
    """The schedule with given β.

    Args:
        betas: variance that each step adds, on the host; only the last may be 1.
        final_abar: ᾱ below index 0, or "first" to repeat that of index 0.

    Returns:
        The schedule, in the default float.

    Raises:
        ValueError: fewer than two β, a β outside (0, 1), or `final_abar` outside [ᾱ_0, 1].

    >>> import numpy as np
    >>> from_betas(np.array([0.1, 0.5])).abar
    Array([0.9 , 0.45], dtype=float32)
    """
    betas = np.asarray(betas, np.float64)
    checks.check_shape("betas", betas, (None,))
    checks.check_min_rows("betas", betas, 2)
    checks.check_open_unit("betas before the last", betas[:-1])
    checks.check_positive("betas", betas)
    checks.check_range("betas", betas, 0.0, 1.0)
    log_abar = _cumulative(betas)
    final = log_abar[0] if final_abar == "first" else _final_log(final_abar, log_abar[0])
    tables = (
        betas,
        log_abar,
        np.exp(log_abar),
        np.exp(log_abar / 2),
        np.sqrt(-np.expm1(log_abar)),
        np.asarray(final, np.float64),
    )
    return Schedule(*(_constant(table, float) for table in tables))


def karras(
    num: int, sigma_min: float = 0.002, sigma_max: float = 80.0, rho: float = 7.0
) -> Float[Array, " levels"]:
    """Noise levels for the EDM samplers: σ^(1/ρ) equidistant from `sigma_max` to `sigma_min`.

    Args:
        num: number of levels above zero, which is the number of steps.
        sigma_min: smallest level above zero, in data units.
        sigma_max: largest level.
        rho: how much the levels crowd towards `sigma_min`.

    Returns:
        num + 1 descending levels, the last one 0.

    Raises:
        ValueError: no level, or sizes that are not 0 < sigma_min < sigma_max.

    >>> karras(3, 0.1, 10.0)
    Array([10.    ,  1.4507,  0.1   ,  0.    ], dtype=float32)
    """
    checks.check_integer("num", num, low=1)
    checks.check_positive("sigma_min", sigma_min)
    checks.check_positive("rho", rho)
    checks.check_positive("sigma_max - sigma_min", sigma_max - sigma_min)
    ramp = np.linspace(sigma_max ** (1 / rho), sigma_min ** (1 / rho), num)
    return _constant(np.append(ramp**rho, 0.0), float)


def _constant(table: np.ndarray, kind: type) -> Array:
    """The table in the default dtype of its kind; known, not traced, inside `jit` too."""
    with jax.ensure_compile_time_eval():
        return jnp.asarray(table, jnp.result_type(kind))


def _cumulative(betas: np.ndarray) -> np.ndarray:
    """Log ᾱ in float64; −∞ where β is 1."""
    with np.errstate(divide="ignore"):
        return np.cumsum(np.log1p(-betas))


def _check_ends(start: float, end: float) -> None:
    checks.check_open_unit("start", start)
    checks.check_open_unit("end", end)


def _final_log(final_abar: float, first_log_abar: float) -> float:
    checks.check_range("final_abar", final_abar, math.exp(first_log_abar), 1.0)
    return math.log(final_abar)
