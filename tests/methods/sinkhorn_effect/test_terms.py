"""What one fold says, and what the folds say together, against NumPy.

The compiled functions are those of the front door, at the shapes of its tests.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxicml.methods.sinkhorn_effect import analysis, estimator
from tests.methods.sinkhorn_effect import cases
from tests.methods.sinkhorn_effect import reference as ref

N, NUM_NULL = 100, 199
GRID = np.array([3.0, 0.8, 1.0, 10.0, 2.0])
"""Not in order, so that nothing may rely on it."""


def fold(seed=0, shift=0.7):
    """Outcomes, treatment, propensity, and a law on shared atoms of which each arm has half."""
    rng = np.random.default_rng(seed)
    a, arm = np.arange(N) % 2.0, rng.permutation(N) % 2.0
    y, t = (rng.normal(size=(N, 1)) + shift * on[:, None] for on in (a, arm))
    rows = [cases.weights(rng, N, N) * (arm == k) for k in (1, 0)]
    rows = [row / row.sum(1, keepdims=True) for row in rows]
    return y, a, rng.uniform(0.3, 0.7, N), t, *rows


def fold_terms(case, key=0, grid=GRID):
    y, a, e, t, w1, w0 = case
    out = analysis._fold_terms(
        jax.random.key(key),
        *map(jnp.asarray, (y, a, e)),
        cases.law(t, t, w1, w0, shared=True),
        jnp.asarray(grid),
        num_null=NUM_NULL,
        reference="balanced",
        tol=None,
        max_iter=analysis.MAX_ITER,
    )
    return jax.tree.map(np.asarray, out)


def by_hand(case, key, epsilon):
    """(plugin, I1, U, null draws, ρ) at one ε."""
    y, a, e, t, w1, w0 = case
    arms = {k: w.any(0) for k, w in ((1, w1), (0, w0))}
    p1, p0 = w1.mean(0), w0.mean(0)
    plugin = ref.divergence(t, p1, p0, epsilon)
    atoms, rows = {k: t[arms[k]] for k in arms}, {1: w1[:, arms[1]], 0: w0[:, arms[0]]}
    eif1 = ref.first_order(y, a, e, atoms, rows, epsilon)
    rows1, rows0 = ref.signed_directions(a, e, w1, w0)
    weights = a / e + (1 - a) / (1 - e)
    mu = np.concatenate([weights / weights.sum(), (p1 + p0) / 2]) / 2
    k = ref.hadamard_kernel(np.vstack([y, t]), mu, epsilon)
    eif2 = (rows1 - rows0) @ k @ (rows1 - rows0).T
    g = np.asarray(jax.random.normal(jax.random.key(key), (NUM_NULL, N)))
    null = ((g @ eif2 * g).sum(1) - np.trace(eif2)) / (2 * N)
    difference = np.concatenate([np.zeros(N), p1 - p0])
    off_diagonal = eif2[~np.eye(N, dtype=bool)].mean()
    return plugin, eif1, off_diagonal, null, 2 * plugin / (difference @ k @ difference)


def test_terms_of_a_fold_equal_numpy(x64):
    """One set of Gaussians serves every ε, and the null carries its factor ½."""
    ours = fold_terms(fold(), key=4)
    assert ours.converged.all()
    for i, epsilon in enumerate(GRID):
        expected = by_hand(fold(), 4, epsilon)
        for name, value in zip(ours._fields, expected, strict=False):
            np.testing.assert_allclose(
                getattr(ours, name)[i], value, rtol=1e-6, atol=1e-8, err_msg=name
            )


def few_atoms(case):
    """The same but for laws of 9 and 8 atoms."""
    y, a, e, t, w1, w0 = case
    place = np.arange(N)
    chosen = [w * ((place >= low) & (place < high)) for w, low, high in ((w1, 0, 20), (w0, 60, 80))]
    return y, a, e, t, *(w / w.sum(1, keepdims=True) for w in chosen)


def test_first_order_is_the_gateaux_derivative(x64):
    """Along the direction of every observation, which puts mass where there was none."""
    y, a, e, t, w1, w0 = case = few_atoms(fold(2))
    z, nothing = np.vstack([y, t]), np.zeros(N)
    p1, p0 = (np.concatenate([nothing, w.mean(0)]) for w in (w1, w0))
    on1, on0 = ref.signed_directions(a, e, w1, w0)
    epsilon = GRID[4]
    base = ref.divergence(z, p1, p0, epsilon)

    def slope(h, i):
        return (ref.divergence(z, p1 + h * on1[i], p0 + h * on0[i], epsilon) - base) / h

    slopes = [ref.extrapolated(functools.partial(slope, i=i), 2e-6) for i in range(N)]
    np.testing.assert_allclose(fold_terms(case).eif1[4], slopes, rtol=1e-4, atol=1e-6)


def test_a_tiny_epsilon_is_flagged(x64):
    grid = np.where(GRID == 1.0, 1e-7, GRID)
    np.testing.assert_array_equal(fold_terms(fold(), grid=grid).converged, GRID != 1.0)


@pytest.mark.parametrize("what", ["propensity", "weights"])
def test_nuisances_that_are_no_probabilities_are_flagged(what, x64):
    y, a, e, t, w1, w0 = fold()
    if what == "propensity":
        e[3] = np.nan
    else:
        w1[3] *= 2
    assert not fold_terms((y, a, e, t, w1, w0)).converged.any()


def test_equal_laws_have_no_effect(x64):
    y, a, e, t, w1, w0 = fold(shift=0.0)
    both = (w1 + w0) / 2
    out = fold_terms((y, a, e, t, both, both))
    np.testing.assert_allclose(out.plugin, 0, atol=1e-9)
    np.testing.assert_allclose(out.eif1, 0, atol=1e-8)
    np.testing.assert_array_equal(out.regime, 1)


@pytest.mark.parametrize("scale", [1e-9, 1e-4, 1e4])
def test_units_do_not_matter(scale, x64):
    y, a, e, t, w1, w0 = fold(shift=4.0)
    grid = scale**2 * GRID
    plain = fold_terms((y, a, e, t, w1, w0))
    other = fold_terms((scale * y, a, e, scale * t, w1, w0), grid=grid)
    np.testing.assert_allclose(other.regime, plain.regime, rtol=1e-5)
    one, two = summarise([plain, plain]), summarise([other, other], grid=grid)
    assert not one.kept.all()
    np.testing.assert_array_equal(two.kept, one.kept)
    np.testing.assert_allclose(two.p_value, one.p_value)
    for name in ("plugin", "onestep", "second_order", "se"):
        ours, theirs = getattr(two.per_eps, name), getattr(one.per_eps, name)
        np.testing.assert_allclose(ours, scale**2 * theirs, rtol=1e-5)


@pytest.mark.parametrize("kind", ["duplicates", "arms of 2 and 30 atoms"])
def test_unusual_samples(kind, x64):
    y, a, e, t, w1, w0 = fold()
    if kind == "duplicates":
        y, t = np.round(y), np.round(t)
    else:
        place = np.arange(N)
        w1, w0 = w1 * 0 + (place < 2) / 2, w0 * 0 + (place >= 70) / 30
    case = (y, a, e, t, w1, w0)
    ours = fold_terms(case)
    assert ours.converged.all()
    for leaf in ours:
        assert np.isfinite(leaf).all()
    expected = by_hand(case, 0, GRID[1])
    for name, value in zip(ours._fields, expected, strict=False):
        found = getattr(ours, name)[1]
        np.testing.assert_allclose(found, value, rtol=1e-6, atol=1e-8, err_msg=name)


def some_terms(seed, **changes):
    """Numbers of any origin: what is done with them does not depend on it."""
    rng = np.random.default_rng(seed)
    e = len(GRID)
    terms = estimator.FoldTerms(
        plugin=rng.normal(size=e),
        eif1=rng.normal(size=(e, N)),
        correction=0.1 * rng.normal(size=e),
        null=30 * rng.normal(size=(e, NUM_NULL)) * rng.uniform(0.5, 2, e)[:, None],
        regime=1 + 0.12 * rng.normal(size=e),
        converged=np.ones(e, bool),
    )
    return terms._replace(**changes)


def summarise(folds, alpha=0.1, beta=0.1, clipped=0.25, grid=GRID):
    arrays = jax.tree.map(jnp.asarray, (folds, grid, clipped, alpha, beta))
    return jax.tree.map(np.asarray, analysis._summarise(*arrays, regime_tol=0.1))


def upper(values, level):
    """The draw that a share `level` of the draws and the statistic reaches."""
    return np.sort(values, axis=-1)[..., -round(level * (NUM_NULL + 1))]


def p_value(statistic, null):
    return (1 + (null >= statistic).sum(-1)) / (NUM_NULL + 1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("alpha", "beta"), [(0.1, 0.1), (0.05, 0.2)])
def test_folds_and_epsilons_add_up(seed, alpha, beta, x64):
    """max_ε T_ε/q_ε over the ε that the guard keeps, against the same maximum in every draw."""
    folds = [some_terms(10 * seed + k) for k in (0, 1)]
    out = summarise(folds, alpha, beta)
    stacked = estimator.FoldTerms(*map(np.stack, zip(*folds, strict=True)))
    onesteps = stacked.plugin + stacked.eif1.mean(2)
    second_orders = onesteps + stacked.correction / 2
    statistic, null = N * second_orders.sum(0), stacked.null.sum(0)
    eif1 = np.concatenate(stacked.eif1, axis=1)
    se = eif1.std(1) / np.sqrt(2 * N)
    half = scipy.stats.norm.ppf(1 - alpha / 2) * se
    expected = {
        "plugin": stacked.plugin.mean(0),
        "onestep": onesteps.mean(0),
        "second_order": second_orders.mean(0),
        "se": se,
        "ci_low": onesteps.mean(0) - half,
        "ci_high": onesteps.mean(0) + half,
        "statistic": statistic,
        "p_value": p_value(statistic[:, None], null),
        "null_quantile": upper(null, alpha),
        "eif1": eif1,
        "clipped": np.full(len(GRID), 0.25),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(out.per_eps, name), value, rtol=1e-9, err_msg=name)

    furthest = np.abs(stacked.regime - 1).argmax(0)
    regime = stacked.regime[furthest, range(len(GRID))]
    kept = (np.abs(regime - 1) <= 0.1) | (max(GRID) == GRID)
    scales = upper(null, beta)
    maximum = (statistic / scales)[kept].max()
    maxima = (null / scales[:, None])[kept].max(0)
    np.testing.assert_allclose(out.regime_ratio, regime)
    np.testing.assert_array_equal(out.kept, kept)
    np.testing.assert_allclose(out.statistic, maximum)
    np.testing.assert_allclose(out.p_value, p_value(maximum, maxima))
    assert bool(out.reject) == bool(out.p_value <= alpha)


def test_what_did_not_converge_says_nothing(x64):
    """Without the largest ε there is no test at all."""
    near = dict.fromkeys(["regime"], np.ones(len(GRID)))
    failed = lambda epsilon: [
        some_terms(0, **near),
        some_terms(1, **near, converged=epsilon != GRID),
    ]
    out = summarise(failed(0.8))
    np.testing.assert_array_equal(np.isnan(out.per_eps.p_value), GRID == 0.8)
    np.testing.assert_array_equal(out.kept, GRID != 0.8)
    assert np.isfinite(out.p_value)
    none = summarise(failed(10.0))
    assert np.isnan(none.p_value)
    assert not none.reject
    assert not none.kept[3]


def test_the_largest_epsilon_alone_where_nothing_else_is_quadratic(x64):
    folds = [some_terms(k, regime=np.full(len(GRID), 1.5)) for k in (0, 1)]
    out = summarise(folds)
    np.testing.assert_array_equal(out.kept, GRID == 10.0)
    np.testing.assert_allclose(out.p_value, out.per_eps.p_value[3])
