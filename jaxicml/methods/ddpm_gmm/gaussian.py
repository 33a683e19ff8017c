"""One Gaussian through DDPM: the output law in closed form, and its distance to the target.

    v_t = ᾱ_t σ² + 1 − ᾱ_t,    V_T = 1,    V_{t-1} = (α_t v_{t-1}² / v_t²) V_t + sd_t²

The output Y_1 is N(0, V_1 I) where X_1 is N(0, v_1 I). In terms of the excess u_t = V_t/v_t − 1 and
c_t = (1 − α_t)/v_t this is u_{t-1} = (1 − c_t) u_t + (sd_t²/v_{t-1} − c_t): the bracket vanishes
under the "component" rule, whose only error is then the start u_T = 1/v_T − 1 times Π(1 − c_t).
Every other rule leaves a bracket of order (1 − α_t)², which sums to order log T / T.

Total variation between N(0, a I_n) and N(0, b I_n), a < b: the densities cross on the sphere of
squared radius ρ² = n log(b/a) / (1/a − 1/b), so that
    TV = F(ρ²/a) − F(ρ²/b),    F the χ² distribution function with n degrees of freedom.
"""

from functools import partial
from typing import NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax.scipy.special import gammainc
from jaxtyping import Array, Float

from jaxicml import checks
from jaxicml.diffusion.schedules import Schedule, Variance, reverse_variance
from jaxicml.types import Scalar

__all__ = ["GaussianLaw", "output_law_gaussian", "tv_isotropic"]


class GaussianLaw(NamedTuple):
    """Variances per dimension of the output and of what it should be.

    Attributes:
        output: V_1, the sampler's.
        target: v_1, that of X_1.
        excess: V_1/v_1 − 1, with its own digits (not the difference of two numbers near one).
    """

    output: Float[Array, ""]
    target: Float[Array, ""]
    excess: Float[Array, ""]


def output_law_gaussian(schedule: Schedule, sigma2: Scalar, variance: Variance) -> GaussianLaw:
    """The law of DDPM's output Y_1 for the target N(0, σ² I).

    Args:
        schedule: T noise levels.
        sigma2: σ², per dimension.
        variance: reverse variance, as in `reverse_variance`.

    Returns:
        V_1, v_1 and V_1/v_1 − 1, in the schedule's dtype.

    Raises:
        ValueError: σ² below zero, an unknown rule.

    >>> from jaxicml.diffusion import schedules
    >>> law = output_law_gaussian(schedules.theory(50), 0.25, "posterior")
    >>> law.excess
    Array(-0.1381, dtype=float32)
    """
    checks.check_scalar("sigma2", sigma2)
    checks.check_not_negative("sigma2", sigma2)
    checks.check_choice("variance", variance, get_args(Variance))
    return _output_law(schedule, sigma2, variance)


@partial(jax.jit, static_argnames="variance")
def _output_law(schedule, sigma2, variance) -> GaussianLaw:
    sd2 = reverse_variance(schedule, variance, sigma2)
    v = schedule.abar * sigma2 + schedule.noise**2
    c = schedule.betas[1:] / v[1:]
    # what the "component" rule makes zero must not come back as rounding
    bracket = jnp.zeros_like(c) if variance == "component" else sd2[1:] / v[:-1] - c

    def step(u, terms):
        c, bracket = terms
        return (1 - c) * u + bracket, None

    start = schedule.abar[-1] * (1 - sigma2) / v[-1]
    excess, _ = jax.lax.scan(step, start, (c, bracket), reverse=True)
    return GaussianLaw(v[0] * (1 + excess), v[0], excess)


def tv_isotropic(n: Scalar, a: Scalar, b: Scalar) -> Float[Array, ""]:
    """Total variation between N(0, a I_n) and N(0, b I_n); wants float64.

    Args:
        n: dimensions, 0 or more; may be traced.
        a: variance per dimension of one law, above zero.
        b: of the other; the order does not matter.

    Returns:
        The distance in [0, 1].

    Raises:
        ValueError: n below zero, a variance that is not above zero.

    >>> tv_isotropic(1, 1.0, 4.0)  # 2(Φ(x) − Φ(x/2)) with x² = 8 log(4) / 3... on both sides
    Array(0.3227, dtype=float32)
    """
    for name, value in (("n", n), ("a", a), ("b", b)):
        checks.check_scalar(name, value)
    checks.check_not_negative("n", n)
    checks.check_positive("a", a)
    checks.check_positive("b", b)
    dtype = jnp.result_type(a, b, float)
    a, b = jnp.minimum(a, b).astype(dtype), jnp.maximum(a, b).astype(dtype)
    gap = (b - a) / a
    # log(b/a), with all digits where the two are close and without overflow where they are not
    ratio = jnp.where(gap < 1, jnp.log1p(gap), jnp.log(b) - jnp.log(a))
    safe = jnp.where(ratio > 0, ratio, 1)
    # ρ²/(n a) and ρ²/(n b); both are 1 where a = b
    near = jnp.where(ratio > 0, safe / -jnp.expm1(-safe), 1)
    far = jnp.where(ratio > 0, safe / jnp.expm1(safe), 1)
    half = jnp.maximum(jnp.asarray(n, dtype), 1e-30) / 2
    return jnp.clip(gammainc(half, half * near) - gammainc(half, half * far), 0, 1)
