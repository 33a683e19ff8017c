"""Bounds in many dimensions against quadrature, closed forms and laws with known distance."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxicml.diffusion import schedules
from jaxicml.methods import ddpm_gmm as lab
from jaxicml.methods.ddpm_gmm import bounds
from tests.methods.ddpm_gmm import cases, reference

GRID = np.linspace(-9, 9, 601)


def path_kl(g, variance, seed=0, **options):
    made = schedules.theory(9)
    return lab.path_kl_bound(jax.random.key(seed), g, made, variance, 20_000, **options)


@pytest.mark.parametrize(
    "variance",
    ["posterior", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("component", "beta"))],
)
def test_path_kl_equals_quadrature(x64, variance):
    found = path_kl(cases.line(), variance)
    want = reference.path_kl(9, variance, GRID)
    assert abs(found.value - want) < 4 * found.se
    assert found.se < 0.05 * want


def test_one_component_has_the_closed_form(x64):
    made = schedules.theory(9)
    found = path_kl(cases.one_component(), "posterior", num_outer=5)
    betas, abar = (np.asarray(a) for a in (made.betas, made.abar))
    v = abar * 0.25 + 1 - abar
    w = betas[1:] * v[:-1] / v[1:]
    sd2 = betas[1:] * (1 - abar[:-1]) / (1 - abar[1:])
    kl = lambda r: 0.5 * (r - 1 - np.log(r))
    want = (1 + 5) * (kl(w / sd2).sum() + kl(v[-1]))
    # only KL(X_T ‖ N(0, I)) is drawn
    np.testing.assert_allclose(found.value, want, rtol=1e-4)


@pytest.mark.slow
def test_rotations_and_more_dimensions_change_nothing(x64):
    """A mixture in the plane along a line: the same bound as on the line."""
    first = path_kl(cases.line(), "component", num_outer=1)
    second = path_kl(cases.line(axis=(0.6, 0.8)), "component", seed=1)
    assert abs(first.value - second.value) < 4 * np.hypot(first.se, second.se)


def test_bounds_enclose_the_exact_distance(x64):
    exact = float(cases.few_steps().tv)
    # "component" has the smallest path KL: that of another rule bounds it too
    upper = lab.kl_to_tv(path_kl(cases.line(), "posterior").value)
    y, rng = cases.draws(), np.random.default_rng(0)
    clean = rng.choice([-3.0, 0.5, 3.0], len(y), p=cases.WEIGHTS) + 0.5 * rng.normal(size=len(y))
    abar = 1 - 9.0**-2
    x = np.sqrt(abar) * clean + np.sqrt(1 - abar) * rng.normal(size=len(y))
    lower = lab.tv_lower_bound(
        jax.random.key(4), jnp.asarray(x[:, None], "float32"), jnp.asarray(y), lambda z: z[:, 0]
    )
    assert 0 < lower.low < lower.value <= exact + 0.02
    assert lower.low < exact < upper


STATISTICS = {
    "threshold": lambda z: z[:, 0],
    "labels": lambda z: (z[:, 0] > 0.25).astype(int),
}


@functools.cache
def lower_bounds(kind):
    bound = functools.partial(lab.tv_lower_bound, statistic=STATISTICS[kind])
    return jax.jit(jax.vmap(bound))


@pytest.mark.parametrize("kind", STATISTICS)
def test_lower_bounds_hold_with_their_confidence(kind):
    """Two normals half a unit apart: TV = 2Φ(1/4) − 1; the bound exceeds it in at most 5 %."""
    truth = 2 * scipy.stats.norm.cdf(0.25) - 1
    x, y = np.random.default_rng(0).normal(size=(2, 400, 400, 1)).astype("float32")
    keys = jax.random.split(jax.random.key(0), 400)
    low = np.asarray(lower_bounds(kind)(keys, jnp.asarray(x), jnp.asarray(y + 0.5)).low)
    over = int((low > truth).sum())
    assert scipy.stats.binomtest(over, 400, 0.05, alternative="greater").pvalue > 1e-3
    assert low.max() > 0  # it says something
    x = jnp.asarray(x)
    assert np.all(lower_bounds(kind)(keys, x, x).low == 0)  # equal samples prove nothing


def test_tv_from_ratios_has_the_closed_form(x64):
    """Two normals half a unit apart, and laws that do not meet."""
    x = np.random.default_rng(0).normal(size=20_000)
    found = lab.tv_from_ratios(jnp.asarray(0.5 * x - 0.125))
    assert abs(found.value - (2 * scipy.stats.norm.cdf(0.25) - 1)) < 4 * found.se
    apart = lab.tv_from_ratios(jnp.full(4, -jnp.inf))
    assert (apart.value, apart.se) == (1, 0)


def test_path_kl_in_few_draws_at_once(x64, monkeypatch):
    """The same draws, seven at a time."""
    run = lambda: lab.path_kl_bound(
        jax.random.key(0), cases.line(), schedules.theory(9), "beta", 16
    )
    whole = run()
    monkeypatch.setattr(bounds, "_RESPONSIBILITIES", 21)
    jax.clear_caches()
    parts = run()
    jax.clear_caches()
    np.testing.assert_allclose(parts, whole, rtol=1e-9)


def test_pinsker():
    np.testing.assert_allclose(
        lab.kl_to_tv(jnp.array([-1e-9, 0.0, 0.5, 9.0])), [0, 0, 0.5, 1], rtol=1e-6
    )


def test_bad_input(as_user):
    x = jnp.zeros((8, 2))
    bound = lambda *args, **options: lab.tv_lower_bound(jax.random.key(0), *args, **options)
    with pytest.raises(ValueError, match=r"y: expected shape \(any, 2\), got \(8, 3\)"):
        bound(x, jnp.zeros((8, 3)), lambda z: z[:, 0])
    with pytest.raises(ValueError, match="x: expected at least 4 rows, got 3"):
        bound(x[:3], x, lambda z: z[:, 0])
    with pytest.raises(ValueError, match="y: expected finite values"):
        bound(x, x.at[0, 0].set(jnp.nan), lambda z: z[:, 0])
    with pytest.raises(ValueError, match=r"statistic\(x\): expected shape \(8\), got \(8, 2\)"):
        bound(x, x, lambda z: z)
    with pytest.raises(ValueError, match=r"statistic\(y\): expected finite values"):
        bound(x, x + 2, lambda z: jnp.log(1 - z[:, 0]))
    with pytest.raises(ValueError, match="statistic: expected a function, got int"):
        bound(x, x, 1)
    with pytest.raises(ValueError, match="level: expected values strictly between 0 and 1"):
        bound(x, x, lambda z: z[:, 0], level=1.0)
    with pytest.raises(ValueError, match="log_ratio: expected at least 2 rows, got 1"):
        lab.tv_from_ratios(jnp.zeros(1))
    with pytest.raises(ValueError, match="log_ratio: expected values in"):
        lab.tv_from_ratios(jnp.array([0.0, jnp.nan]))
    key, made = jax.random.key(0), schedules.theory(9)
    with pytest.raises(ValueError, match="n_mc: expected a whole number of at least 2"):
        lab.path_kl_bound(key, cases.line(), made, "beta", 1)
    with pytest.raises(ValueError, match="num_outer: expected a finite number of at least 0"):
        lab.path_kl_bound(key, cases.line(), made, "beta", 8, num_outer=-1)
