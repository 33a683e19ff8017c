"""Estimators and tests: identities, nulls, the maximum over ε, folds, double robustness."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxicml.methods import sinkhorn_effect as ste
from jaxicml.methods.sinkhorn_effect import estimator
from tests.methods.sinkhorn_effect import reference as ref
from tests.methods.sinkhorn_effect.cases import same_laws, sample

N = 24
GRID = (3.0, 0.8, 1.0)
"""Not in order, so that nothing may rely on it."""

NUM_NULL = 4999

fold_terms = jax.jit(
    functools.partial(
        estimator.fold_terms, num_null=NUM_NULL, reference="balanced", tol=None, max_iter=2000
    )
)
summarise = jax.jit(estimator.summarise, static_argnames="regime_tol")


def aggregated(case, key=0, epsilons=GRID, **options):
    """One program for all tests that leave the options alone."""
    options = {"num_null": NUM_NULL, "regime_tol": None} | options
    return ste.sinkhorn_effect_aggregated(
        jax.random.key(key), *case, epsilons=jnp.array(epsilons), **options
    )


def terms(case, key=0, epsilons=GRID):
    return fold_terms(jax.random.key(key), *case, jnp.array(epsilons))


def case_of_arms(seed=0, shift=0.7):
    return sample(seed, n=N, m0=9, shift=shift)


def null_case(seed=0):
    return same_laws(seed, n=N)


def on_common_atoms(law):
    """Atoms and both marginal weights as NumPy arrays."""
    t = np.vstack([law.atoms1, law.atoms0])
    p1 = np.concatenate([law.weights1.mean(0), np.zeros(len(law.atoms0))])
    p0 = np.concatenate([np.zeros(len(law.atoms1)), law.weights0.mean(0)])
    return t, p1, p0


def test_estimates_follow_from_their_parts(x64):
    case = case_of_arms()
    out = aggregated(case).per_eps
    t, p1, p0 = on_common_atoms(case[3])
    for i, epsilon in enumerate(GRID):
        plugin = ref.divergence(t, p1, p0, epsilon)
        eif1 = np.asarray(ste.first_order_eif(*case, epsilon=epsilon))
        eif2 = np.asarray(ste.second_order_eif(*case, epsilon=epsilon))
        onestep = plugin + eif1.mean()
        off_diagonal = eif2[~np.eye(N, dtype=bool)].mean()
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


def test_one_epsilon_is_the_grid_of_one(x64):
    case = case_of_arms()
    one = ste.sinkhorn_treatment_effect(
        jax.random.key(0), *case, epsilon=GRID[1], num_null=NUM_NULL
    )
    many = jax.tree.map(lambda leaf: leaf[1], aggregated(case).per_eps)
    for name in one._fields:
        np.testing.assert_allclose(getattr(one, name), getattr(many, name), atol=1e-8, err_msg=name)


def test_null_draws_have_the_law_of_the_eigenvalues(x64):
    """(gᵀ I2 g − tr I2)/(2n) = Σ_j (λ_j/2)(N_j² − 1) with λ the eigenvalues of I2/n."""
    case = null_case()
    draws = np.asarray(terms(case, epsilons=(1.0,) * 3).null[0])
    eif2 = np.asarray(ste.second_order_eif(*case, epsilon=1.0))
    values = np.linalg.eigvalsh(eif2 / N)
    normals = np.random.default_rng(0).normal(size=(NUM_NULL, N))
    by_values = (normals**2 - 1) @ values / 2
    assert scipy.stats.ks_2samp(draws, by_values).pvalue > 0.01
    # twice the draws, as without the factor ½, are another law
    assert scipy.stats.ks_2samp(2 * draws, by_values).pvalue < 1e-6
    variance = np.trace(eif2 @ eif2) / (2 * N**2)
    assert abs(draws.mean()) < 4 * np.sqrt(variance / NUM_NULL)
    np.testing.assert_allclose(draws.var(), variance, rtol=0.12)


def test_test_has_the_size_of_its_null(x64):
    """p-value and critical value of one ε are those of the draws."""
    case = null_case(3)
    out, draws = aggregated(case, alpha=0.1).per_eps, np.asarray(terms(case).null)
    for i in range(len(GRID)):
        statistic = float(out.statistic[i])
        p_value = (1 + (draws[i] >= statistic).sum()) / (NUM_NULL + 1)
        np.testing.assert_allclose(out.p_value[i], p_value)
        # the 500th largest of 4999
        np.testing.assert_allclose(out.null_quantile[i], np.sort(draws[i])[-500])


def test_one_set_of_gaussians_serves_all_epsilon(x64):
    draws = np.asarray(terms(null_case()).null)
    correlations = np.corrcoef(draws)
    assert correlations[1, 2] > 0.95  # ε = .8 and 1
    assert correlations.min() > 0.5
    other = np.asarray(terms(null_case(), key=1).null)
    assert abs(np.corrcoef(draws[0], other[0])[0, 1]) < 0.08


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize(("alpha", "beta", "rank"), [(0.05, 0.2, 1000), (0.05, None, 250)])
def test_maximum_over_epsilon(seed, alpha, beta, rank, x64):
    """max_ε T_ε/q_ε against the same maximum in every joint draw; q at the level β."""
    case = null_case(seed)
    out, draws = aggregated(case, alpha=alpha, beta=beta), np.asarray(terms(case).null)
    scales = np.sort(draws, axis=1)[:, -rank]
    statistic = (np.asarray(out.per_eps.statistic) / scales).max()
    null = (draws / scales[:, None]).max(0)
    np.testing.assert_allclose(out.statistic, statistic)
    np.testing.assert_allclose(out.p_value, (1 + (null >= statistic).sum()) / (NUM_NULL + 1))
    assert bool(out.reject) == bool(out.p_value <= alpha)
    # single tests stay at the level α
    np.testing.assert_allclose(out.per_eps.null_quantile, np.sort(draws, axis=1)[:, -250])


def test_regime_ratio_and_guard(x64):
    case = case_of_arms(shift=3.0)
    plain = aggregated(case)
    assert plain.kept.all()
    y, a, e, law = case
    t, p1, p0 = on_common_atoms(law)
    weights = np.asarray(a / e + (1 - a) / (1 - e))
    mu = np.concatenate([weights / weights.sum(), (p1 + p0) / 2]) / 2
    difference = np.concatenate([np.zeros(N), p1 - p0])
    for i, epsilon in enumerate(GRID):
        k = ref.hadamard_kernel(np.vstack([y, t]), mu, epsilon)
        ratio = 2 * ref.divergence(t, p1, p0, epsilon) / (difference @ k @ difference)
        np.testing.assert_allclose(plain.regime_ratio[i], ratio, rtol=1e-6)

    distance = np.abs(np.asarray(plain.regime_ratio) - 1)
    between = float(np.sort(distance)[:2].mean())
    guard = functools.partial(summarise, [terms(case)], jnp.array(GRID), jnp.zeros(()))
    guarded = guard(0.05, 0.05, regime_tol=between)
    expected = (distance <= between) | (np.array(GRID) == max(GRID))
    np.testing.assert_array_equal(guarded.kept, expected)
    assert not guarded.kept.all()
    scaled = guarded.per_eps.statistic / guarded.per_eps.null_quantile
    np.testing.assert_allclose(guarded.statistic, scaled[expected].max())
    # the largest ε alone where nothing else is allowed
    strict = guard(0.05, 0.05, regime_tol=1e-12)
    np.testing.assert_array_equal(strict.kept, [True, False, False])
    np.testing.assert_allclose(strict.p_value, strict.per_eps.p_value[0])


def test_tiny_epsilon_says_nothing(x64):
    case = case_of_arms()
    out = aggregated(case, epsilons=(3.0, 1e-7, 1.0))
    np.testing.assert_array_equal(out.per_eps.converged, [True, False, True])
    np.testing.assert_array_equal(np.isnan(out.per_eps.p_value), [False, True, False])
    np.testing.assert_array_equal(out.kept, [True, False, True])
    assert jnp.isfinite(out.p_value)
    # without the largest ε there is no test at all
    none = aggregated(case, epsilons=(1e-6, 1e-7, 1e-8))
    assert jnp.isnan(none.p_value)
    assert not none.reject
    assert not none.kept.any()


def test_clipped_propensities(x64):
    y, a, e, law = case_of_arms()
    extreme = e.at[0].set(0.001).at[5].set(0.999).at[9].set(0.02)
    moved = extreme.at[0].set(0.02).at[5].set(0.98)
    ours, theirs = aggregated((y, a, extreme, law)), aggregated((y, a, moved, law))
    np.testing.assert_allclose(ours.per_eps.clipped, 2 / N)
    np.testing.assert_allclose(theirs.per_eps.clipped, 0)
    np.testing.assert_allclose(ours.per_eps.statistic, theirs.per_eps.statistic)
    np.testing.assert_allclose(ours.per_eps.eif1, theirs.per_eps.eif1)


@pytest.mark.parametrize("kind", ["duplicates", "one dimension, arms of 2 and 30 atoms"])
def test_unusual_samples(kind, x64):
    y, a, e, law = case_of_arms()
    case = (jnp.round(y), a, e, law)
    if kind != "duplicates":
        case = sample(n=N, d=1, m1=2, m0=30)
    out = aggregated(case)
    assert out.per_eps.converged.all()
    for leaf in jax.tree.leaves(out):
        assert jnp.isfinite(leaf).all()
    assert (out.p_value > 0) & (out.p_value <= 1)


def test_float32_agrees_with_float64(x64):
    case = case_of_arms()
    wide = aggregated(case)
    narrow = aggregated(jax.tree.map(lambda leaf: leaf.astype("float32"), case))
    assert narrow.per_eps.converged.all()
    for name in ("plugin", "onestep", "second_order", "se"):
        ours = getattr(narrow.per_eps, name)
        assert ours.dtype == "float32"
        np.testing.assert_allclose(ours, getattr(wide.per_eps, name), rtol=1e-3, err_msg=name)


def test_plugin_is_differentiable_in_the_laws(x64):
    y, a, e, law = case_of_arms()

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1))
    def plugin(atoms, rows):
        changed = ste.ConditionalLaw(atoms, law.atoms0, rows, law.weights0)
        return ste.sinkhorn_treatment_effect(
            jax.random.key(0), y, a, e, changed, epsilon=0.8, num_null=99, tol=1e-13
        ).plugin

    def slope(atoms, rows):
        ends = [plugin(law.atoms1 + s * atoms, law.weights1 + s * rows)[0] for s in (h, -h)]
        return (ends[0] - ends[1]) / (2 * h)

    h = 1e-5
    still = jnp.zeros_like(law.atoms1), jnp.zeros_like(law.weights1)
    _, (by_atoms, by_rows) = plugin(law.atoms1, law.weights1)
    for i, j in ((0, 0), (4, 1)):
        finite = slope(still[0].at[i, j].set(1), still[1])
        np.testing.assert_allclose(by_atoms[i, j], finite, rtol=1e-5)
    # weights move within the simplex
    finite = slope(still[0], still[1].at[3, 0].set(1).at[3, 1].set(-1))
    np.testing.assert_allclose(by_rows[3, 0] - by_rows[3, 1], finite, rtol=1e-5)


def trial(n, seed=0):
    """Covariates whose first column is the number of the row."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.arange(n), rng.normal(size=n)])
    a = np.arange(n) % 2.0
    y = np.column_stack([np.arange(n) / n, rng.normal(size=n) + a])
    return jnp.array(x), jnp.array(a), jnp.array(y)


def fit_propensity(key, x, a):
    share = a.mean()
    return lambda x_eval: jnp.clip(share + 0.1 * jnp.tanh(x_eval[:, 1]), 0.05, 0.95)


def fit_law(key, x, a, y, x_eval):
    return ste.kernel_law(x[:, 1:], a, y, x_eval[:, 1:], bandwidth=1.0)


@pytest.fixture
def cheap_terms(monkeypatch):
    """Replaces the terms of a fold by numbers that depend on all that the fold is given."""

    def fold_terms(key, outcome, treatment, propensity, law, epsilons, **options):
        means = law.weights1 @ law.atoms1 - law.weights0 @ law.atoms0
        eif1 = (outcome + means).sum(1) / epsilons[:, None] + treatment / propensity
        null = jax.random.normal(key, (epsilons.shape[0], options["num_null"]), outcome.dtype)
        return estimator.FoldTerms(
            eif1.max(1), eif1, eif1.std(1), null, 1 + eif1.mean(1), eif1.mean(1) < 1e6
        )

    monkeypatch.setattr(estimator, "fold_terms", fold_terms)
    return fold_terms


def fold_sizes(n, num_folds):
    """How many rows train and evaluate in each fold."""
    if num_folds == 1:
        return [(n // 2, n - n // 2)]
    bounds = [round(k * n / num_folds) for k in range(num_folds + 1)]
    return [(n - high + low, high - low) for low, high in itertools.pairwise(bounds)]


@pytest.mark.parametrize("num_folds", [1, 2, 3])
def test_nuisances_never_see_what_they_are_evaluated_on(num_folds, cheap_terms, x64):
    n, seen = 26, []

    def spying_propensity(key, x, a):
        fitted = fit_propensity(key, x, a)

        def predict(x_eval):
            jax.debug.callback(lambda *v: seen.append(("propensity", *v)), x[:, 0], x_eval[:, 0])
            return fitted(x_eval)

        return predict

    def spying_law(key, x, a, y, x_eval):
        rows = (x[:, 0], x_eval[:, 0], a, y[:, 0] * n)
        jax.debug.callback(lambda *v: seen.append(("law", *v)), *rows)
        return fit_law(key, x, a, y, x_eval)

    ste.cross_fit(
        jax.random.key(0),
        *trial(n),
        propensity_fn=spying_propensity,
        law_fn=spying_law,
        epsilons=jnp.array([2.0]),
        num_folds=num_folds,
        num_null=99,
    )
    jax.effects_barrier()
    for name in ("propensity", "law"):
        calls = [call[1:] for call in seen if call[0] == name]
        assert sorted((len(c[0]), len(c[1])) for c in calls) == sorted(fold_sizes(n, num_folds))
        for train, evaluate, *_ in calls:
            assert not set(np.asarray(train)) & set(np.asarray(evaluate))
        evaluated = np.concatenate([call[1] for call in calls])
        assert len(set(evaluated)) == len(evaluated)
        assert len(evaluated) == (n if num_folds > 1 else n // 2)
    for train, _, a, y in (call[1:] for call in seen if call[0] == "law"):
        np.testing.assert_array_equal(a, np.asarray(train) % 2)
        np.testing.assert_allclose(y, train)


@pytest.mark.parametrize("num_folds", [1, 2, 3])
def test_folds_add_up(num_folds, cheap_terms, x64):
    """Σ_k n_k S̄_k, Σ_k W^(k) and the rest by hand, each fold from its own nuisances and draws."""
    n, key, epsilons, num_null = 26, jax.random.key(5), jnp.array(GRID), 199
    x, a, y = trial(n)
    out = ste.cross_fit(
        key,
        x,
        a,
        y,
        propensity_fn=fit_propensity,
        law_fn=fit_law,
        epsilons=epsilons,
        num_folds=num_folds,
        num_null=num_null,
        regime_tol=None,
    )
    split_key, fold_key = jax.random.split(key)
    splits = estimator.split_indices(split_key, n, num_folds)
    folds = []
    for (train, evaluate), own in zip(splits, jax.random.split(fold_key, num_folds), strict=True):
        *_, null_key = jax.random.split(own, 3)
        e = fit_propensity(None, x[train], a[train])(x[evaluate])
        law = fit_law(None, x[train], a[train], y[train], x[evaluate])
        terms = cheap_terms(null_key, y[evaluate], a[evaluate], e, law, epsilons, num_null=num_null)
        folds.append(jax.tree.map(np.asarray, terms))

    sizes = np.array([fold.eif1.shape[1] for fold in folds])
    onesteps = np.array([fold.plugin + fold.eif1.mean(1) for fold in folds])
    second_orders = onesteps + np.array([fold.correction for fold in folds]) / 2
    statistic, null = sizes @ second_orders, sum(fold.null for fold in folds)
    eif1, effects = np.concatenate([fold.eif1 for fold in folds], axis=1), out.per_eps
    expected = {
        "onestep": onesteps.mean(0),
        "second_order": second_orders.mean(0),
        "statistic": statistic,
        "eif1": eif1,
        "se": eif1.std(1) / np.sqrt(sizes.sum()),
        "p_value": (1 + (null >= statistic[:, None]).sum(1)) / (num_null + 1),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(effects, name), value, atol=1e-10, err_msg=name)
    regimes = np.array([fold.regime for fold in folds])
    furthest = np.abs(regimes - 1).argmax(0)
    np.testing.assert_allclose(out.regime_ratio, regimes[furthest, range(len(GRID))])


THETA, WIDE = 1.5, 4.0


def confounded(key, n):
    """One covariate that moves treatment and outcome; S = ½θ² exactly, since variances agree."""
    x_key, a_key, y_key = jax.random.split(key, 3)
    x = jax.random.normal(x_key, (n,))
    e = jax.nn.sigmoid(x)
    a = (jax.random.uniform(a_key, (n,)) < e).astype(x.dtype)
    return x, a, e, THETA * a + x + jax.random.normal(y_key, (n,))


def gaussian_rows(mean, deviation):
    """Rows of N(mean, deviation²) on a grid."""
    atoms = jnp.linspace(-8.0, 10.0, 60)
    return atoms[:, None], jax.nn.softmax(-((atoms - mean[:, None]) ** 2) / (2 * deviation**2), 1)


def law_of(x, deviation, bias=0.0):
    """Y | a, x ~ N(x + (θ + 2 bias) a − bias, deviation²)."""
    atoms, rows1 = gaussian_rows(THETA + x + bias, deviation)
    rows0 = gaussian_rows(x - bias, deviation)[1]
    return ste.ConditionalLaw(atoms, atoms, rows1, rows0, shared=True)


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, None))
def with_one_wrong_nuisance(key, wrong_law):
    x, a, e, y = confounded(key, 400)
    right, wrong = law_of(x, 1.0), law_of(0 * x, jnp.sqrt(2.0), bias=0.5)
    law = jax.tree.map(lambda r, w: jnp.where(wrong_law, w, r), right, wrong)
    e = jnp.where(wrong_law, e, 0.5)
    return ste.sinkhorn_treatment_effect(key, y[:, None], a, e, law, epsilon=WIDE, num_null=99)


def test_double_robustness(x64):
    keys, truth = jax.random.split(jax.random.key(0), 8), THETA**2 / 2
    out = with_one_wrong_nuisance(keys, True)
    plugin, onestep, second_order = (
        abs(float(value.mean()) - truth) for value in (out.plugin, out.onestep, out.second_order)
    )
    assert out.converged.all()
    assert plugin > 1.5  # ½(θ + 1)² − ½θ²
    # the error that is left is of second order, and the second order removes most of it
    assert onestep < plugin / 2
    assert second_order < plugin / 5
    # a wrong propensity does no harm where the law is right
    out = with_one_wrong_nuisance(keys, False)
    assert abs(float(out.onestep.mean()) - truth) < 0.15


@functools.partial(jax.jit, static_argnums=1)
def mean_eif_with_true_nuisances(keys, n):
    def one(key):
        x, a, e, y = confounded(key, n)
        return ste.first_order_eif(y[:, None], a, e, law_of(x, 1.0), epsilon=WIDE).mean()

    return jax.lax.map(one, keys)


def test_mean_influence_vanishes_like_the_root_of_n(x64):
    sizes, keys = np.array([40, 160, 640]), jax.random.split(jax.random.key(1), 50)
    spread = [float(np.std(mean_eif_with_true_nuisances(keys, int(n)))) for n in sizes]
    slope = np.polyfit(np.log(sizes), np.log(spread), 1)[0]
    assert -0.65 < slope < -0.35


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_null": 98}, "num_null: expected a whole number of at least 99, got 98"),
        ({"reference": "arm0"}, "reference: expected one of .*, got 'arm0'"),
        ({"clip": 0.5}, "clip: expected values strictly"),
        ({"max_iter": 0}, "max_iter: expected a whole number of at least 1, got 0"),
        ({"alpha": 1.0}, "alpha: expected values strictly between 0 and 1, got 1.0"),
        ({"beta": 0.0}, "beta: expected values strictly between 0 and 1, got 0.0"),
        ({"epsilons": jnp.array([1.0, 1.0])}, "epsilons: expected distinct values, got 1 twice"),
    ],
)
def test_bad_options(options, match, as_user):
    with pytest.raises(ValueError, match=match):
        aggregated(sample(n=N), **options)
    folds = {"propensity_fn": fit_propensity, "law_fn": fit_law, "epsilons": jnp.array(GRID)}
    with pytest.raises(ValueError, match=match):
        ste.cross_fit(jax.random.key(0), *trial(26), **folds | options)


def test_weights_may_be_off_by_rounding_alone(x64, as_user):
    y, a, e, law = case_of_arms()
    for excess, fine in ((5e-7, True), (2e-6, False)):
        off = ste.ConditionalLaw(
            law.atoms1, law.atoms0, law.weights1.at[3, 0].add(excess), law.weights0
        )
        if fine:
            assert jnp.isfinite(aggregated((y, a, e, off)).p_value)
        else:
            with pytest.raises(ValueError, match=r"law.weights1: expected rows .*rows 3"):
                aggregated((y, a, e, off))


@pytest.mark.parametrize("num_folds", [0, 7, 2.0])
def test_number_of_folds(num_folds, as_user):
    with pytest.raises(ValueError, match="num_folds: expected a whole number of at least 1 and at"):
        cross_fit_trial(trial(26), num_folds)


@pytest.mark.parametrize("num_folds", [1, 2])
def test_empty_arm_in_a_fold(num_folds, as_user):
    x, _, y = trial(26)
    a = jnp.zeros(26).at[4].set(1)
    with pytest.raises(ValueError, match=r"treatment \(in .* fold\): expected both arms"):
        cross_fit_trial((x, a, y), num_folds)


def cross_fit_trial(data, num_folds):
    return ste.cross_fit(
        jax.random.key(0),
        *data,
        propensity_fn=fit_propensity,
        law_fn=fit_law,
        epsilons=jnp.array(GRID),
        num_folds=num_folds,
    )
