"""The public estimators and tests: identities, nulls, the maximum over ε, double robustness.

What they are made of is compared with NumPy in `test_terms`, `test_influence` and `test_folds`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from experiments.bench import sinkhorn_effect as bench
from jaxicml.methods import sinkhorn_effect as ste
from jaxicml.methods.sinkhorn_effect import estimator
from tests.methods.sinkhorn_effect import cases
from tests.methods.sinkhorn_effect import reference as ref
from tests.methods.sinkhorn_effect.cases import TOL, N, as_numpy, same_laws, sample

pytestmark = pytest.mark.slow

GRID = (3.0, 0.8, 1.0)
"""Not in order, so that nothing may rely on it."""

NUM_NULL = 4999


def aggregated(case, key=0, epsilons=GRID, **options):
    """One program for all tests that leave the options alone; NumPy arrays."""
    options = {"num_null": NUM_NULL, "regime_tol": None, "tol": TOL} | options
    out = ste.sinkhorn_effect_aggregated(
        jax.random.key(key), *case, epsilons=jnp.array(epsilons), **options
    )
    return jax.tree.map(np.asarray, out)


def second_orders(case):
    """I2 at each ε of the grid, which `test_influence` compares with its formula."""
    return [np.asarray(ste.second_order_eif(*case, epsilon=e, tol=TOL)) for e in GRID]


def draws(case, key=0):
    """(gᵀ I2 g − tr I2)/(2n) for one set of Gaussians g, a row an ε."""
    g = np.asarray(jax.random.normal(jax.random.key(key), (NUM_NULL, N)))
    forms = second_orders(case)
    return np.array([((g @ form * g).sum(1) - np.trace(form)) / (2 * N) for form in forms])


def upper(values, level):
    """The smallest of the draws that no more than a share `level` of all, and itself, reaches."""
    return np.sort(values, axis=-1)[..., -round(level * (NUM_NULL + 1))]


def on_common_atoms(case):
    """Atoms and both marginal weights."""
    *_, t1, t0, w1, w0 = as_numpy(case)
    p1 = np.concatenate([w1.mean(0), np.zeros(len(t0))])
    p0 = np.concatenate([np.zeros(len(t1)), w0.mean(0)])
    return np.vstack([t1, t0]), p1, p0


def test_estimates_follow_from_their_parts(x64):
    case = sample()
    out, forms = aggregated(case).per_eps, second_orders(case)
    for i, epsilon in enumerate(GRID):
        plugin = ref.divergence(*on_common_atoms(case), epsilon)
        eif1 = np.asarray(ste.first_order_eif(*case, epsilon=epsilon, tol=TOL))
        onestep = plugin + eif1.mean()
        off_diagonal = forms[i][~np.eye(N, dtype=bool)].mean()
        second_order = onestep + off_diagonal / 2
        se = np.sqrt(((eif1 - eif1.mean()) ** 2).mean() / N)
        z = scipy.stats.norm.ppf(0.975)
        expected = {
            "plugin": plugin,
            "onestep": onestep,
            "second_order": second_order,
            "statistic": N * second_order,
            "se": se,
            "ci_low": onestep - z * se,
            "ci_high": onestep + z * se,
            "eif1": eif1,
        }
        for name, value in expected.items():
            np.testing.assert_allclose(getattr(out, name)[i], value, atol=1e-7, err_msg=name)
    assert out.converged.all()


LEVELS = (0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9)


def test_one_set_of_gaussians_serves_all_epsilon(x64):
    """Every critical value is that of quadratic forms in the same Gaussians."""
    case = same_laws()
    expected = draws(case)
    for level in LEVELS:
        quantile = aggregated(case, alpha=level).per_eps.null_quantile
        np.testing.assert_allclose(quantile, upper(expected, level), rtol=1e-9)
    correlations = np.corrcoef(expected)
    assert correlations[1, 2] > 0.95  # ε = .8 and 1
    assert correlations.min() > 0.5
    other = aggregated(case, key=1).per_eps.null_quantile
    np.testing.assert_allclose(other, upper(draws(case, key=1), 0.05), rtol=1e-9)
    assert (other != upper(expected, 0.05)).all()


def test_null_draws_have_the_law_of_the_eigenvalues(x64):
    """Σ_j (λ_j/2)(N_j² − 1) with λ the eigenvalues of I2/n: its upper tails at all levels."""
    case = same_laws()
    normals = np.random.default_rng(0).normal(size=(NUM_NULL, N))
    by_values = [(normals**2 - 1) @ np.linalg.eigvalsh(f / N) / 2 for f in second_orders(case)]
    doubled = []
    for level in LEVELS:
        quantiles = aggregated(case, alpha=level).per_eps.null_quantile[:, None]
        # both sides are samples
        error = 4 * np.sqrt(2 * level * (1 - level) / NUM_NULL)
        np.testing.assert_allclose((by_values > quantiles).mean(1), level, atol=error)
        doubled.append(np.abs((by_values > 2 * quantiles).mean(1) - level).max() / error)
    # twice the draws, as without the factor ½, are another law
    assert max(doubled) > 2


def test_test_has_the_size_of_its_null(x64):
    """p-values of single ε are ranks among the draws."""
    case = same_laws(3)
    out, null = aggregated(case, alpha=0.1).per_eps, draws(case)
    p_values = (1 + (null >= out.statistic[:, None]).sum(1)) / (NUM_NULL + 1)
    np.testing.assert_allclose(out.p_value, p_values)
    # the 500th largest of 4999
    np.testing.assert_allclose(out.null_quantile, np.sort(null)[:, -500])


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize(("alpha", "beta", "rank"), [(0.05, 0.2, 1000), (0.05, None, 250)])
def test_maximum_over_epsilon(seed, alpha, beta, rank, x64):
    """max_ε T_ε/q_ε against the same maximum in every joint draw; q at the level β."""
    case = same_laws(seed)
    out, null = aggregated(case, alpha=alpha, beta=beta), draws(case)
    scales = np.sort(null, axis=1)[:, -rank]
    statistic = (out.per_eps.statistic / scales).max()
    maxima = (null / scales[:, None]).max(0)
    np.testing.assert_allclose(out.statistic, statistic)
    np.testing.assert_allclose(out.p_value, (1 + (maxima >= statistic).sum()) / (NUM_NULL + 1))
    assert bool(out.reject) == bool(out.p_value <= alpha)
    # single tests stay at the level α
    np.testing.assert_allclose(out.per_eps.null_quantile, np.sort(null, axis=1)[:, -250])


def guarded(case, out, tolerances):
    """The summary of `out` under other guards, from what its fold says; one program."""
    effects = out.per_eps
    correction = 2 * (effects.second_order - effects.onestep)
    fields = (effects.plugin, effects.eif1, correction, draws(case), out.regime_ratio)
    terms = estimator.FoldTerms(*map(jnp.asarray, (*fields, effects.converged)))
    fixed = (jnp.array(GRID), jnp.asarray(0.0), 0.05, 0.05)
    both = jax.jit(lambda terms: [estimator.summarise([terms], *fixed, t) for t in tolerances])
    return both(terms)


def test_regime_ratio_and_guard(x64):
    case = sample(shift=3.0)
    plain = aggregated(case)
    assert plain.kept.all()
    y, a, e, *_ = as_numpy(case)
    t, p1, p0 = on_common_atoms(case)
    weights = a / e + (1 - a) / (1 - e)
    mu = np.concatenate([weights / weights.sum(), (p1 + p0) / 2]) / 2
    difference = np.concatenate([np.zeros(N), p1 - p0])
    for i, epsilon in enumerate(GRID):
        k = ref.hadamard_kernel(np.vstack([y, t]), mu, epsilon)
        ratio = 2 * ref.divergence(t, p1, p0, epsilon) / (difference @ k @ difference)
        np.testing.assert_allclose(plain.regime_ratio[i], ratio, rtol=1e-6)

    distance = np.abs(plain.regime_ratio - 1)
    between = float(np.sort(distance)[:2].mean())
    out, strict = guarded(case, plain, (between, 1e-12))
    expected = (distance <= between) | (np.array(GRID) == max(GRID))
    np.testing.assert_array_equal(out.kept, expected)
    assert not out.kept.all()
    scaled = np.asarray(out.per_eps.statistic) / np.asarray(out.per_eps.null_quantile)
    np.testing.assert_allclose(out.statistic, scaled[expected].max())
    # the largest ε alone where nothing else is allowed
    np.testing.assert_array_equal(strict.kept, [True, False, False])
    np.testing.assert_allclose(strict.p_value, plain.per_eps.p_value[0])


def test_tiny_epsilon_says_nothing(x64):
    out = aggregated(sample(), epsilons=(3.0, 1e-7, 1.0))
    np.testing.assert_array_equal(out.per_eps.converged, [True, False, True])
    np.testing.assert_array_equal(np.isnan(out.per_eps.p_value), [False, True, False])
    np.testing.assert_array_equal(out.kept, [True, False, True])
    assert np.isfinite(out.p_value)
    # without the largest ε there is no test at all
    none = aggregated(sample(), epsilons=(1e-6, 1e-7, 1e-8))
    assert np.isnan(none.p_value)
    assert not none.reject
    assert not none.kept.any()


def test_clipped_propensities(x64):
    y, a, e, law = sample()
    extreme = np.array(e)
    extreme[[0, 5, 9]] = 0.001, 0.999, 0.02
    ours, theirs = (
        aggregated((y, a, jnp.asarray(e), law)) for e in (extreme, extreme.clip(0.02, 0.98))
    )
    np.testing.assert_allclose(ours.per_eps.clipped, 2 / N)
    np.testing.assert_allclose(theirs.per_eps.clipped, 0)
    np.testing.assert_allclose(ours.per_eps.statistic, theirs.per_eps.statistic)
    np.testing.assert_allclose(ours.per_eps.eif1, theirs.per_eps.eif1)


def test_duplicate_outcomes(x64):
    y, *rest = sample()
    out = aggregated((jnp.asarray(np.round(y)), *rest))
    assert out.per_eps.converged.all()
    for leaf in jax.tree.leaves(out):
        assert np.isfinite(leaf).all()
    assert (out.p_value > 0) & (out.p_value <= 1)


def test_the_pipeline_of_the_benchmark_says_the_same(x64):
    """Vectorised NumPy, which wants one list of atoms."""
    y, a, e, t1, t0, w1, w0 = as_numpy(sample())
    rows = np.pad(w1, ((0, 0), (0, len(t0)))), np.pad(w0, ((0, 0), (len(t1), 0)))
    law = cases.law(np.vstack([t1, t0]), np.vstack([t1, t0]), *rows, shared=True)
    theirs = bench.numpy_pipeline(
        0, jax.tree.map(np.asarray, bench.Sample(y, a, e, law, GRID)), NUM_NULL
    )
    ours = aggregated(sample())
    for name in ("plugin", "onestep", "second_order"):
        np.testing.assert_allclose(getattr(theirs, name), getattr(ours.per_eps, name), rtol=1e-6)
    # other draws of the same null
    np.testing.assert_allclose(theirs.p_value, ours.p_value, atol=0.03)


DIFFERENTIATED = ("plugin", "onestep", "second_order", "ci_low", "statistic")


@jax.jit
def effect(key, case, epsilon):
    """The result at one ε, and the slopes of some of its fields in treated atoms and weights."""
    y, a, e, law = case

    def fields(atoms, rows):
        moved = ste.ConditionalLaw(atoms, law.atoms0, rows, law.weights0)
        out = ste.sinkhorn_treatment_effect(
            key, y, a, e, moved, epsilon=epsilon, num_null=NUM_NULL, tol=TOL
        )
        return jnp.stack([getattr(out, name) for name in DIFFERENTIATED]), out

    slopes, out = jax.jacrev(fields, (0, 1), has_aux=True)(law.atoms1, law.weights1)
    return out, slopes


def test_one_epsilon_is_the_grid_of_one(x64):
    case = sample()
    one, _ = effect(jax.random.key(0), case, GRID[1])
    many = jax.tree.map(lambda leaf: leaf[1], aggregated(case).per_eps)
    for name in one._fields:
        np.testing.assert_allclose(getattr(one, name), getattr(many, name), atol=1e-8, err_msg=name)


def test_plugin_alone_is_differentiable_in_the_laws(x64):
    *observed, _ = sample()
    t1, t0, w1, w0 = as_numpy(sample())[3:]
    key, h = jax.random.key(0), 1e-5
    _, (by_atoms, by_rows) = effect(key, sample(), 0.8)
    np.testing.assert_array_equal(by_atoms[1:], np.zeros((4, 9, 2)))
    np.testing.assert_array_equal(by_rows[1:], np.zeros((4, N, 9)))

    def slope(atoms, rows):
        laws = (cases.law(t1 + s * atoms, t0, w1 + s * rows, w0) for s in (h, -h))
        ends = [float(effect(key, (*observed, moved), 0.8)[0].plugin) for moved in laws]
        return (ends[0] - ends[1]) / (2 * h)

    for i, j in ((0, 0), (4, 1)):
        step = np.zeros((9, 2))
        step[i, j] = 1
        np.testing.assert_allclose(by_atoms[0, i, j], slope(step, 0), rtol=1e-5)
    # weights move within the simplex
    step = np.zeros((N, 9))
    step[3, :2] = 1, -1
    np.testing.assert_allclose(by_rows[0, 3, 0] - by_rows[0, 3, 1], slope(0, step), rtol=1e-5)


THETA, WIDE, ROWS = 1.5, 4.0, 400
ATOMS = np.linspace(-8.0, 10.0, 60)
"""They resolve the conditional laws below."""


def confounded(seed, n=ROWS):
    """One covariate that moves treatment and outcome; S = ½θ² exactly, since variances agree."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    e = 1 / (1 + np.exp(-x))
    a = (rng.random(n) < e).astype(float)
    return x, a, e, (THETA * a + x + rng.normal(size=n))[:, None]


def law_of(x, deviation, bias=0.0):
    """Y | a, x ~ N(x + (θ + 2 bias) a − bias, deviation²)."""
    rows = []
    for mean in (THETA + x + bias, x - bias):
        density = np.exp(-((ATOMS - mean[:, None]) ** 2) / (2 * deviation**2))
        rows.append(density / density.sum(1, keepdims=True))
    return ATOMS[:, None], ATOMS[:, None], *rows


def in_float32(function, y, a, e, law, epsilon=WIDE, **options):
    narrow = lambda *arrays: (jnp.asarray(v, "float32") for v in arrays)
    law = ste.ConditionalLaw(*narrow(*law), shared=True)
    return function(*narrow(y, a, e), law, epsilon=epsilon, **options)


def effect_in_float32(seed, *sample, **options):
    function = functools.partial(ste.sinkhorn_treatment_effect, jax.random.key(seed))
    return in_float32(function, *sample, num_null=99, **options)


def test_float32_agrees_with_float64(x64):
    """In NumPy."""
    x, a, e, y = confounded(0)
    narrow = effect_in_float32(0, y, a, e, law_of(x, 1.0))
    assert narrow.converged
    assert narrow.se.dtype == "float32"
    law = cases.law(*law_of(x, 1.0), shared=True)
    sample = jax.tree.map(np.asarray, bench.Sample(y, a, e, law, np.array([WIDE])))
    wide = bench.numpy_pipeline(0, sample, 99)
    for name in ("plugin", "onestep", "second_order"):
        ours, theirs = getattr(narrow, name), getattr(wide, name)[0]
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, err_msg=name)


def test_epsilon_beyond_the_digits_of_float32_is_flagged(x64):
    x, a, e, y = confounded(0)
    far = effect_in_float32(0, y, a, e, law_of(x, 1.0), epsilon=1e8)
    assert not far.converged
    assert np.isnan(far.p_value)


def with_one_wrong_nuisance(seed, wrong_law):
    x, a, e, y = confounded(seed)
    law = law_of(0 * x, np.sqrt(2.0), bias=0.5) if wrong_law else law_of(x, 1.0)
    out = effect_in_float32(seed, y, a, e if wrong_law else 0 * e + 0.5, law)
    assert out.converged
    return out.plugin, out.onestep, out.second_order


def test_double_robustness(x64):
    truth = THETA**2 / 2
    means = np.mean([with_one_wrong_nuisance(seed, True) for seed in range(8)], axis=0)
    plugin, onestep, second_order = np.abs(means - truth)
    assert plugin > 1.5  # ½(θ + 1)² − ½θ²
    # the error that is left is of second order, and the second order removes most of it
    assert onestep < plugin / 2
    assert second_order < plugin / 5
    # a wrong propensity does no harm where the law is right
    means = np.mean([with_one_wrong_nuisance(seed, False) for seed in range(8)], axis=0)
    assert abs(means[1] - truth) < 0.15


def mean_influence(seed, n):
    """With the true nuisances."""
    x, a, e, y = confounded(seed, n)
    if n == ROWS:
        return float(effect_in_float32(seed, y, a, e, law_of(x, 1.0)).eif1.mean())
    return float(in_float32(ste.first_order_eif, y, a, e, law_of(x, 1.0)).mean())


def test_mean_influence_vanishes_like_the_root_of_n(x64):
    sizes = np.array([25, ROWS])
    spread = [np.std([mean_influence(seed, int(n)) for seed in range(50)]) for n in sizes]
    slope = np.polyfit(np.log(sizes), np.log(spread), 1)[0]
    assert -0.65 < slope < -0.35


def test_weights_may_be_off_by_rounding(x64, as_user):
    *observed, law = sample()
    rows = np.array(law.weights1)
    rows[3, 0] += 5e-7
    off = cases.law(law.atoms1, law.atoms0, rows, law.weights0)
    assert np.isfinite(aggregated((*observed, off)).p_value)
