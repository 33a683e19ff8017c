"""Comparison methods against double loops, enumeration, closed forms and Monte-Carlo sizes."""

import itertools
import warnings

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxicml.methods.sinkhorn_effect import baselines, estimator
from jaxicml.methods.sinkhorn_effect.laws import ConditionalLaw, conditional_law, kernel_law
from tests.methods.sinkhorn_effect import reference as ref
from tests.methods.sinkhorn_effect.cases import sample

KEY = jax.random.key(0)
EPSILONS = jnp.array([0.5, 2.0, 8.0])
TERMS = jax.jit(baselines.mmd_fold_terms, static_argnames="num_null")


def numpy(case):
    """(y, a, e, t1, t0, w1, w0) as NumPy arrays."""
    y, a, e, law = case
    fields = (y, a, e, law.atoms1, law.atoms0, law.weights1, law.weights0)
    return tuple(np.asarray(field) for field in fields)


def gauss(x, y, epsilon):
    return np.exp(-((x - y) ** 2).sum() / (2 * epsilon))


def kernel_matrix(points, epsilon):
    return np.array([[gauss(x, y, epsilon) for y in points] for x in points])


def signed_measures(case):
    """Union support [y; t1; t0], P̂₁ − P̂₀ on it, and the row of each observation less P̂₁ − P̂₀."""
    y, a, e, t1, t0, w1, w0 = numpy(case)
    n = len(y)
    difference = np.concatenate([np.zeros(n), w1.mean(0), -w0.mean(0)])
    rows = []
    for i in range(n):
        dirac = np.eye(n)[i]
        one = np.concatenate([a[i] / e[i] * dirac, (1 - a[i] / e[i]) * w1[i], 0 * w0[i]])
        ratio = (1 - a[i]) / (1 - e[i])
        zero = np.concatenate([ratio * dirac, 0 * w1[i], (1 - ratio) * w0[i]])
        rows.append(one - zero - difference)
    return np.vstack([y, t1, t0]), difference, np.array(rows)


# --- average treatment effect


def doubly_robust_scores(case):
    y, a, e, t1, t0, w1, w0 = numpy(case)
    scores = []
    for i in range(len(y)):
        m1, m0 = w1[i] @ t1, w0[i] @ t0
        residual = (y[i] - m1) / e[i] if a[i] == 1 else -(y[i] - m0) / (1 - e[i])
        scores.append(m1 - m0 + residual)
    return np.array(scores)


@pytest.mark.parametrize("zeros", [0, 2])
def test_ate_equals_the_formula(zeros, x64):
    case = sample(1, zeros=zeros)
    psi = doubly_robust_scores(case)
    n, effect = len(psi), psi.mean(0)
    ours = baselines.ate_aipw(*case, alpha=0.1)
    se = np.sqrt(((psi - effect) ** 2).sum(0)) / n
    half = scipy.stats.norm.ppf(0.95) * se
    wald = n * effect @ np.linalg.solve(np.cov(psi.T, bias=True), effect)
    expected = (effect, se, effect - half, effect + half, wald, scipy.stats.chi2(2).sf(wald))
    chex.assert_trees_all_close(tuple(ours), expected, rtol=1e-9)


def test_ate_of_one_component_is_the_z_test(x64):
    ours = baselines.ate_aipw(*sample(2, d=1))
    z = ours.effect[0] / ours.se[0]
    np.testing.assert_allclose(ours.p_value, 2 * scipy.stats.norm.sf(abs(z)), rtol=1e-9)


def law_with_means(m1, m0):
    """A law on two far atoms whose conditional means are the given ones."""
    atoms = jnp.array([[-50.0], [50.0]])
    upper = lambda m: jnp.array((m + 50) / 100)
    rows = lambda m: jnp.stack([1 - upper(m), upper(m)], axis=1)
    return conditional_law(atoms, atoms, rows(m1), rows(m0), shared=True)


@pytest.mark.oracle
def test_ate_equals_that_of_statsmodels(x64):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        discrete = pytest.importorskip("statsmodels.discrete.discrete_model")
        linear = pytest.importorskip("statsmodels.regression.linear_model")
        effects = pytest.importorskip("statsmodels.treatment.treatment_effects")
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(80), rng.normal(size=(80, 2))])
    a = (rng.random(80) < 0.5).astype(float)
    y = x @ [1.0, 0.5, -1.0] + a * x[:, 1] + rng.normal(size=80)
    outcome_model = linear.OLS(y, x)
    propensity = discrete.Probit(a, x).fit(disp=0)
    theirs = effects.TreatmentEffect(outcome_model, a, results_select=propensity)
    fits = [np.linalg.lstsq(x[a == arm], y[a == arm])[0] for arm in (1, 0)]
    law = law_with_means(*(x @ beta for beta in fits))
    e = jnp.array(propensity.predict())
    ours = baselines.ate_aipw(jnp.array(y)[:, None], jnp.array(a), e, law, clip=0.001)
    np.testing.assert_allclose(ours.effect[0], theirs.aipw(return_results=False)[0], atol=1e-6)


@pytest.mark.parametrize("degenerate", [lambda y: y[:, 0], lambda y: 0 * y[:, 0] + 3.1])
def test_ate_is_undefined_where_the_covariance_is_singular(degenerate):
    y, a, e, law = jax.tree.map(lambda v: v.astype("float32"), sample())
    other = lambda v: v.at[:, 1].set(degenerate(v))
    law = conditional_law(other(law.atoms1), other(law.atoms0), law.weights1, law.weights0)
    ours = baselines.ate_aipw(other(y), a, e, law)
    assert np.isnan(ours.statistic)
    assert np.isnan(ours.p_value)
    chex.assert_tree_all_finite((ours.effect, ours.se))


def test_ate_survives_large_means():
    y, a, e, law = jax.tree.map(lambda v: v.astype("float32"), sample())
    far = conditional_law(law.atoms1 + 2**12, law.atoms0 + 2**12, law.weights1, law.weights0)
    near, moved = baselines.ate_aipw(y, a, e, law), baselines.ate_aipw(y + 2**12, a, e, far)
    chex.assert_trees_all_close(near.effect, moved.effect, atol=5e-3)


# --- maximum mean discrepancy


@pytest.mark.parametrize("epsilon", [0.3, 4.0])
@pytest.mark.parametrize("zeros", [0, 2])
def test_mmd_plugin_and_first_order_against_loops(epsilon, zeros, x64):
    """½MMD² is quadratic: the central difference along a row is its derivative for every step."""
    case = sample(3, zeros=zeros)
    z, difference, rows = signed_measures(case)
    g = kernel_matrix(z, epsilon)
    half_mmd = lambda signed: signed @ g @ signed / 2
    ours = baselines.mmd_treatment_effect(KEY, *case, epsilon=epsilon)
    np.testing.assert_allclose(ours.plugin, half_mmd(difference), rtol=1e-9)
    slopes = [(half_mmd(difference + r) - half_mmd(difference - r)) / 2 for r in rows]
    np.testing.assert_allclose(ours.eif1, slopes, atol=1e-12)


@pytest.mark.parametrize("epsilon", [0.3, 4.0])
def test_mmd_second_order_is_the_u_statistic_of_augmented_embeddings(epsilon, x64):
    """S̄ = ½ mean over i ≠ j of ⟨φ_i, φ_j⟩, exactly."""
    case = sample(4)
    z, difference, rows = signed_measures(case)
    g, phi = kernel_matrix(z, epsilon), rows + difference
    pairs = [p @ g @ q for p, q in itertools.permutations(phi, 2)]
    ours = baselines.mmd_treatment_effect(KEY, *case, epsilon=epsilon)
    np.testing.assert_allclose(ours.second_order, np.mean(pairs) / 2, rtol=1e-9)
    np.testing.assert_allclose(ours.statistic, 12 * np.mean(pairs) / 2, rtol=1e-9)


def test_mmd_null_has_the_law_of_its_eigenvalues(x64):
    case = sample(5)
    z, _, rows = signed_measures(case)
    terms = TERMS(KEY, *case, EPSILONS, num_null=2000)
    spectrum = np.linalg.eigvalsh(rows @ kernel_matrix(z, 0.5) @ rows.T / 12)
    chi2 = np.random.default_rng(0).normal(size=(4000, 12)) ** 2
    by_eigenvalues = (chi2 - 1) @ spectrum / 2
    assert scipy.stats.ks_2samp(np.asarray(terms.null[0]), by_eigenvalues).pvalue > 0.01


def test_mmd_aggregation_is_the_maximum_over_its_joint_null(x64):
    case = sample(6)
    ours = baselines.mmd_effect_aggregated(KEY, *case, epsilons=EPSILONS, beta=0.1)
    null = np.asarray(TERMS(KEY, *case, EPSILONS, num_null=2000).null)
    scales = np.sort(null, axis=1)[:, 1800]  # exceeded by 199 draws: p = 200/2001 there
    single = [baselines.mmd_treatment_effect(KEY, *case, epsilon=float(e)) for e in EPSILONS]
    for i, one in enumerate(single):
        chex.assert_trees_all_close(jax.tree.map(lambda v, i=i: v[i], ours.per_eps), one)
    statistic = (np.array([one.statistic for one in single]) / scales).max()
    exceed = ((null / scales[:, None]).max(0) >= statistic).sum()
    np.testing.assert_allclose(ours.statistic, statistic, rtol=1e-6)
    np.testing.assert_allclose(ours.p_value, (1 + exceed) / 2001)
    assert ours.kept.all()
    np.testing.assert_array_equal(ours.regime_ratio, 1)


def test_mmd_terms_add_up_over_folds_as_those_of_sinkhorn_do(x64):
    case = sample(6)
    mmd = TERMS(KEY, *case, EPSILONS, num_null=2000)
    options = {"num_null": 2000, "reference": "balanced", "tol": None, "max_iter": 2000}
    ste = jax.eval_shape(lambda: estimator.fold_terms(KEY, *case, EPSILONS, **options))
    chex.assert_trees_all_equal_shapes_and_dtypes(mmd, ste)
    level = jnp.asarray(0.05)
    both = jax.jit(estimator.summarise, static_argnums=5)(
        [mmd, mmd], EPSILONS, jnp.zeros(()), level, level, None
    )
    one = baselines.mmd_effect_aggregated(KEY, *case, epsilons=EPSILONS)
    np.testing.assert_allclose(both.per_eps.statistic, 2 * one.per_eps.statistic, rtol=1e-12)


def test_mmd_vanishes_at_a_null(x64):
    y, a, e, law = sample(7)
    same = ConditionalLaw(
        law.atoms1.at[:8].set(law.atoms0),
        law.atoms0,
        jnp.pad(law.weights0, ((0, 0), (0, 1))),
        law.weights0,
    )
    ours = baselines.mmd_treatment_effect(KEY, y, a, e, same, epsilon=1.0)
    np.testing.assert_allclose(ours.plugin, 0, atol=1e-15)
    np.testing.assert_allclose(ours.eif1, 0, atol=1e-15)


def test_mmd_plugin_gradient_equals_finite_differences(x64):
    y, a, e, law = sample(8)

    @jax.jit
    def plugin(atoms):
        moved = ConditionalLaw(atoms, law.atoms0, law.weights1, law.weights0)
        return baselines.mmd_fold_terms(KEY, y, a, e, moved, jnp.ones(1), num_null=99).plugin[0]

    gradient, h = jax.grad(plugin)(law.atoms1), 1e-5
    for i in range(3):
        step = jnp.zeros_like(law.atoms1).at[i, 1].set(h)
        slope = (plugin(law.atoms1 + step) - plugin(law.atoms1 - step)) / (2 * h)
        np.testing.assert_allclose(gradient[i, 1], slope, rtol=1e-6)


GRID = np.linspace(-6, 8, 60)[:, None]
"""Atoms that resolve the conditional laws N(x + 1.5 a, 1) of the estimates below."""


@jax.jit
def mmd_estimates(keys):
    """(plug-in, second order) with a wrong law and the right propensity, and the reverse."""

    def one(key):
        x_key, a_key, y_key, null_key = jax.random.split(key, 4)
        x = jax.random.normal(x_key, (60,))
        e = jax.nn.sigmoid(x)
        a = jax.random.bernoulli(a_key, e).astype(x.dtype)
        y = (x + 1.5 * a + jax.random.normal(y_key, (60,)))[:, None]
        atoms = jnp.asarray(GRID)
        density = lambda mean: jax.nn.softmax(-((atoms[:, 0] - mean[:, None]) ** 2) / 2, axis=1)
        right = conditional_law(atoms, atoms, density(x + 1.5), density(x), shared=True)
        wrong = conditional_law(atoms, atoms, density(0 * x + 1), density(0 * x - 1), shared=True)
        estimates = []
        for e_hat, law in ((e, wrong), (0 * e + 0.4, right)):
            out = baselines.mmd_treatment_effect(
                null_key, y, a, e_hat, law, epsilon=2.0, num_null=99, clip=0.0
            )
            estimates.append(jnp.stack([out.plugin, out.second_order]))
        return jnp.stack(estimates)

    return jax.lax.map(one, keys, batch_size=50)


def test_mmd_second_order_is_doubly_robust(x64):
    """Y(a) ~ N(1.5 a, 2): ½MMD² = √(ε/(ε + 4)) (1 − exp(−1.5²/(2(ε + 4))))."""
    truth = np.sqrt(2 / 6) * (1 - np.exp(-(1.5**2) / 12))
    estimates = np.asarray(mmd_estimates(jax.random.split(KEY, 200)))
    mean, se = estimates.mean(0), estimates.std(0) / np.sqrt(200)
    assert (np.abs(mean[:, 1] - truth) < 4 * se[:, 1]).all()
    # the wrong law alone is far off
    assert abs(mean[0, 0] - truth) > 0.5 * truth


# --- cross U-statistic


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_dr_xkte_equals_the_loops(epsilon, x64):
    case = sample(9, n=11)
    z, difference, rows = signed_measures(case)
    phi, g = rows + difference, kernel_matrix(z, epsilon)
    along = [np.mean([phi[i] @ g @ phi[j] for j in range(5, 11)]) for i in range(5)]
    statistic = np.sqrt(5) * np.mean(along) / np.std(along)
    ours = baselines.dr_xkte(*case, bandwidth=epsilon)
    np.testing.assert_allclose(ours, (statistic, scipy.stats.norm.sf(statistic)), rtol=1e-8)


# --- weighted samples


def ipw_mmd(y, a, e, epsilon):
    """Weighted means of the kernel over pairs of different rows, by loops; 1 without pairs."""
    weights = {1: a / e, 0: (1 - a) / (1 - e)}

    def mean(first, second):
        u, v = weights[first], weights[second]
        total = mass = 0.0
        for i, j in itertools.permutations(range(len(y)), 2):
            total += u[i] * v[j] * gauss(y[i], y[j], epsilon)
            mass += u[i] * v[j]
        return total / mass if mass > 0 else 1.0

    return mean(1, 1) + mean(0, 0) - 2 * mean(1, 0)


def test_kte_equals_the_loops_and_weighs_assignments_by_their_probability(x64):
    """p-value against the sum over all 2⁶ assignments that are as extreme."""
    rng = np.random.default_rng(2)
    y, e = rng.normal(size=(6, 1)), np.array([0.15, 0.3, 0.5, 0.6, 0.8, 0.7])
    a = np.array([0.0, 1, 1, 0, 1, 0])
    observed, exact = ipw_mmd(y, a, e, 1.0), 0.0
    for assignment in itertools.product((0.0, 1.0), repeat=6):
        draw = np.array(assignment)
        extreme = ipw_mmd(y, draw, e, 1.0) >= observed - 1e-12
        exact += extreme * np.prod(np.where(draw == 1, e, 1 - e))
    ours = baselines.ipw_kte_permutation(
        KEY, *map(jnp.array, (y, a, e)), bandwidth=1.0, num_permutations=8000
    )
    np.testing.assert_allclose(ours.statistic, observed, rtol=1e-9)
    assert 0.1 < exact < 0.9
    assert abs(ours.p_value - exact) < 4 * np.sqrt(exact * (1 - exact) / 8000)


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_sinkhorn_plugin_equals_the_reference(epsilon, x64):
    y, a, e, *_ = numpy(sample(11))
    p1, p0 = a / e / (a / e).sum(), (1 - a) / (1 - e) / ((1 - a) / (1 - e)).sum()
    ours = baselines.ipw_sinkhorn_plugin(*map(jnp.array, (y, a, e)), epsilon=epsilon)
    np.testing.assert_allclose(ours, ref.divergence(y, p1, p0, epsilon), atol=1e-8)


def test_naive_p_value_against_all_relabellings(x64):
    rng = np.random.default_rng(3)
    y, a = rng.normal(size=(8, 2)), np.array([1.0, 0, 0, 1, 0, 1, 0, 0])
    y[a == 1] += 0.7
    value = lambda labels: ref.divergence(y, labels / 3, (1 - labels) / 5, 2.0)
    relabelled = [
        value(np.isin(np.arange(8), chosen) * 1.0) for chosen in itertools.combinations(range(8), 3)
    ]
    exact = np.mean(np.array(relabelled) >= value(a) - 1e-9)
    ours = baselines.naive_two_sample(
        KEY, jnp.array(y), jnp.array(a), epsilon=2.0, num_permutations=2000, tol=1e-10
    )
    np.testing.assert_allclose(ours.statistic, value(a), atol=1e-8)
    assert 0.02 < exact < 0.9
    assert abs(ours.p_value - exact) < 4 * np.sqrt(exact * (1 - exact) / 2000)


def test_no_convergence_is_nan(x64):
    y, a, e, _ = sample(12)
    assert np.isnan(baselines.ipw_sinkhorn_plugin(y, a, e, epsilon=1e-6))


def test_constant_outcomes_are_no_evidence():
    """In float32, where rounding could pass for an effect."""
    y, a, e, law = jax.tree.map(lambda v: v.astype("float32"), sample(13))
    same = lambda v: jnp.full_like(v, 3.7)
    law = conditional_law(same(law.atoms1), same(law.atoms0), law.weights1, law.weights0)
    y = same(y)
    assert np.isnan(baselines.dr_xkte(y, a, e, law, bandwidth=1.0).p_value)
    assert baselines.mmd_treatment_effect(KEY, y, a, e, law, epsilon=1.0).p_value == 1
    assert baselines.ipw_kte_permutation(KEY, y, a, e, bandwidth=1.0).p_value == 1


# --- all of them


@jax.jit
def invariants(outcome, treatment, propensity, law):
    """What must not depend on the frame of the outcomes or on the order of the rows."""
    mmd = baselines.mmd_treatment_effect(
        KEY, outcome, treatment, propensity, law, epsilon=1.3, num_null=99
    )
    kte = baselines.ipw_kte_permutation(
        KEY, outcome, treatment, propensity, bandwidth=1.3, num_permutations=99
    )
    return {
        "ate": baselines.ate_aipw(outcome, treatment, propensity, law).statistic,
        "mmd": mmd[:4],
        "dr_xkte": baselines.dr_xkte(outcome, treatment, propensity, law, bandwidth=1.3),
        "kte": kte.statistic,
    }


@hypothesis.given(
    seed=st.integers(0, 2**16),
    angle=st.floats(0.0, 6.0),
    shift=st.tuples(st.floats(-20, 20), st.floats(-20, 20)),
    order=st.permutations(range(6)),
)
def test_frame_and_order_do_not_matter(seed, angle, shift, order):
    """Rows move within their half, which is all that the cross statistic looks at."""
    with jax.enable_x64(True):
        y, a, e, law = sample(seed)
        turn = jnp.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        move = lambda v: v @ turn + jnp.array(shift)
        rows = np.concatenate([order, 6 + np.array(order)])
        moved = conditional_law(
            move(law.atoms1), move(law.atoms0), law.weights1[rows], law.weights0[rows]
        )
        chex.assert_trees_all_close(
            invariants(move(y)[rows], a[rows], e[rows], moved),
            invariants(y, a, e, law),
            rtol=1e-7,
            atol=1e-9,
        )


def draw_sample(key, effect, confounding, n=80):
    """(x, a, y, e): treatment depends on x, the outcome on x where confounded."""
    x_key, a_key, y_key = jax.random.split(key, 3)
    x = jax.random.normal(x_key, (n, 1))
    e = jax.nn.sigmoid(x[:, 0])
    a = jax.random.bernoulli(a_key, e).astype(x.dtype)
    y = jax.random.normal(y_key, (n, 2)) + effect * a[:, None] + confounding * x
    return x, a, y, e


@jax.jit
def p_values(keys, effect, confounding):
    """p-values of every test, and whether the first interval of the ATE covers."""

    def one(key):
        train_key, evaluate_key, test_key = jax.random.split(key, 3)
        x_train, a_train, y_train, _ = draw_sample(train_key, effect, confounding)
        x, a, y, e = draw_sample(evaluate_key, effect, confounding)
        law = kernel_law(x_train, a_train, y_train, x, bandwidth=0.4)
        ate = baselines.ate_aipw(y, a, e, law)
        mmd = baselines.mmd_effect_aggregated(
            test_key, y, a, e, law, epsilons=jnp.array([0.5, 2.0, 8.0]), num_null=299
        )
        return {
            "ate": ate.p_value,
            "mmd": mmd.per_eps.p_value[1],
            "mmd_aggregated": mmd.p_value,
            "dr_xkte": baselines.dr_xkte(y, a, e, law, bandwidth=2.0).p_value,
            "kte": baselines.ipw_kte_permutation(
                test_key, y, a, e, bandwidth=2.0, num_permutations=99
            ).p_value,
        }, (ate.ci_low[0] <= effect) & (effect <= ate.ci_high[0])

    return jax.lax.map(one, keys, batch_size=25)


REPLICATIONS = 200
AT_MOST = scipy.stats.binom.ppf(0.9995, REPLICATIONS, 0.05)
"""More rejections than this at a true null have probability below 1 in 2000."""


@pytest.mark.parametrize("confounding", [0.0, 1.0])
def test_size_at_a_true_null(confounding):
    p, covered = p_values(jax.random.split(KEY, REPLICATIONS), 0.0, confounding)
    rejections = {name: int((value <= 0.05).sum()) for name, value in p.items()}
    assert max(rejections.values()) <= AT_MOST, rejections
    assert (~covered).sum() <= AT_MOST


def test_power_and_coverage_at_a_large_effect():
    p, covered = p_values(jax.random.split(KEY, REPLICATIONS), 1.5, 0.0)
    power = {name: float((value <= 0.05).mean()) for name, value in p.items()}
    assert min(power.values()) >= 0.8, power
    assert (~covered).sum() <= AT_MOST


@jax.jit
def naive_p_values(keys, effect, confounding):
    def one(key):
        draw_key, test_key = jax.random.split(key)
        _, a, y, _ = draw_sample(draw_key, effect, confounding, n=40)
        return baselines.naive_two_sample(test_key, y, a, epsilon=8.0, num_permutations=99).p_value

    return jax.lax.map(one, keys)


def test_naive_test_rejects_where_there_is_only_confounding():
    keys = jax.random.split(KEY, REPLICATIONS)[:60]
    rejections = [(naive_p_values(keys, 0.0, c) <= 0.05).sum() for c in (0.0, 2.0)]
    assert rejections[0] <= scipy.stats.binom.ppf(0.9995, 60, 0.05)
    assert rejections[1] >= 30


CALLS = {
    "ate": lambda y, a, e, law, **options: baselines.ate_aipw(y, a, e, law, **options),
    "mmd": lambda y, a, e, law, epsilon=1.0, **options: baselines.mmd_treatment_effect(
        KEY, y, a, e, law, epsilon=epsilon, **options
    ),
    "aggregated": lambda y, a, e, law, epsilons=(1.0,), **options: baselines.mmd_effect_aggregated(
        KEY, y, a, e, law, epsilons=jnp.array(epsilons), **options
    ),
    "dr_xkte": lambda y, a, e, law, bandwidth=1.0, **options: baselines.dr_xkte(
        y, a, e, law, bandwidth=bandwidth, **options
    ),
    "kte": lambda y, a, e, law, bandwidth=1.0, **options: baselines.ipw_kte_permutation(
        KEY, y, a, e, bandwidth=bandwidth, **options
    ),
    "plugin": lambda y, a, e, law, epsilon=1.0, **options: baselines.ipw_sinkhorn_plugin(
        y, a, e, epsilon=epsilon, **options
    ),
    "naive": lambda y, a, e, law, epsilon=1.0, **options: baselines.naive_two_sample(
        KEY, y, a, epsilon=epsilon, **options
    ),
}


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("ate", {"alpha": 1.0}, "alpha: expected values strictly between 0 and 1, got 1.0"),
        ("ate", {"clip": 0.5}, r"clip: expected values in \[0.0, 0.49\], got 0.5"),
        ("mmd", {"epsilon": 0.0}, "epsilon: expected a finite number above 0, got 0.0"),
        ("mmd", {"num_null": 98}, "num_null: expected a whole number of at least 99, got 98"),
        ("aggregated", {"epsilons": ()}, "epsilons: expected at least one value"),
        ("aggregated", {"epsilons": (1.0, 1.0)}, "epsilons: expected distinct values, got 1"),
        ("aggregated", {"epsilons": (1.0, -1.0)}, "epsilons: expected a finite number above 0"),
        ("aggregated", {"beta": 0.0}, "beta: expected values strictly between 0 and 1"),
        ("dr_xkte", {"bandwidth": -1.0}, "bandwidth: expected a finite number above 0, got -1.0"),
        ("kte", {"bandwidth": np.nan}, "bandwidth: expected a finite number above 0, got nan"),
        ("kte", {"num_permutations": 20}, "num_permutations: expected a whole number of at least"),
        ("plugin", {"epsilon": 0.0}, "epsilon: expected a finite number above 0"),
        ("plugin", {"max_iter": 0}, "max_iter: expected a whole number of at least 1, got 0"),
        ("naive", {"num_permutations": 98}, "num_permutations: expected a whole number of at"),
        ("naive", {"tol": 0.0}, "tol: expected a finite number above 0, got 0.0"),
    ],
)
def test_bad_options_are_refused(name, options, match, as_user):
    with pytest.raises(ValueError, match=match):
        CALLS[name](*sample(), **options)


@pytest.mark.parametrize("name", CALLS)
def test_bad_samples_are_refused(name, as_user):
    y, a, e, law = sample()
    expect = lambda match: pytest.raises(ValueError, match=match)
    with expect("outcome: expected finite values, got 1 NaN"):
        CALLS[name](y.at[3, 0].set(jnp.nan), a, e, law)
    with expect("treatment: expected both arms, got only 0"):
        CALLS[name](y, 0 * a, e, law)
    with expect("treatment: expected only 0 and 1, got 0.5"):
        CALLS[name](y, a / 2, e, law)
    with expect(r"treatment: expected shape \(12\), got \(5,\)"):
        CALLS[name](y, a[:5], e, law)
    if name != "naive":
        with expect("propensity: expected values strictly between 0 and 1"):
            CALLS[name](y, a, e.at[0].set(1.0), law)
        with expect(r"propensity: expected shape \(12\), got \(13,\)"):
            CALLS[name](y, a, jnp.append(e, 0.5), law)


def test_cross_statistic_needs_two_rows_a_half(as_user):
    with pytest.raises(ValueError, match="outcome: expected at least 4 rows, got 3"):
        baselines.dr_xkte(*sample(n=3), bandwidth=1.0)
