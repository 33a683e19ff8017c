"""Half the squared MMD against double loops, its null, its folds and a closed form."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxicml.methods.sinkhorn_effect import baselines, estimator
from jaxicml.methods.sinkhorn_effect.laws import conditional_law
from tests.methods.sinkhorn_effect import cases
from tests.methods.sinkhorn_effect.baselines.loops import kernel_matrix, signed_measures
from tests.methods.sinkhorn_effect.cases import N, as_numpy, same_laws, sample

GRID = (0.5, 2.0, 8.0)
NUM_NULL = 1999


def aggregated(case, **options):
    """One program for all tests; NumPy arrays."""
    out = baselines.mmd_effect_aggregated(
        jax.random.key(0), *case, epsilons=jnp.array(GRID), num_null=NUM_NULL, **options
    )
    return jax.tree.map(np.asarray, out)


def forms(case):
    """L g Lᵀ at each width, by loops."""
    z, _, rows = signed_measures(case)
    return [rows @ kernel_matrix(z, epsilon) @ rows.T for epsilon in GRID]


def draws(case):
    """(fᵀ I2 f − tr I2)/(2n) for one set of Gaussians f, a row a width."""
    f = np.asarray(jax.random.normal(jax.random.key(0), (NUM_NULL, N)))
    return np.array([((f @ form * f).sum(1) - np.trace(form)) / (2 * N) for form in forms(case)])


@pytest.mark.parametrize("zeros", [0, 2])
def test_plugin_and_first_order_against_loops(zeros, x64):
    """½MMD² is quadratic: the central difference along a row is its derivative for every step."""
    case = sample(3, zeros=zeros)
    z, difference, rows = signed_measures(case)
    ours = aggregated(case).per_eps
    for i, epsilon in enumerate(GRID):
        g = kernel_matrix(z, epsilon)
        half_mmd = lambda signed, g=g: signed @ g @ signed / 2
        np.testing.assert_allclose(ours.plugin[i], half_mmd(difference), rtol=1e-9)
        slopes = [(half_mmd(difference + r) - half_mmd(difference - r)) / 2 for r in rows]
        np.testing.assert_allclose(ours.eif1[i], slopes, atol=1e-12)


def test_second_order_is_the_u_statistic_of_augmented_embeddings(x64):
    """S̄ = ½ mean over i ≠ j of ⟨φ_i, φ_j⟩, exactly."""
    case = sample(4)
    z, difference, rows = signed_measures(case)
    phi, ours = rows + difference, aggregated(case).per_eps
    for i, epsilon in enumerate(GRID):
        products = phi @ kernel_matrix(z, epsilon) @ phi.T
        mean = np.mean([products[pair] for pair in itertools.permutations(range(N), 2)])
        np.testing.assert_allclose(ours.second_order[i], mean / 2, rtol=1e-9)
        np.testing.assert_allclose(ours.statistic[i], N * mean / 2, rtol=1e-9)


def test_null_has_the_law_of_its_eigenvalues(x64):
    case = sample(5)
    normals = np.random.default_rng(0).normal(size=(4000, N))
    by_values = [(normals**2 - 1) @ np.linalg.eigvalsh(form / N) / 2 for form in forms(case)]
    for level in (0.01, 0.1, 0.5, 0.9):
        quantiles = aggregated(case, alpha=level).per_eps.null_quantile[:, None]
        error = 4 * np.sqrt(level * (1 - level) * (1 / 4000 + 1 / NUM_NULL))
        np.testing.assert_allclose((by_values > quantiles).mean(1), level, atol=error)


def test_aggregation_is_the_maximum_over_its_joint_null(x64):
    case = sample(6)
    ours, null = aggregated(case, beta=0.1), draws(case)
    scales = np.sort(null, axis=1)[:, -200]
    statistics = ours.per_eps.statistic
    p_values = (1 + (null >= statistics[:, None]).sum(1)) / (NUM_NULL + 1)
    np.testing.assert_allclose(ours.per_eps.p_value, p_values)
    statistic = (statistics / scales).max()
    exceed = ((null / scales[:, None]).max(0) >= statistic).sum()
    np.testing.assert_allclose(ours.statistic, statistic, rtol=1e-6)
    np.testing.assert_allclose(ours.p_value, (1 + exceed) / (NUM_NULL + 1))
    assert ours.kept.all()
    np.testing.assert_array_equal(ours.regime_ratio, 1)


@pytest.mark.slow
def test_one_width_is_the_grid_of_one(x64):
    case, many = sample(6), aggregated(sample(6)).per_eps
    for i, epsilon in enumerate(GRID):
        one = baselines.mmd_treatment_effect(
            jax.random.key(0), *case, epsilon=epsilon, num_null=NUM_NULL
        )
        chex.assert_trees_all_close(jax.tree.map(lambda v, i=i: v[i], many), one)


def test_vanishes_at_a_null(x64):
    ours = aggregated(same_laws()).per_eps
    np.testing.assert_allclose(ours.plugin, 0, atol=1e-15)
    np.testing.assert_allclose(ours.eif1, 0, atol=1e-15)


def test_terms_are_those_of_sinkhorn_in_shape(x64):
    options = {"num_null": NUM_NULL, "reference": "balanced", "tol": None, "max_iter": 2000}
    arrays = (jax.random.key(0), *sample(6), jnp.array(GRID))
    ste = jax.eval_shape(lambda *args: estimator.fold_terms(*args, **options), *arrays)
    mmd = jax.eval_shape(lambda *args: baselines.mmd_fold_terms(*args, num_null=NUM_NULL), *arrays)
    chex.assert_trees_all_equal_shapes_and_dtypes(mmd, ste)


@jax.jit
def two_equal_folds(key, case):
    terms = baselines.mmd_fold_terms(key, *case, jnp.array(GRID), num_null=NUM_NULL)
    return estimator.summarise([terms, terms], jnp.array(GRID), 0.0, 0.05, 0.05, None)


@pytest.mark.slow
def test_terms_add_up_over_folds_as_those_of_sinkhorn_do(x64):
    both, one = two_equal_folds(jax.random.key(0), sample(6)), aggregated(sample(6))
    np.testing.assert_allclose(both.per_eps.statistic, 2 * one.per_eps.statistic, rtol=1e-12)


@pytest.mark.slow
def test_plugin_gradient_equals_finite_differences(x64):
    *observed, law = sample(8)
    key, epsilons = jax.random.key(0), jnp.ones(1)

    @jax.jit
    @jax.value_and_grad
    def plugin(atoms):
        moved = cases.law(atoms, law.atoms0, law.weights1, law.weights0)
        terms = baselines.mmd_fold_terms(key, *observed, moved, epsilons, num_null=99)
        return terms.plugin[0]

    (atoms, *_), h = as_numpy(sample(8))[3:], 1e-5
    gradient = plugin(atoms)[1]
    for i in range(len(atoms)):
        step = np.zeros_like(atoms)
        step[i, 1] = h
        slope = (plugin(atoms + step)[0] - plugin(atoms - step)[0]) / (2 * h)
        np.testing.assert_allclose(gradient[i, 1], slope, rtol=1e-6, atol=1e-10)


ATOMS = np.linspace(-6, 8, 60)[:, None]
"""They resolve the conditional laws N(x + 1.5 a, 1) of the estimates below."""


@jax.jit
def estimates(keys):
    """(plug-in, second order) with a wrong law and the right propensity, and the reverse."""

    def one(key):
        x_key, a_key, y_key, null_key = jax.random.split(key, 4)
        x = jax.random.normal(x_key, (60,))
        e = jax.nn.sigmoid(x)
        a = jax.random.bernoulli(a_key, e).astype(x.dtype)
        y = (x + 1.5 * a + jax.random.normal(y_key, (60,)))[:, None]
        atoms = jnp.asarray(ATOMS)
        density = lambda mean: jax.nn.softmax(-((atoms[:, 0] - mean[:, None]) ** 2) / 2, axis=1)
        right = conditional_law(atoms, atoms, density(x + 1.5), density(x), shared=True)
        wrong = conditional_law(atoms, atoms, density(0 * x + 1), density(0 * x - 1), shared=True)
        found = []
        for e_hat, law in ((e, wrong), (0 * e + 0.4, right)):
            out = baselines.mmd_treatment_effect(
                null_key, y, a, e_hat, law, epsilon=2.0, num_null=99, clip=0.0
            )
            found.append(jnp.stack([out.plugin, out.second_order]))
        return jnp.stack(found)

    return jax.lax.map(one, keys, batch_size=50)


@pytest.mark.slow
def test_second_order_is_doubly_robust(x64):
    """Y(a) ~ N(1.5 a, 2): ½MMD² = √(ε/(ε + 4)) (1 − exp(−1.5²/(2(ε + 4))))."""
    truth = np.sqrt(2 / 6) * (1 - np.exp(-(1.5**2) / 12))
    found = np.asarray(estimates(jax.random.split(jax.random.key(0), 200)))
    mean, se = found.mean(0), found.std(0) / np.sqrt(200)
    assert (np.abs(mean[:, 1] - truth) < 4 * se[:, 1]).all()
    # the wrong law alone is far off
    assert abs(mean[0, 0] - truth) > 0.5 * truth
