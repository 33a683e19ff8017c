"""Kernel laws and their bandwidth against loops, by arms of fourteen rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxicml.methods.sinkhorn_effect import laws

ROWS = 14


def sample(seed=0, dtype="float64"):
    """Covariates and outcomes in the plane."""
    rng = np.random.default_rng(seed)
    x, a = rng.normal(size=(ROWS, 2)), rng.permutation(np.arange(ROWS) % 2)
    return x.astype(dtype), a, (rng.normal(size=(ROWS, 2)) + x[:, :1]).astype(dtype)


def kernel_law(x, a, y, x_eval, bandwidth):
    """At five covariates, of NumPy arrays."""
    law = laws.kernel_law(*map(jnp.asarray, (x, a, y, x_eval)), bandwidth=bandwidth)
    assert law.shared
    np.testing.assert_array_equal(law.atoms0, y)
    return np.asarray(law.weights1), np.asarray(law.weights0)


def loop_weights(x_train, a_train, x_eval, arm, bandwidth, left_out=None):
    """Kernel weights of one evaluation point, one training row at a time."""
    raw = [
        np.exp(-sum((x_eval - row) ** 2) / (2 * bandwidth**2)) * (a == arm) * (j != left_out)
        for j, (row, a) in enumerate(zip(x_train, a_train, strict=True))
    ]
    return np.array(raw) / sum(raw)


def weighted_crps(atoms, weights, outcome):
    """The integral of (F(z) - 1{z >= outcome})^2 over z, piece by piece."""
    knots = np.sort(np.append(atoms, outcome))
    middle = (knots[1:] + knots[:-1]) / 2
    cdf = (weights * (atoms <= middle[:, None])).sum(1)
    return (np.diff(knots) * (cdf - (middle >= outcome)) ** 2).sum()


def test_kernel_weights_equal_loops(x64):
    x, a, y = sample()
    x_eval = np.random.default_rng(1).normal(size=(5, 2))
    for arm, weights in zip((1, 0), kernel_law(x, a, y, x_eval, 0.7), strict=True):
        brute = [loop_weights(x, a, row, arm, 0.7) for row in x_eval]
        np.testing.assert_allclose(weights, brute, rtol=1e-10)


@pytest.mark.parametrize("bandwidth", [1e-4, 1.0])
def test_a_far_covariate_gets_its_nearest_neighbour(bandwidth):
    x, a, y = sample(dtype="float32")
    x[3], a[3] = 200.0, 1
    ones, zeros = kernel_law(x, a, y, np.full((5, 2), 1000, "float32"), bandwidth)
    np.testing.assert_allclose(ones, np.tile(np.eye(ROWS)[3], (5, 1)), atol=1e-6)
    np.testing.assert_allclose(zeros.sum(1), 1, rtol=1e-6)


def test_a_wide_kernel_is_the_empirical_law_of_the_arm(x64):
    x, a, y = sample()
    ones, zeros = kernel_law(x, a, y, x[:5], 1e8)
    np.testing.assert_allclose(ones, np.tile(a / 7, (5, 1)), atol=1e-12)
    np.testing.assert_allclose(zeros, np.tile((1 - a) / 7, (5, 1)), atol=1e-12)


def test_boolean_treatment_means_the_same(x64):
    x, a, y = sample()
    one, other = (kernel_law(x, t, y, x[:5], 1.0) for t in (a, a == 1))
    np.testing.assert_array_equal(one, other)


def select(x, a, y, bandwidths):
    choice = laws.select_bandwidth(*map(jnp.asarray, (x, a, y, bandwidths)))
    return float(choice.bandwidth), np.asarray(choice.scores)


def test_energy_scores_equal_loops(x64):
    x, a, y = sample()
    y[5] = y[6]
    bandwidths = np.array([0.3, 2.0])
    distance = lambda i, j: np.sqrt(sum((y[i] - y[j]) ** 2))
    brute = np.zeros(2)
    for b, bandwidth in enumerate(bandwidths):
        for i in range(ROWS):
            w = loop_weights(x, a, x[i], a[i], bandwidth, left_out=i)
            brute[b] += sum(w[j] * distance(i, j) for j in range(ROWS)) / ROWS
            pairs = [w[j] * w[k] * distance(j, k) for j in range(ROWS) for k in range(ROWS)]
            brute[b] -= sum(pairs) / (2 * ROWS)
    best, scores = select(x, a, y, bandwidths)
    np.testing.assert_allclose(scores, brute, rtol=1e-10)
    assert best == bandwidths[np.argmin(brute)]


def test_energy_score_of_a_number_is_the_crps(x64):
    """On a line in the plane."""
    x, a, y = sample()
    y[5], y[:, 1] = y[6], 3.0
    crps = [
        weighted_crps(y[:, 0], loop_weights(x, a, x[i], a[i], 0.5, left_out=i), y[i, 0])
        for i in range(ROWS)
    ]
    _, scores = select(x, a, y, np.array([0.5, 1.0]))
    np.testing.assert_allclose(scores[0], np.mean(crps), rtol=1e-10)


@pytest.mark.slow
def test_the_bandwidth_adapts_to_the_signal():
    rng = np.random.default_rng(2)
    x, noise = rng.uniform(-2, 2, size=(200, 1)), rng.normal(size=(200, 1))
    a, grid = np.arange(200) % 2, np.array([0.1, 0.3, 1.0, 3.0])
    single = lambda *arrays: (np.asarray(v, "float32") for v in arrays)
    pick = lambda y: select(*single(x, a, y, grid))[0]
    assert pick(np.sin(5 * x) + 0.1 * noise) == pytest.approx(0.1)
    assert pick(noise) == pytest.approx(3.0)


marginals = jax.jit(lambda law: (law.marginal1, law.marginal0))


def test_own_law_keeps_what_is_given():
    atoms1, atoms0 = np.array([[0.0], [1.0], [2.0]]), np.array([[5.0], [6.0]])
    weights1 = np.array([[0.2, 0.3, 0.5], [0.0, 1.0, 0.0]])
    law = laws.conditional_law(*map(jnp.array, (atoms1, atoms0, weights1, np.full((2, 2), 0.5))))
    marginal1, marginal0 = marginals(law)
    np.testing.assert_allclose(marginal1, [0.1, 0.65, 0.25])
    np.testing.assert_allclose(marginal0, [0.5, 0.5])
    np.testing.assert_array_equal(law.atoms0, atoms0)
    assert not law.shared


def test_one_atom_and_one_row_are_a_law():
    one = jnp.array(np.ones((1, 1)))
    np.testing.assert_array_equal(laws.conditional_law(one, one, one, one).marginal1, [1.0])


def test_shared_must_be_true(as_user):
    atoms, weights = np.arange(3.0)[:, None], jnp.array(np.full((2, 3), 1 / 3))
    one, other = jnp.array(atoms), jnp.array(atoms + 1)
    laws.conditional_law(one, one, weights, weights, shared=True)
    with pytest.raises(ValueError, match="atoms0: expected the atoms of atoms1 when shared"):
        laws.conditional_law(one, other, weights, weights, shared=True)
