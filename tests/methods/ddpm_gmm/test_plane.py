"""The output law in the plane against the line, closed forms and what it must refuse."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxicml.diffusion import gmm, schedules
from jaxicml.methods import ddpm_gmm as lab
from tests.methods.ddpm_gmm import cases

TURNED = (0.6, 0.8)
wide = functools.partial(cases.line, (-2.0, 0.5, 2.0), 1.0)
posterior = functools.partial(lab.ddpm_steps, variance="posterior")


@functools.cache
def in_plane(target):
    with jax.enable_x64(True):
        return lab.output_density_2d(target(), schedules.theory(25), "posterior", n_grid=128)


def turned():
    return wide(axis=TURNED)


def centred():
    return cases.one_component(1.0, d=2)


def test_a_turned_line_factorises():
    """Along the line its law there, across it that of one Gaussian; nothing else."""
    law, along = in_plane(turned), cases.law(wide, posterior)
    with jax.enable_x64(True):
        across = lab.output_law_gaussian(schedules.theory(25), 1.0, "posterior")
    x = np.stack(np.meshgrid(law.axis, law.axis, indexing="ij"), -1)
    on, off = x @ np.array(TURNED), x @ np.array([-TURNED[1], TURNED[0]])
    q = np.interp(on, along.grid, np.exp(along.log_q))
    q *= scipy.stats.norm(0, np.sqrt(float(across.output))).pdf(off)
    p = np.interp(on, along.grid, np.exp(along.log_p))
    p *= scipy.stats.norm(0, np.sqrt(float(across.target))).pdf(off)
    h = float(law.axis[1] - law.axis[0])
    np.testing.assert_allclose(np.exp(law.log_q), q, atol=2e-6)
    np.testing.assert_allclose(np.exp(law.log_p), p, atol=2e-6)
    np.testing.assert_allclose(law.tv, 0.5 * h * h * np.abs(q - p).sum(), rtol=1e-4)
    assert bool(law.valid)


def test_one_component_has_the_closed_form(x64):
    law = in_plane(centred)
    exact = lab.output_law_gaussian(schedules.theory(25), 1.0, "posterior")
    # the sum over a grid of |q - p|, which has kinks, is of second order
    np.testing.assert_allclose(law.tv, lab.tv_isotropic(2, *exact[:2]), rtol=2e-3)
    ratio = float(exact.output / exact.target)
    np.testing.assert_allclose(law.kl, ratio - 1 - np.log(ratio), rtol=1e-5)
    normal = scipy.stats.multivariate_normal(np.zeros(2), float(exact.output))
    x = np.stack(np.meshgrid(law.axis, law.axis, indexing="ij"), -1)
    np.testing.assert_allclose(np.exp(law.log_q), normal.pdf(x), atol=1e-7)


@pytest.mark.slow
def test_reference_value(x64):
    """A hundred steps, over which any amplified rounding shows."""
    law = lab.output_density_2d(lab.three_modes(2), schedules.theory(100), "component", throw=True)
    np.testing.assert_allclose(law.tv, 0.02737, rtol=2e-3)


def test_bad_input(as_user):
    run = lambda g, variance="beta", **options: lab.output_density_2d(
        g, schedules.theory(9), variance, **options
    )
    with pytest.raises(ValueError, match=r"means: expected shape \(any, 2\), got \(3, 1\)"):
        run(cases.line())
    with pytest.raises(ValueError, match=r"variance: expected one of .* got 'gamma'"):
        run(cases.one_component(d=2), "gamma")
    with pytest.raises(ValueError, match=r"n_grid \(points needed for the smallest σ\): expected"):
        run(cases.one_component(d=2), n_grid=64)
    with pytest.raises(ValueError, match=r"n_grid: expected a whole number of at least 32 .*got 8"):
        run(cases.one_component(d=2), n_grid=8)
    unequal = gmm.gaussian_mixture(
        jnp.array(cases.WEIGHTS), cases.one_component(d=2).means, jnp.array([0.1, 0.2, 0.3])
    )
    with pytest.raises(ValueError, match=r"variances .*: expected equal values"):
        run(unequal, "component")
