"""DDPM as the theory has it: from Y_T ~ N(0, I) down to Y_1, which is compared with X_1.

Y_{t-1} = (Y_t + (1 − α_t) s_t(Y_t)) / √α_t + sd_t Z_t,    t = T..2
"""

from collections.abc import Callable
from typing import NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxicml import checks
from jaxicml.diffusion.gmm import GMM
from jaxicml.diffusion.mixture import gmm_score
from jaxicml.diffusion.samplers import sample_ddpm
from jaxicml.diffusion.schedules import Schedule, Variance
from jaxicml.types import Key, Scalar

__all__ = ["DDPMResult", "ScoreFn", "ddpm_sample", "mixture_score"]

ScoreFn = Callable[[Float[Array, "*batch d"], Int[Array, ""]], Float[Array, "*batch d"]]
"""Points and the index of the noise level in; scores out."""


class DDPMResult(NamedTuple):
    """Draws of a sampler.

    Attributes:
        x: Y_1.
        trajectory: Y_T, ..., Y_1 where asked for.
    """

    x: Float[Array, "..."]
    trajectory: Float[Array, "steps ..."] | None


def mixture_score(g: GMM, schedule: Schedule, *, block: int | None = None) -> ScoreFn:
    """The exact score of a mixture at every noise level of a schedule.

    Args:
        g: law of x_0.
        schedule: the noise levels.
        block: components at a time, see `gmm_score`.

    Returns:
        (x, t) -> ∇ log p_t(x).

    >>> import jax.numpy as jnp
    >>> from jaxicml.diffusion import gmm, schedules
    >>> g = gmm.gaussian_mixture(jnp.ones(1), jnp.zeros((1, 2)), 1.0)
    >>> mixture_score(g, schedules.theory(50))(jnp.ones(2), 3)
    Array([-1., -1.], dtype=float32)
    """
    return lambda x, t: gmm_score(g, x, schedule.abar[t], noise=schedule.noise[t], block=block)


def ddpm_sample(
    key: Key,
    score_fn: ScoreFn,
    schedule: Schedule,
    shape: tuple[int, ...],
    *,
    variance: Variance,
    sigma2: Scalar = 0.0,
    dtype=jnp.float32,
    trajectory: bool = False,
) -> DDPMResult:
    """Draws of Y_1; one call of the score a step, T − 1 in all, in a single scan.

    Args:
        key: random key.
        score_fn: (x, t) -> score, t an index of the schedule.
        schedule: T noise levels.
        shape: of the draws, the last entry the dimension.
        variance: reverse variance, as in `reverse_variance`.
        sigma2: σ² of the components, for "component".
        dtype: of the draws.
        trajectory: whether to keep every Y_t.

    Returns:
        The draws.

    Raises:
        ValueError: an unknown rule, σ² below zero, a shape without dimensions.

    >>> import jax
    >>> from jaxicml.diffusion import gmm, schedules
    >>> g = gmm.gaussian_mixture(jnp.ones(1), jnp.array([[2.0]]), 0.0)
    >>> score = mixture_score(g, schedules.theory(50))
    >>> draws = ddpm_sample(
    ...     jax.random.key(0), score, schedules.theory(50), (1000, 1), variance="posterior"
    ... )
    >>> print(f"{draws.x.mean():.2f}")
    2.00
    """
    checks.check_callable("score_fn", score_fn)
    checks.check_choice("variance", variance, get_args(Variance))
    check_sample_shape(shape)
    start_key, step_key = jax.random.split(key)
    start = jax.random.normal(start_key, shape, dtype)
    result = sample_ddpm(
        step_key,
        lambda x, t, carry: (score_fn(x, t), carry),
        start,
        schedule,
        variance=variance,
        sigma2=sigma2,
        prediction="score",
        last="stop",
        trajectory=trajectory,
    )
    return DDPMResult(result.x, result.trajectory)


def check_sample_shape(shape) -> None:
    """Checks the shape of a set of draws.

    Raises:
        ValueError: it is no tuple of whole numbers, or empty.
    """
    checks.check_instance("shape", shape, tuple)
    checks.check_integer("number of dimensions of shape", len(shape), low=1)
    for size in shape:
        checks.check_integer("shape", size, low=0)
