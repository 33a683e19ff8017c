"""Other samplers: closed forms for one Gaussian, and draws against their laws."""

import functools
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxicml.diffusion import schedules
from jaxicml.methods import ddpm_gmm as lab
from jaxicml.methods.ddpm_gmm import baselines
from tests.methods.ddpm_gmm import cases

SIGMA2 = 0.25
KINDS = [
    "ddim",
    "unadjusted_langevin",
    "annealed_langevin",
    pytest.param("dpmpp_2m", marks=pytest.mark.slow),
]
STEP = {"unadjusted_langevin": 0.1, "annealed_langevin": 0.4}


def levels(T=25):
    """β, a, b and v of every level, v for one Gaussian."""
    betas = np.asarray(schedules.theory(T).betas, np.float64)
    abar = np.exp(np.cumsum(np.log1p(-betas)))
    return np.sqrt(abar), np.sqrt(1 - abar), abar * SIGMA2 + 1 - abar


def ddim_variance():
    """x' = a' x̂_0 + b' ε̂ with x̂_0 = a σ² x / v and ε̂ = b x / v."""
    a, b, v = levels()
    factors = (a[:-1] * a[1:] * SIGMA2 + b[:-1] * b[1:]) / v[1:]
    return np.prod(factors) ** 2


def dpmpp_variance():
    """The two-step recursion of DPM-Solver++(2M) on x̂_0 = a σ² x / v, first order at both ends."""
    a, b, v = levels()
    x, before, last_h = 1.0, 0.0, None
    for t in range(len(a) - 1, 0, -1):
        h = np.log(a[t - 1] / b[t - 1]) - np.log(a[t] / b[t])
        x0 = a[t] * SIGMA2 * x / v[t]
        ends = last_h is None or t == 1
        D = x0 if ends else x0 + h / (2 * last_h) * (x0 - before)
        x = b[t - 1] / b[t] * x - a[t - 1] * np.expm1(-h) * D
        before, last_h = x0, h
    return x**2


def langevin_variance(kind):
    """V' = (1 − η/v)² V + 2η, T − 1 times from V = 1."""
    _, b, v = levels()
    variance = 1.0
    for t in range(len(b) - 2, -1, -1):
        at, size = (t, b[t] ** 2) if kind == "annealed_langevin" else (0, 1.0)
        eta = STEP[kind] * size
        variance = (1 - eta / v[at]) ** 2 * variance + 2 * eta
    return variance


@functools.cache
def steps(kind):
    return lambda made: baselines._langevin(kind, made, STEP[kind])[1]


@functools.cache
def law(kind, target):
    """Langevin's through its steps: one program for both."""
    if kind in STEP:
        return cases.law(target, steps(kind))
    with jax.enable_x64(True):
        return lab.baseline_law_1d(kind, target(), schedules.theory(25))


@pytest.mark.slow
@pytest.mark.parametrize("kind", STEP)
def test_laws_of_langevin_are_those_of_their_steps(x64, kind):
    made = schedules.theory(25)
    found = lab.baseline_law_1d(kind, cases.line(), made, step_size=STEP[kind])
    np.testing.assert_allclose(found.tv, law(kind, cases.line).tv, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_one_component_has_the_closed_form(kind):
    found = law(kind, cases.one_component)
    if kind in STEP:
        variance = langevin_variance(kind)
    else:
        variance = ddim_variance() if kind == "ddim" else dpmpp_variance()
    grid, q = np.asarray(found.grid), np.exp(found.log_q)
    h = grid[1] - grid[0]
    np.testing.assert_allclose(
        h * q @ grid**2 - h**2 / 12 * (kind not in STEP), variance, rtol=2e-5
    )
    target = levels()[2][0]
    low, high = sorted((variance, target))
    # the densities cross at ±x
    x = np.sqrt(np.log(high / low) / (1 / low - 1 / high))
    normal = scipy.stats.norm.cdf
    want = 2 * (normal(x / np.sqrt(low)) - normal(x / np.sqrt(high)))
    np.testing.assert_allclose(found.tv, want, rtol=1e-3)
    assert bool(found.valid)


@pytest.mark.parametrize(
    "kind",
    [
        kind if kind in KINDS[:2] else pytest.param(kind, marks=pytest.mark.slow)
        for kind in get_args(lab.Baseline)
    ],
)
def test_draws_follow_the_law(kind):
    made = schedules.theory(25)
    score = lab.mixture_score(cases.line(), made)
    sample = jax.jit(
        lambda key: lab.baseline_sample(
            key, kind, score, made, (20_000, 1), step_size=STEP.get(kind, 1.0)
        )
    )
    x = np.asarray(sample(jax.random.key(5)))[:, 0]
    below = cases.distribution(law(kind, cases.line))
    assert scipy.stats.kstest(x, below).pvalue > 1e-3


@pytest.mark.slow
def test_tuning_takes_the_best_valid_law(x64):
    """Steps of 40 leave the grid: that law is closer to nothing."""
    target, made, sizes = cases.line(), schedules.theory(25), (0.02, 0.1, 0.2, 40.0)
    tuned = lab.tuned_law_1d("unadjusted_langevin", target, made, jnp.array(sizes))
    each = [
        lab.baseline_law_1d("unadjusted_langevin", target, made, step_size=size) for size in sizes
    ]
    assert [bool(one.valid) for one in each] == [True, True, True, False]
    best = np.argmin([float(one.tv) for one in each[:3]])
    assert float(tuned.step_size) == sizes[best]
    np.testing.assert_allclose(tuned.law.tv, each[best].tv, rtol=1e-9)


def test_samplers_without_steps_are_not_tuned(x64):
    made = schedules.theory(25)
    tuned = lab.tuned_law_1d("ddim", cases.line(), made, jnp.array([0.1, 3.0]))
    assert float(tuned.step_size) == 1
    np.testing.assert_allclose(tuned.law.tv, law("ddim", cases.line).tv, rtol=1e-12)


def test_bad_input(as_user):
    made, score = schedules.theory(9), lambda x, t: -x
    sample = lambda kind="ddim", shape=(4, 1), score=score, **options: lab.baseline_sample(
        jax.random.key(0), kind, score, made, shape, **options
    )
    with pytest.raises(ValueError, match=r"kind: expected one of .*got 'euler'"):
        sample("euler")
    with pytest.raises(ValueError, match=r"number of dimensions of shape: expected .* got 0"):
        sample(shape=())
    with pytest.raises(ValueError, match="score_fn: expected a function, got int"):
        sample(score=1)
    with pytest.raises(ValueError, match=r"kind: expected one of .*got 'euler'"):
        lab.baseline_law_1d("euler", cases.line(), made)
    with pytest.raises(ValueError, match=r"kind: expected one of .*got 'euler'"):
        lab.tuned_law_1d("euler", cases.line(), made, jnp.ones(1))
