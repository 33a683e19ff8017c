"""Scores with a known error: the error that is asked for is the one that is there."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxicml.diffusion import schedules
from jaxicml.methods import ddpm_gmm as lab
from tests.methods.ddpm_gmm import cases

made = functools.cache(lambda: schedules.theory(9))


@functools.cache
def error_of(kind):
    """ε_score² of the perturbed score of the three modes in the plane."""
    g = cases.line(axis=(0.6, 0.8))

    def one(key, delta):
        score = lab.perturb_score(
            key, lab.mixture_score(g, made()), kind, delta, dim=2, mixture=g, schedule=made()
        )
        return lab.score_error(key, score, g, made(), 100)

    return jax.jit(one)


def test_constant_has_the_size_exactly():
    found = error_of("constant")(jax.random.key(0), 0.3)
    np.testing.assert_allclose(found.value, 0.09, rtol=1e-4)
    assert found.se < 1e-5


def test_fourier_has_the_size_on_average():
    """E over fields is δ² at every point; of 400 fields the mean has an interval."""
    x = jnp.array([[0.3, -2.0], [5.0, 1.0]])
    one = lambda key: jnp.sum(lab.score_shift(key, "fourier", 0.3, 2)(x, 0) ** 2, 1)
    keys = jax.random.split(jax.random.key(0), 400)
    squares = np.asarray(jax.lax.map(one, keys))
    for at in squares.T:
        assert scipy.stats.ttest_1samp(at, 0.09).pvalue > 1e-3
        assert at.std() > 0.01


@pytest.mark.slow
def test_fourier_error_of_the_score():
    """The same through draws of X_t."""
    values = [
        error_of("fourier")(key, 0.3).value for key in jax.random.split(jax.random.key(0), 40)
    ]
    assert scipy.stats.ttest_1samp(values, 0.09).pvalue > 1e-3


@pytest.mark.slow
def test_misfit_of_no_size_is_exact_and_grows():
    keys = jax.random.split(jax.random.key(0), 10)
    none, small, large = (
        np.mean([error_of("misfit")(key, delta).value for key in keys])
        for delta in (0.0, 0.01, 0.1)
    )
    assert none < 1e-9
    # linear in the parameters where they are small
    np.testing.assert_allclose(large / small, 100, rtol=0.2)


@pytest.mark.slow
def test_fourier_field_is_smooth_and_of_unit_size(x64):
    """Root mean square δ over space, by an average over many points far apart."""
    shift = jax.jit(lab.score_shift(jax.random.key(1), "fourier", 2.0, 3))
    x = jnp.asarray(1e3 * np.random.default_rng(0).normal(size=(4000, 3)))
    squares = np.sum(np.asarray(shift(x, 0)) ** 2, 1)
    # frequencies of one field differ: its square averages to δ² over space
    assert abs(squares.mean() - 4) < 5 * squares.std() / np.sqrt(len(x))
    near = shift(x + 1e-6, 0) - shift(x, 0)
    assert np.abs(near).max() < 1e-4


def test_misfit_is_added_to_the_score():
    """To any score, not only the exact one."""
    g, x, key = cases.line(), jnp.array([[-1.0], [0.3], [2.0]]), jax.random.key(0)
    score = lambda x, t: 7 * x
    given = {"mixture": g, "schedule": made()}
    wrong = lab.mixture_score(lab.misfit_mixture(key, g, 0.1), made())(x, 3)
    exact = lab.mixture_score(g, made())(x, 3)
    got = lab.perturb_score(key, score, "misfit", 0.1, dim=1, **given)(x, 3)
    np.testing.assert_allclose(got, 7 * x + wrong - exact, rtol=1e-5)
    assert np.abs(wrong - exact).min() > 1e-3


def test_misfit_of_no_size_is_the_mixture():
    g = cases.line()
    misfit = jax.jit(lambda delta: lab.misfit_mixture(jax.random.key(0), g, delta))
    same = misfit(0.0)
    np.testing.assert_allclose(same.means, g.means, atol=1e-6)
    np.testing.assert_allclose(jnp.exp(same.log_weights), cases.WEIGHTS, rtol=1e-5)
    other = misfit(0.1)
    assert 0 < np.abs(other.means - g.means).max() < 0.5
    np.testing.assert_allclose(jnp.exp(other.log_weights).sum(), 1, rtol=1e-6)


def test_bad_input(as_user):
    key, score = jax.random.key(0), lambda x, t: -x
    with pytest.raises(ValueError, match=r"kind: expected one of .*got 'noise'"):
        lab.perturb_score(key, score, "noise", 0.1, dim=1)
    with pytest.raises(ValueError, match="mixture: expected a value for a misfit, got None"):
        lab.perturb_score(key, score, "misfit", 0.1, dim=1)
    with pytest.raises(ValueError, match="schedule: expected a value for a misfit, got None"):
        lab.perturb_score(key, score, "misfit", 0.1, dim=1, mixture=cases.line())
    with pytest.raises(ValueError, match="dim: expected a whole number of at least 1, got 0"):
        lab.score_shift(key, "constant", 0.1, 0)
    with pytest.raises(ValueError, match=r"x: expected shape \(4, 2\), got \(4, 3\)"):
        lab.score_shift(key, "constant", 0.1, 2)(jnp.ones((4, 3)), 0)
    with pytest.raises(ValueError, match="mixture: expected a value for a misfit, got None"):
        lab.score_shift(key, "misfit", 0.1, 2)
    with pytest.raises(ValueError, match="n_mc: expected a whole number of at least 2, got 1"):
        lab.score_error(key, score, cases.line(), made(), 1)
