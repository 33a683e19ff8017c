"""The output law on the line against quadrature, closed forms and draws."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from scipy.interpolate import CubicSpline

from jaxicml.diffusion import gmm, schedules
from jaxicml.methods import ddpm_gmm as lab
from jaxicml.methods.ddpm_gmm import density
from tests.methods.ddpm_gmm import cases, reference

KNOWN = {25: 0.08038, 50: 0.04730, 100: 0.02737, 200: 0.01565, 400: 0.008826}
ddpm = functools.cache(lambda kind: functools.partial(lab.ddpm_steps, variance=kind, sigma2=0.25))


def test_reference_value():
    law = cases.law(cases.line, ddpm("component"))
    np.testing.assert_allclose(law.tv, KNOWN[25], rtol=2e-3)
    assert bool(law.valid)


@pytest.mark.slow
@pytest.mark.parametrize("T", [50, 400])
def test_more_reference_values(x64, T):
    law = lab.output_density_1d(lab.three_modes(), schedules.theory(T), "component", throw=True)
    np.testing.assert_allclose(law.tv, KNOWN[T], rtol=2e-3)


def test_equals_dense_quadrature():
    """T = 9 has no small steps, so that a trapezoidal rule resolves every kernel."""
    law = cases.few_steps()
    grid = np.asarray(law.grid)
    q, p = reference.output_density(9, grid)
    np.testing.assert_allclose(np.exp(law.log_q), q, atol=1e-6)
    np.testing.assert_allclose(np.exp(law.log_p), p, atol=1e-12)
    h = grid[1] - grid[0]
    np.testing.assert_allclose(law.tv, 0.5 * h * np.abs(q - p).sum(), rtol=1e-5)
    np.testing.assert_allclose(law.kl, h * np.sum(q * np.log(q / p)), rtol=1e-4)
    fine = np.linspace(grid[0], grid[-1], 20_001)
    below = lambda f: np.cumsum(np.exp(CubicSpline(grid, np.log(f))(fine))) * (fine[1] - fine[0])
    u = (np.arange(200_000) + 0.5) / 200_000
    quantile = lambda f: np.interp(u, below(f), fine)
    w2 = np.sqrt(np.mean((quantile(q) - quantile(p)) ** 2))
    np.testing.assert_allclose(law.w2, w2, rtol=1e-3)


def test_draws_follow_the_law():
    below = cases.distribution(cases.few_steps())
    assert scipy.stats.kstest(cases.draws()[:, 0], below).pvalue > 1e-3


@pytest.mark.parametrize("variance", ["posterior", "upper", "beta"])
def test_one_component_has_the_closed_form(x64, variance):
    law = cases.law(cases.one_component, ddpm(variance))
    exact = lab.output_law_gaussian(schedules.theory(25), 0.25, variance)
    normal = scipy.stats.norm(0, np.sqrt(float(exact.output)))
    near = np.abs(np.asarray(law.grid)) < 2
    np.testing.assert_allclose(law.log_q[near], normal.logpdf(law.grid[near]), atol=1e-6)
    np.testing.assert_allclose(law.tv, lab.tv_isotropic(1, *exact[:2]), rtol=1e-4)
    ratio = float(exact.output / exact.target)
    np.testing.assert_allclose(law.kl, 0.5 * (ratio - 1 - np.log(ratio)), rtol=1e-4)
    gap = np.sqrt(float(exact.output)) - np.sqrt(float(exact.target))
    np.testing.assert_allclose(law.w2, abs(gap), rtol=1e-3)


def test_folding_maps_go_through_quadrature(x64):
    """Both branches agree where both apply; a map that folds keeps its mass."""
    grid = jnp.linspace(-8, 8, 801)
    h = grid[1] - grid[0]

    @jax.jit
    def run(grid):
        log_q = -0.5 * grid**2 - 0.5 * jnp.log(2 * jnp.pi)
        m, slope = grid + 0.3 * jnp.sin(grid), 1 + 0.3 * jnp.cos(grid)
        frequencies = 2 * jnp.pi * jnp.fft.rfftfreq(2 * grid.size) / h
        smooth = density._smoothed(density._pushed(grid, h, log_q, m, slope), 0.4, frequencies)
        dense = density._quadrature(grid, h, log_q, m, 0.4)
        steps = lab.LineSteps(*(jnp.array([value]) for value in (1.0, 1.0, 1.0, 0.0, 0.5)))
        score = lambda x, i: 1.8 * jnp.sin(2 * x)  # m' = 1 + 3.6 cos 2x folds
        return smooth, dense, lab.propagate_density(score, grid, log_q, steps)

    smooth, dense, (folded, mass) = run(grid)
    np.testing.assert_allclose(smooth, dense, atol=1e-9)
    assert float(mass) < 1e-6
    x = np.random.default_rng(0).normal(size=200_000)
    y = x + 1.8 * np.sin(2 * x) + 0.5 * np.random.default_rng(1).normal(size=x.size)
    below = np.cumsum(np.exp(folded)) * float(h)
    middle = np.asarray(grid + h / 2)
    assert scipy.stats.kstest(y, lambda y: np.interp(y, middle, below)).pvalue > 1e-3


@pytest.mark.slow
def test_constant_score_errors(x64):
    """Values of an independent scheme at T = 100."""
    made = schedules.theory(100)

    @jax.jit
    def tv(delta):
        shift = lambda x, t: jnp.full_like(x, delta)
        return lab.output_density_1d(lab.three_modes(), made, "component", score_perturb=shift).tv

    got = [tv(delta) for delta in (0.01, 0.03, 0.1, 0.3)]
    np.testing.assert_allclose(got, [0.02937, 0.03808, 0.10067, 0.29431], rtol=1e-3)


def test_ddim_steps_are_the_sampler(x64):
    """Propagating DDIM's maps equals carrying its draws."""
    law = cases.law(cases.line, lab.ddim_steps)
    carried = lab.baseline_law_1d("ddim", cases.line(), schedules.theory(25))
    np.testing.assert_allclose(law.tv, carried.tv, rtol=1e-3)
    np.testing.assert_allclose(law.w2, carried.w2, rtol=1e-3)


def test_ddim_with_all_noise_is_ddpm(x64):
    made = schedules.theory(25)
    ours, theirs = lab.ddim_steps(made, 1.0), lab.ddpm_steps(made, "posterior")
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_the_grid_follows_the_smallest_deviation(x64):
    made = schedules.theory(50)
    assert lab.line_grid(cases.line(), made).size == 2001
    # σ = .01: 22 units of 15 points to √(ᾱ σ² + 1 − ᾱ)
    abar = float(made.abar[0])
    least = np.sqrt(abar * 1e-4 + 1 - abar)
    assert lab.line_grid(cases.line(sigma2=1e-4), made).size == np.ceil(1 + 22 * 15 / least)
    # a grid that was given and is too coarse: the law says so
    coarse = cases.law_of_steps(
        cases.line(sigma2=1e-4), made, jnp.linspace(-11, 11, 2001), lab.ddpm_steps(made, "beta")
    )
    assert not bool(coarse.valid)


@pytest.mark.slow
def test_narrow_components_keep_their_mass(x64):
    law = lab.output_density_1d(lab.collinear(8), schedules.theory(25), "component", n_grid=2001)
    assert float(law.mass) < 1e-6


def test_bad_input(as_user):
    made = schedules.theory(9)
    two = gmm.gaussian_mixture(
        jnp.array(cases.WEIGHTS), cases.line().means, jnp.array([0.1, 0.2, 0.3])
    )
    with pytest.raises(ValueError, match=r"variances .*: expected equal values.* choose another"):
        lab.output_density_1d(two, made, "component")
    with pytest.raises(ValueError, match=r"means: expected shape \(any, 1\), got \(3, 2\)"):
        lab.output_density_1d(cases.one_component(d=2), made, "beta")
    with pytest.raises(ValueError, match=r"n_grid \(points needed .*got 6[0-9][0-9]"):
        lab.output_density_1d(cases.line(), made, "beta", n_grid=100)
    with pytest.raises(ValueError, match=r"points needed for the smallest σ: expected"):
        lab.line_grid(cases.line(sigma2=0.0), schedules.theory(1000))
    with pytest.raises(ValueError, match=r"variance: expected one of .* got 'gamma'"):
        lab.output_density_1d(cases.line(), made, "gamma")
    with pytest.raises(ValueError, match=r"grid: expected at least 8 rows, got 1"):
        lab.output_law(cases.line(), made, jnp.ones(1), lab.ddim_steps(made))
    with pytest.raises(ValueError, match="eta: expected values in"):
        lab.ddim_steps(made, 1.5)


def test_lost_mass_raises_where_asked(as_user, x64, monkeypatch):
    """No grid is perfect: with no tolerance, every law has lost some."""
    law = cases.few_steps()
    assert 0 < law.mass < density.MASS_TOLERANCE
    monkeypatch.setattr(density, "MASS_TOLERANCE", 0.0)
    with pytest.raises(ValueError, match="mass lost by the propagated density: expected values"):
        lab.output_density_1d(cases.line(), schedules.theory(9), "component", throw=True)
