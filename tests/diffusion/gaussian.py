"""One Gaussian target: its exact denoiser and the maps of its samplers, in NumPy."""

import numpy as np
from jax.extend.core import jaxprs_in_params

from jaxicml.diffusion import schedules

MU, S2 = 1.5, 0.25


def output(x, a, b, kind, mu=MU, s2=S2):
    """The exact prediction of any kind for x = a x_0 + b ε, x_0 ~ N(μ, s²)."""
    v = a**2 * s2 + b**2
    score = -(x - a * mu) / v
    x0 = mu + a * s2 * (x - a * mu) / v
    eps = -b * score
    return {"eps": eps, "x0": x0, "v": a * eps - b * x0, "score": score}[kind]


def denoiser(schedule, kind="eps", mu=MU, s2=S2):
    """`denoise` of the target for a schedule; the carry counts calls."""

    def denoise(x, t, carry):
        a, b = schedule.signal[t].astype(x.dtype), schedule.noise[t].astype(x.dtype)
        return output(x, a, b, kind, mu, s2), carry if carry is None else carry + 1

    return denoise


def edm_denoiser(kind="x0", mu=MU, s2=S2):
    """Likewise for x = x_0 + σ ε."""
    return lambda x, sigma, carry: (
        output(x, 1.0, sigma, kind, mu, s2),
        carry if carry is None else carry + 1,
    )


def uniform_in_log_snr(steps, first=-2.0, last=2.5):
    """A schedule whose levels, the final one included, are equidistant in λ = log(a/b)."""
    abar = 1 / (1 + np.exp(-2 * np.linspace(first, last, steps + 1)))
    ascending = np.append(1.0, abar[-2::-1])
    return schedules.from_betas(1 - ascending[1:] / ascending[:-1], final_abar=abar[-1])


def flow(x, a, b, next_a, next_b, mu=MU, s2=S2):
    """The exact probability flow from one level to another."""
    scale = np.sqrt((next_a**2 * s2 + next_b**2) / (a**2 * s2 + b**2))
    return next_a * mu + scale * (x - a * mu)


def levels(schedule, timesteps=None):
    """t, a and b of a grid as NumPy arrays, the level below index 0 last."""
    timesteps = np.arange(schedule.num_steps)[::-1] if timesteps is None else timesteps
    abar = np.cumprod(1 - np.asarray(schedule.betas, np.float64))[timesteps]
    abar = np.append(abar, np.exp(np.asarray(schedule.final_log_abar, np.float64)))
    return np.asarray(timesteps), np.sqrt(abar), np.sqrt(1 - abar)


def count(jaxpr):
    """Number of equations and of scans of a program, inner programs included."""
    equations, scans = 0, 0
    for equation in jaxpr.eqns:
        equations, scans = equations + 1, scans + (equation.primitive.name == "scan")
        for inner in jaxprs_in_params(equation.params):
            more = count(inner)
            equations, scans = equations + more[0], scans + more[1]
    return equations, scans
