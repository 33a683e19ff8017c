"""Inversion: the noise from which DDIM returns a given point, and embeddings that make it return.

DDIM inversion climbs the sampler's own grid. With levels i = 0 (below index 0) to S,

    x̂ = (z_i − b_i ε)/a_i,   z_{i+1} = a_{i+1} x̂ + b_{i+1} ε

reverses the step from i + 1 to i exactly if ε = ε_θ(z_{i+1}, t_{i+1}), the noise that the sampler
will use there. z_{i+1} is not known yet, so ε is taken at z_i, with the timestep of the level above
("target", usual in pipelines) or of its own level ("source"). Fixed-point refinement then repeats
ε ← ε_θ(z_{i+1}, t_{i+1}); it contracts when the steps are fine, and its limit is the exact inverse.
Level 0 has no timestep: "source" evaluates it at t = 0.

Under guidance the sampler leaves the inverted path. Null-text optimisation fits, step by step, an
unconditional embedding such that the guided step lands on the path again.

References:
    Song, Meng, Ermon, "Denoising diffusion implicit models", 2021, arXiv 2010.02502. Mokady et al.,
    "Null-text inversion for editing real images using guided diffusion models", 2023, arXiv
    2211.09794. Garibi et al., "ReNoise: real image inversion through iterative noising", 2024,
    arXiv 2403.14602 (fixed point, averaging). Duan et al., "Are diffusion models vulnerable to
    membership inference attacks?", 2023, arXiv 2302.01316 ("source").
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from jaxicml import checks
from jaxicml.diffusion import guidance, schedules
from jaxicml.diffusion import parameterization as P
from jaxicml.diffusion.samplers import Denoise
from jaxicml.types import Scalar

__all__ = ["InversionResult", "NullTextResult", "ddim_invert", "null_text_optimisation"]


class InversionResult(NamedTuple):
    """The path of an inversion."""

    x: Float[Array, "..."]
    """The noisiest point reached."""
    carry: Any
    """The network's carry after the last call."""
    trajectory: Float[Array, "levels ..."]
    """The given point and every point after it, noise rising."""


class NullTextResult(NamedTuple):
    """Embeddings that keep guided sampling on a path."""

    embeddings: PyTree[Float[Array, "steps ..."]]
    """One unconditional embedding for each sampling step, the noisiest first."""
    x: Float[Array, "..."]
    """Where guided sampling with them ends."""
    losses: Float[Array, " steps"]
    """Mean squared distance from the path after each step."""


def ddim_invert(
    denoise: Denoise,
    x: Float[Array, "*shape"],
    schedule: schedules.Schedule,
    timesteps: Int[Array, " steps"] | None = None,
    *,
    upto: int | None = None,
    eval_at: Literal["target", "source"] = "target",
    fixed_point: int = 0,
    average: int = 1,
    prediction: P.Prediction = "eps",
    carry: Any = None,
) -> InversionResult:
    """Climbs the grid of `sample_ddim` from the level below index 0, keeping every point.

    The network is called 1 + `fixed_point` times a level and seen as a prediction of noise at the
    level of its own timestep.

    Args:
        denoise: the network.
        x: data, at the level below index 0.
        schedule: the forward process.
        timesteps: the sampler's descending indices; all of them by default.
        upto: number of levels to climb; all by default.
        eval_at: timestep of the first guess of ε, that of the level above or its own.
        fixed_point: refinements of ε at every level.
        average: how many of the last refinements are averaged.
        prediction: what the output of the network means.
        carry: handed to the first call of the network.

    Returns:
        The noisiest point, the carry and the whole path: entry i is level i.

    Raises:
        ValueError: unknown options, timesteps that are not descending indices, more levels than
            the grid has, or more refinements to average than there are.

    >>> from jaxicml.diffusion import samplers
    >>> made = schedules.linear(1000)
    >>> steps = made.timesteps(20)
    >>> standard_normal = lambda x, t, carry: (made.noise[t] * x, carry)  # ε of N(0, 1)
    >>> data = jnp.array([1.0, -2.0])
    >>> path = ddim_invert(standard_normal, data, made, steps, fixed_point=20)
    >>> back = samplers.sample_ddim(standard_normal, path.x, made, steps).x
    >>> print(f"{back[0]:.4f} {back[1]:.4f}")
    1.0000 -2.0000
    """
    P.check_dtype("x", x)
    P.check_prediction(prediction)
    checks.check_choice("eval_at", eval_at, ["target", "source"])
    checks.check_integer("fixed_point", fixed_point, low=0)
    checks.check_integer("average", average, low=1, high=max(fixed_point, 1))
    grid = schedules.grid(schedule, timesteps)
    steps = len(grid.timesteps)
    upto = steps if upto is None else upto
    checks.check_integer("upto", upto, low=1, high=steps)
    dtype, wide = x.dtype, jnp.promote_types(x.dtype, jnp.float32)
    a, b = (jnp.flip(table).astype(wide) for table in (grid.signal, grid.noise))
    t = jnp.append(0, jnp.flip(grid.timesteps)).astype(grid.timesteps.dtype)
    rows = [(table[:upto], table[1 : upto + 1]) for table in (t, a, b)]

    def noise_of(z, t, a, b, carry):
        out, carry = denoise(z.astype(dtype), t, carry)
        return P.to_eps(out.astype(wide), z, a, b, prediction), carry

    def climb(state, row):
        z, carry = state[0].astype(wide), state[1]
        (t, t_up), (a, a_up), (b, b_up) = row
        up = lambda eps: a_up * (z - b * eps) / a + b_up * eps

        def refine(state, use):
            eps, total, carry = state
            eps, carry = noise_of(up(eps), t_up, a_up, b_up, carry)
            return (eps, total + use * eps, carry), None

        at = (t_up, a_up, b_up) if eval_at == "target" else (t, a, b)
        eps, carry = noise_of(z, *at, carry)
        if fixed_point:
            use = (jnp.arange(fixed_point) >= fixed_point - average).astype(wide)
            (_, total, carry), _ = jax.lax.scan(refine, (eps, jnp.zeros_like(z), carry), use)
            eps = total / average
        reached = up(eps).astype(dtype)
        return (reached, carry), reached

    (end, carry), path = jax.lax.scan(climb, (x, carry), rows)
    return InversionResult(end, carry, jnp.concatenate([x[None], path]))


def null_text_optimisation(
    denoise: Denoise,
    trajectory: Float[Array, "levels ..."],
    schedule: schedules.Schedule,
    timesteps: Int[Array, " steps"] | None = None,
    *,
    condition: PyTree,
    embedding: PyTree[Float[Array, "..."]],
    weight: Scalar = 7.5,
    optimiser: optax.GradientTransformation | None = None,
    iterations: int = 10,
    prediction: P.Prediction = "eps",
) -> NullTextResult:
    """Fits unconditional embeddings so that guided DDIM follows an inverted path.

    At each step the embedding of the step before is the start, and the squared distance of the
    guided step from the next point of the path is minimised over it.

    Args:
        denoise: the network, whose `carry` is an embedding: `denoise(x, t, embedding) -> (out, _)`.
        trajectory: path of `ddim_invert`, entry i at level i.
        schedule: the forward process.
        timesteps: the descending indices of that inversion; all of them by default.
        condition: conditional embedding.
        embedding: unconditional embedding to start from.
        weight: guidance weight w.
        optimiser: an optax optimiser, started afresh at each step; Adam at 1e-2 by default.
        iterations: updates a step.
        prediction: what the output of the network means.

    Returns:
        Embeddings by step, the end of the guided path, and its distance from the given one.

    Raises:
        ValueError: a path whose length is not one more than the number of timesteps, or timesteps
            that are not descending indices.

    >>> made = schedules.linear(1000)
    >>> steps = made.timesteps(4)
    >>> shifted = lambda x, t, shift: (made.noise[t] * (x - shift), shift)
    >>> path = ddim_invert(shifted, jnp.array([2.0]), made, steps, carry=jnp.ones(1)).trajectory
    >>> optimiser = optax.adam(0.1)
    >>> fit = null_text_optimisation(
    ...     *(shifted, path, made, steps), optimiser=optimiser, iterations=100,
    ...     condition=jnp.ones(1), embedding=jnp.zeros(1),
    ... )
    >>> print(f"{fit.x[0]:.2f}")
    2.00
    """
    grid = schedules.grid(schedule, timesteps)
    steps = len(grid.timesteps)
    P.check_dtype("trajectory", trajectory)
    P.check_prediction(prediction)
    checks.check_shape("trajectory", trajectory, (steps + 1, *trajectory.shape[1:]))
    checks.check_integer("iterations", iterations, low=1)
    optimiser = optax.adam(1e-2) if optimiser is None else optimiser
    dtype, wide = trajectory.dtype, jnp.promote_types(trajectory.dtype, jnp.float32)
    a, b = (table.astype(wide) for table in (grid.signal, grid.noise))
    targets = jnp.flip(trajectory[:-1], 0).astype(wide)
    rows = grid.timesteps, (a[:-1], b[:-1]), (a[1:], b[1:]), targets

    def down(state, row):
        x, embedding = state[0].astype(wide), state[1]
        t, (a, b), (next_a, next_b), target = row

        def noise_of(embedding):
            out, _ = denoise(x.astype(dtype), t, embedding)
            return P.to_eps(out.astype(wide), x, a, b, prediction)

        conditional = noise_of(condition)

        def land(embedding):
            eps = guidance.guide(noise_of(embedding), conditional, weight)
            return next_a * P.to_x0(eps, x, a, b, "eps") + next_b * eps

        distance = lambda embedding: jnp.mean((land(embedding) - target) ** 2)

        def improve(state, _):
            embedding, memory = state
            updates, memory = optimiser.update(jax.grad(distance)(embedding), memory, embedding)
            return (optax.apply_updates(embedding, updates), memory), None

        start = embedding, optimiser.init(embedding)
        (embedding, _), _ = jax.lax.scan(improve, start, length=iterations)
        landed = land(embedding)
        row = embedding, jnp.mean((landed - target) ** 2)
        return (landed.astype(dtype), embedding), row

    (end, _), (embeddings, losses) = jax.lax.scan(down, (trajectory[-1], embedding), rows)
    return NullTextResult(embeddings, end, losses)
