import jax.numpy as jnp
import numpy as np
import pytest

from jaxicml.methods.sinkhorn_effect import laws


def sample(n=14, p=2, d=2, seed=0):
    rng = np.random.default_rng(seed)
    x, a = rng.normal(size=(n, p)), rng.permutation(np.arange(n) % 2)
    return x, a, rng.normal(size=(n, d)) + x[:, :1]


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
    law = laws.kernel_law(*map(jnp.asarray, (x, a, y, x_eval)), bandwidth=0.7)
    for arm, weights in ((1, law.weights1), (0, law.weights0)):
        brute = [loop_weights(x, a, row, arm, 0.7) for row in x_eval]
        np.testing.assert_allclose(weights, brute, rtol=1e-10)
    np.testing.assert_allclose(law.marginal1, np.mean(law.weights1, axis=0), rtol=1e-12)
    assert law.shared


@pytest.mark.parametrize("bandwidth", [1e-4, 1.0])
def test_a_far_covariate_gets_its_nearest_neighbour(bandwidth):
    x, a, y = (jnp.asarray(v, "float32" if v.dtype == float else int) for v in sample())
    x = x.at[3].set(200.0)
    x_eval = jnp.full((1, 2), 1000.0)
    law = laws.kernel_law(x, a.at[3].set(1), y, x_eval, bandwidth=bandwidth)
    np.testing.assert_allclose(law.weights1, np.eye(14)[[3]], atol=1e-6)
    np.testing.assert_allclose(law.weights0.sum(), 1, rtol=1e-6)


def test_a_wide_kernel_is_the_empirical_law_of_the_arm(x64):
    x, a, y = map(jnp.asarray, sample())
    law = laws.kernel_law(x, a, y, x[:2], bandwidth=1e8)
    np.testing.assert_allclose(law.weights1, np.tile(a / 7, (2, 1)), atol=1e-12)
    np.testing.assert_allclose(law.weights0, np.tile((1 - a) / 7, (2, 1)), atol=1e-12)


def test_boolean_treatment_means_the_same():
    x, a, y = (jnp.asarray(v, "float32" if v.dtype == float else int) for v in sample())
    one, other = (laws.kernel_law(x, t, y, x, bandwidth=1.0) for t in (a, a == 1))
    np.testing.assert_array_equal(one.weights1, other.weights1)


def test_energy_scores_equal_loops(x64):
    x, a, y = sample(d=3)
    y[5] = y[6]
    bandwidths = [0.3, 2.0]
    distance = lambda i, j: np.sqrt(sum((y[i] - y[j]) ** 2))
    brute = np.zeros(2)
    for b, bandwidth in enumerate(bandwidths):
        for i in range(14):
            w = loop_weights(x, a, x[i], a[i], bandwidth, left_out=i)
            brute[b] += sum(w[j] * distance(i, j) for j in range(14)) / 14
            brute[b] -= sum(w[j] * w[k] * distance(j, k) for j in range(14) for k in range(14)) / 28
    choice = laws.select_bandwidth(*map(jnp.asarray, (x, a, y, bandwidths)))
    np.testing.assert_allclose(choice.scores, brute, rtol=1e-10)
    assert choice.bandwidth == bandwidths[np.argmin(brute)]


def test_energy_score_of_a_number_is_the_crps(x64):
    x, a, y = sample(d=1)
    y[5] = y[6]
    crps = [
        weighted_crps(y[:, 0], loop_weights(x, a, x[i], a[i], 0.5, left_out=i), y[i, 0])
        for i in range(14)
    ]
    choice = laws.select_bandwidth(*map(jnp.asarray, (x, a, y, [0.5])))
    np.testing.assert_allclose(choice.scores[0], np.mean(crps), rtol=1e-10)


def test_the_bandwidth_adapts_to_the_signal():
    rng = np.random.default_rng(2)
    x, noise = rng.uniform(-2, 2, size=(200, 1)), rng.normal(size=(200, 1))
    a, grid = jnp.arange(200) % 2, jnp.array([0.1, 0.3, 1.0, 3.0])
    pick = lambda y: float(laws.select_bandwidth(jnp.asarray(x), a, jnp.asarray(y), grid).bandwidth)
    assert pick(np.sin(5 * x) + 0.1 * noise) == pytest.approx(0.1)
    assert pick(noise) == pytest.approx(3.0)


def test_own_law_keeps_what_is_given():
    atoms1, atoms0 = jnp.array([[0.0], [1.0], [2.0]]), jnp.array([[5.0], [6.0]])
    weights1 = jnp.array([[0.2, 0.3, 0.5], [0.0, 1.0, 0.0]])
    law = laws.conditional_law(atoms1, atoms0, weights1, jnp.full((2, 2), 0.5))
    np.testing.assert_allclose(law.marginal1, [0.1, 0.65, 0.25])
    np.testing.assert_allclose(law.marginal0, [0.5, 0.5])
    assert not law.shared


def test_one_atom_and_one_row_are_a_law():
    law = laws.conditional_law(
        jnp.ones((1, 1)), jnp.ones((1, 1)), jnp.ones((1, 1)), jnp.ones((1, 1))
    )
    np.testing.assert_array_equal(law.marginal1, [1.0])


def test_shared_must_be_true(as_user):
    atoms, weights = jnp.arange(3.0)[:, None], jnp.full((2, 3), 1 / 3)
    laws.conditional_law(atoms, atoms, weights, weights, shared=True)
    with pytest.raises(ValueError, match="atoms0: expected the atoms of atoms1 when shared"):
        laws.conditional_law(atoms, atoms + 1, weights, weights, shared=True)
