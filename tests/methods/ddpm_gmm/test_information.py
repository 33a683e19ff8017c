"""The I-MMSE identity and the trace bound against quadrature in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxicml.diffusion import gmm, schedules
from jaxicml.methods import ddpm_gmm as lab
from tests.methods.ddpm_gmm import cases

SNR = np.geomspace(1e-4, 1e3, 141)
"""With snr = 0.61 among its neighbours to 6 %; the tails outside weigh less than 1e-3."""

on_line = functools.cache(lambda: jax.jit(functools.partial(lab.mmse_on_line, n_grid=401)))
entropy = lambda weights: -np.sum(weights * np.log(weights))


@functools.cache
def three_mode_curve():
    with jax.enable_x64(True):
        return np.asarray(on_line()(cases.line(), jnp.asarray(SNR)))


def test_integral_is_twice_the_entropy():
    curve = three_mode_curve()
    # in log snr the integrand is smooth and vanishes at both ends but for snr < 1e-4
    area = np.trapezoid(curve * SNR, np.log(SNR)) + curve[0] * SNR[0]
    np.testing.assert_allclose(area, 2 * entropy(np.array(cases.WEIGHTS)), rtol=1e-3)
    np.testing.assert_allclose(area, 2.0593, rtol=1e-3)


def test_largest_left_side():
    left = three_mode_curve() * SNR
    assert left.max() < 2.0593
    np.testing.assert_allclose(left.max(), 0.6333, rtol=2e-3)
    np.testing.assert_allclose(SNR[left.argmax()], 0.61, rtol=0.07)


def test_two_points_have_the_closed_form(x64):
    """mmse(snr) = 1 − E tanh(snr + √snr Z) for ±1."""
    # three components of which two agree, in the shapes of the others
    g = gmm.gaussian_mixture(jnp.array([0.5, 0.2, 0.3]), jnp.array([[1.0], [-1.0], [-1.0]]), 0.25)
    z = np.linspace(-10, 10, 4001)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    want = [1 - density @ np.tanh(snr + np.sqrt(snr) * z) for snr in SNR]
    np.testing.assert_allclose(on_line()(g, jnp.asarray(SNR)), want, atol=1e-8)


def test_single_precision_keeps_its_digits():
    """At snr = 0 the spread of the means, here of ±1."""
    g = gmm.gaussian_mixture(jnp.ones(2) / 2, jnp.array([[-1.0], [1.0]]), 0.0)
    np.testing.assert_allclose(lab.mmse_on_line(g, jnp.zeros(1)), 1, rtol=2e-6)


FEW = SNR[50:130:4]
sampled = functools.cache(lambda: jax.jit(functools.partial(lab.mmse_curve, n_mc=4000)))


def curve_of(weights, means):
    """By draws in fifty dimensions, for five components."""
    g = gmm.gaussian_mixture(jnp.array(weights), jnp.asarray(means, "float32"), 0.25)
    return g, sampled()(jax.random.key(0), g, jnp.asarray(FEW, "float32"))


def test_draws_agree_with_quadrature():
    """The three modes, two of them in halves, on an axis of R⁵⁰."""
    means = np.outer([-3.0, 0.5, 0.5, 3.0, 3.0], np.eye(50)[7])
    g, found = curve_of([0.3, 0.25, 0.25, 0.1, 0.1], means)
    # at the last ratios the guess is wrong too rarely for the draws to show it
    seen = FEW < 5
    off = np.abs(found.value - three_mode_curve()[50:130:4])
    assert np.all(off[seen] < 4 * found.se[seen] + 1e-6)
    assert np.all(found.se < 0.02 * 9)
    assert np.all(found.value >= 0)
    np.testing.assert_allclose(lab.mixture_entropy(g), entropy(np.array(cases.WEIGHTS)), rtol=1e-6)


def test_trace_bound_in_many_dimensions():
    """No dimension appears: a simplex of five points stays below 2 log 5."""
    g, curve = curve_of(np.full(5, 0.2, "float32"), lab.simplex(5, 50, 3.0).means)
    value = np.asarray(curve.value)
    assert (FEW * value).max() < 2 * lab.mixture_entropy(g)
    np.testing.assert_allclose(lab.mixture_entropy(g), np.log(5), rtol=1e-6)
    # at small ratios it is the spread of the means: (K − 1)/K of half the squared distance
    start = np.asarray(sampled()(jax.random.key(0), g, jnp.zeros(20)).value)
    np.testing.assert_allclose(start, 0.8 * 4.5, rtol=1e-5)
    assert np.all(np.diff(value) < 4 * np.hypot(curve.se[1:], curve.se[:-1]))


def test_schedule_ratio(x64):
    made = schedules.theory(9)
    abar = np.cumprod(1 - np.asarray(made.betas))
    want = abar / (abar * 0.25 + 1 - abar)
    np.testing.assert_allclose(lab.schedule_snr(cases.line(), made), want, rtol=1e-10)


def test_entropy_of_merged_means():
    twice = gmm.gaussian_mixture(jnp.array([0.2, 0.3, 0.5]), jnp.array([[1.0], [1.0], [3.0]]), 0.25)
    np.testing.assert_allclose(lab.mixture_entropy(twice), np.log(2), rtol=1e-6)
    np.testing.assert_allclose(lab.mixture_entropy(cases.one_component()), 0, atol=1e-6)


def test_weights_below_the_smallest_number_add_nothing():
    """A log weight may say what no weight can."""
    g = gmm.GMM(jnp.array([0.0, -5000.0]), jnp.array([[0.0], [1.0]]), jnp.zeros(1), jnp.ones(()))
    assert lab.mixture_entropy(g) == 0


def test_bad_input(as_user):
    g, key = cases.line(), jax.random.key(0)
    for run in (lambda snr: lab.mmse_curve(key, g, snr, 8), lambda snr: lab.mmse_on_line(g, snr)):
        with pytest.raises(ValueError, match="snr: expected a finite number of at least 0"):
            run(jnp.array([1.0, jnp.nan]))
    with pytest.raises(ValueError, match="n_mc: expected a whole number of at least 2, got 1"):
        lab.mmse_curve(key, g, jnp.ones(1), 1)
    with pytest.raises(ValueError, match="n_grid: expected a whole number of at least 16, got 4"):
        lab.mmse_on_line(g, jnp.ones(1), n_grid=4)
    with pytest.raises(ValueError, match="means: expected known values, got a tracer"):
        jax.jit(lambda g: jnp.asarray(lab.mixture_entropy(g)))(g)
