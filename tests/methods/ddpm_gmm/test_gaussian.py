"""One Gaussian: the variance recursion and the distance between two Gaussians."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxicml.diffusion import gmm, schedules
from jaxicml.methods import ddpm_gmm as lab
from tests.methods.ddpm_gmm import reference

VARIANCES = ("component", "posterior", "upper", "beta")


def output_variance(T, sigma2, kind):
    """The recursion as it stands, in extended precision."""
    betas = reference.theory_betas(T).astype(np.longdouble)
    abar = np.exp(np.cumsum(np.log1p(-betas)))
    v = abar * sigma2 + 1 - abar
    out = np.longdouble(1)
    for t in range(T - 1, 0, -1):
        sd2 = {
            "component": betas[t] * v[t - 1] / v[t],
            "posterior": betas[t] * (1 - abar[t - 1]) / (1 - abar[t]),
            "upper": betas[t] / (1 - betas[t]),
            "beta": betas[t],
        }[kind]
        out = (1 - betas[t]) * v[t - 1] ** 2 / v[t] ** 2 * out + sd2
    return float(out), float(v[0])


@pytest.mark.parametrize("kind", VARIANCES)
@pytest.mark.parametrize("sigma2", [0.0, 0.25, 1.0])
def test_recursion(x64, kind, sigma2):
    law = lab.output_law_gaussian(schedules.theory(50), sigma2, kind)
    out, target = output_variance(50, sigma2, kind)
    np.testing.assert_allclose(law.output, out, rtol=1e-12)
    np.testing.assert_allclose(law.target, target, rtol=1e-12)
    np.testing.assert_allclose(law.excess, out / target - 1, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("T", "kind", "excess"),
    [
        (50, "posterior", -0.1381),
        (50, "upper", 0.2144),
        (50, "beta", 0.0778),
        pytest.param(200, "posterior", -0.0533, marks=pytest.mark.slow),
        pytest.param(200, "upper", 0.0671, marks=pytest.mark.slow),
        pytest.param(200, "beta", 0.0270, marks=pytest.mark.slow),
        (800, "posterior", -0.01774),
        (800, "upper", 0.0207),
        (800, "beta", 0.00862),
    ],
)
def test_usual_variances_miss_by_log_T_over_T(x64, T, kind, excess):
    law = lab.output_law_gaussian(schedules.theory(T), 0.25, kind)
    np.testing.assert_allclose(law.excess, excess, rtol=5e-3)


@pytest.mark.parametrize(
    ("T", "excess"), [(25, 2.4e-8), (50, 2.6e-9), (100, 2.1e-10), (800, 6e-14)]
)
def test_component_misses_by_the_start_alone(x64, T, excess):
    law = lab.output_law_gaussian(schedules.theory(T), 0.25, "component")
    np.testing.assert_allclose(law.excess, excess, rtol=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["posterior", "beta"])
def test_draws_have_the_variance(kind):
    made = schedules.theory(25)
    g = gmm.gaussian_mixture(jnp.ones(1), jnp.zeros((1, 1)), 0.25)
    x = lab.ddpm_sample(
        jax.random.key(0), lab.mixture_score(g, made), made, (200_000, 1), variance=kind
    ).x
    want = output_variance(25, 0.25, kind)[0]
    # the standard error of a variance is √(2/n) of it
    assert abs(np.var(x) / want - 1) < 4 * np.sqrt(2 / 200_000)


@pytest.mark.parametrize("n", [1, 2, 7, 100, 10_000])
@pytest.mark.parametrize(("a", "b"), [(1.0, 1.1), (0.3, 2.0), (2.0, 1.999)])
def test_distance_equals_scipy(x64, n, a, b):
    low, high = min(a, b), max(a, b)
    crossing = n * np.log(high / low) / (1 / low - 1 / high)
    chi2 = scipy.stats.chi2(n)
    np.testing.assert_allclose(
        lab.tv_isotropic(n, a, b), chi2.cdf(crossing / low) - chi2.cdf(crossing / high), rtol=1e-7
    )


def test_distance_on_the_line_by_quadrature(x64):
    x = np.linspace(-30, 30, 600_001)
    p, q = scipy.stats.norm(0, 1).pdf(x), scipy.stats.norm(0, 2).pdf(x)
    want = 0.5 * np.abs(p - q).sum() * (x[1] - x[0])
    np.testing.assert_allclose(lab.tv_isotropic(1, 1.0, 4.0), want, rtol=1e-7)


@pytest.mark.parametrize(("n", "a", "b", "want"), [(5, 1.0, 1.0, 0.0), (0, 1.0, 2.0, 0.0)])
def test_equal_laws_and_no_dimensions(x64, n, a, b, want):
    assert float(lab.tv_isotropic(n, a, b)) == want


def test_a_million_dimensions(x64):
    law = lab.output_law_gaussian(schedules.theory(100), 0.25, "component")
    np.testing.assert_allclose(
        lab.tv_isotropic(10**6, law.target, law.target * (1 + law.excess)), 5.9e-8, rtol=0.02
    )
