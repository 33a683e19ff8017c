import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxicml.methods.sinkhorn_effect import flow as flows
from jaxicml.methods.sinkhorn_effect.networks import Standardiser

CONDITIONERS = lambda flow: flow.conditioners
FIT = {"steps": 250, "width": 16, "num_layers": 4, "learning_rate": 1e-2}


def some_flow(d, p=2, dtype="float64"):
    """A flow far from the identity: every parameter is random."""
    rng = np.random.default_rng(d)
    normal = lambda leaf: jnp.asarray(0.4 * rng.normal(size=leaf.shape), dtype)
    flow = jax.tree.map(normal, empty_flow(d, p, dtype, width=8, num_layers=6))
    scales = lambda flow: (flow.standardise_x.scale, flow.standardise_y.scale)
    return eqx.tree_at(scales, flow, replace_fn=lambda scale: jnp.exp(scale))


def empty_flow(d, p, dtype, **sizes):
    """The shapes of a flow, without compiling anything."""
    make = lambda key: flows.ConditionalRealNVP(p, d, **sizes, dtype=dtype, key=key)
    return jax.eval_shape(make, jax.random.key(0))


def gaussian_flow(mean, scale):
    """Untrained flow of one outcome and one covariate: N(mean, scale²) whatever x."""
    zero = lambda leaf: jnp.zeros(leaf.shape, leaf.dtype)
    flow = jax.tree.map(zero, empty_flow(1, 1, jnp.result_type(float), width=4, num_layers=2))
    own, unit = (
        Standardiser(jnp.array([m]), jnp.array([s])) for m, s in ((mean, scale), (0.0, 1.0))
    )
    return eqx.tree_at(lambda f: (f.standardise_y, f.standardise_x), flow, (own, unit))


def points(n, d, dtype="float64", seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(n, d)), dtype)


@pytest.mark.parametrize(
    ("d", "dtype", "atol"),
    [(1, "float64", 1e-12), (2, "float32", 1e-6), (3, "float64", 1e-12)],
)
def test_inverse_undoes_forward(d, dtype, atol, x64):
    flow, y, x = some_flow(d, dtype=dtype), points(50, d, dtype), points(50, 2, dtype, 1)
    z, _ = flow.forward(y, x)
    assert np.abs(z - y).max() > 0.5
    np.testing.assert_allclose(flow.inverse(z, x), y, atol=atol)


@pytest.mark.parametrize("d", [1, 3])
def test_log_determinant_against_the_jacobian(d, x64):
    flow, y, x = some_flow(d), points(50, d), points(50, 2, seed=1)
    jacobians = jax.vmap(jax.jacfwd(lambda y, x: flow.forward(y, x)[0]))(y, x)
    np.testing.assert_allclose(
        flow.forward(y, x)[1], np.linalg.slogdet(jacobians)[1], rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize(("d", "count"), [(1, 6001), (2, 601)])
def test_densities_integrate_to_one(d, count, x64):
    axis = np.linspace(-30, 30, count)
    grid = jnp.asarray(np.stack(np.meshgrid(*[axis] * d), -1).reshape(-1, d))
    density = np.exp(some_flow(d).log_prob(grid, points(1, 2, seed=1)))
    np.testing.assert_allclose(density.sum() * (60 / (count - 1)) ** d, 1, atol=1e-6)


def test_one_outcome_is_gaussian_given_x(x64):
    flow, y, x = some_flow(1), points(50, 1), points(50, 2, seed=1)
    mean = np.asarray(flow.inverse(jnp.zeros((50, 1)), x))
    scale = flow.inverse(jnp.ones((50, 1)), x) - mean
    np.testing.assert_allclose(
        flow.log_prob(y, x), scipy.stats.norm(mean, scale).logpdf(y)[:, 0], rtol=1e-10
    )
    assert np.ptp(mean) > 0.1
    assert np.ptp(scale) > 0.01


def test_leading_dimensions_broadcast(x64):
    flow, y, x = some_flow(2), points(5, 2), points(3, 2, seed=1)
    table = flow.log_prob(y, x[:, None])
    loop = [[float(flow.log_prob(y[j], x[i])) for j in range(5)] for i in range(3)]
    np.testing.assert_allclose(table, loop, rtol=1e-12)


@pytest.fixture(scope="module")
def simulated():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(600, 1))
    first = 2 + 3 * x + 0.5 * np.exp(0.3 * x) * rng.normal(size=(600, 1))
    second = -1 + 0.8 * first + 0.3 * rng.normal(size=(600, 1))
    return jnp.asarray(x, "float32"), jnp.asarray(np.hstack([first, second]), "float32")


def test_recovers_a_conditional_gaussian(simulated):
    x, y = simulated
    fit = flows.fit_flow(jax.random.key(5), x, y, **FIT)
    at = jnp.array([[-1.0], [0.0], [1.0]])
    drawn = fit.flow.sample(jax.random.key(6), jnp.broadcast_to(at[:, None], (3, 4000, 1)))
    drawn, at = np.asarray(drawn), np.asarray(at)
    mean = 2 + 3 * at[:, 0]
    np.testing.assert_allclose(drawn[..., 0].mean(1), mean, atol=0.15)
    np.testing.assert_allclose(drawn[..., 1].mean(1), -1 + 0.8 * mean, atol=0.15)
    np.testing.assert_allclose(drawn[..., 0].std(1), 0.5 * np.exp(0.3 * at[:, 0]), rtol=0.2)
    residual = drawn[..., 1] - 0.8 * drawn[..., 0]
    np.testing.assert_allclose(residual.std(1), 0.3, rtol=0.25)


def test_keeps_the_best_step_and_ignores_what_is_masked(simulated):
    x, y = simulated
    mask = jnp.arange(600) % 2
    fit = flows.fit_flow(jax.random.key(7), x, y, mask=mask, **FIT)
    assert fit.step == np.argmin(fit.validation_nll)
    far = lambda values: jnp.where(mask[:, None] == 1, values, 1e30)
    other = flows.fit_flow(jax.random.key(7), far(x), far(y), mask=mask, **FIT)
    np.testing.assert_allclose(fit.train_nll, other.train_nll, rtol=1e-5)
    # reported losses are those of the kept flow on rows that it saw and did not see
    nll = -fit.flow.log_prob(y, x)[mask == 1].mean()
    losses = 0.8 * fit.train_nll[fit.step] + 0.2 * fit.validation_nll[fit.step]
    np.testing.assert_allclose(nll, losses, rtol=1e-4)


@pytest.fixture(scope="module")
def two_arms():
    """Arms N(0, 1) and N(1, 2²) with their true flows: the outcomes are draws of the mixture."""
    rng, a = np.random.default_rng(8), np.arange(1000) % 2
    y = np.where(a == 1, rng.normal(size=1000), rng.normal(1, 2, 1000))
    sample = (jnp.zeros((1000, 1)), jnp.asarray(a), jnp.asarray(y[:, None], "float32"))
    return (gaussian_flow(0.0, 1.0), gaussian_flow(1.0, 2.0)), sample


def moments(law):
    atoms = law.atoms1[:, 0]
    weights = jnp.stack([law.weights1[0], law.weights0[0]])
    mean = weights @ atoms
    return np.append(mean, (weights * (atoms - mean[:, None]) ** 2).sum(1))


def test_weighted_outcomes_have_the_law_of_the_flows(two_arms):
    both, sample = two_arms
    law = flows.flow_law(*both, *sample, jnp.zeros((1, 1)))
    # four standard errors of 1000 draws
    np.testing.assert_allclose(moments(law), [0, 1, 1, 4], atol=0.5)
    assert law.shared
    np.testing.assert_array_equal(law.atoms0, sample[2])


def test_the_bare_density_table_is_too_narrow(two_arms):
    both, sample = two_arms
    law = flows.flow_law(*both, *sample, jnp.zeros((1, 1)), reweight=False)
    y = np.asarray(sample[2][:, 0], float)
    density = scipy.stats.norm(1, 2).pdf(y)
    np.testing.assert_allclose(law.weights0[0], density / density.sum(), rtol=1e-4)
    assert moments(law)[3] < 2.5


def test_batches_do_not_change_the_law(x64):
    flow, x, y = some_flow(2), points(20, 2), points(20, 2, seed=1)
    a = jnp.arange(20) % 2
    one, other = (
        flows.flow_law(flow, flow, x, a, y, x[:9], reweight=False, batch_size=size)
        for size in (7, 5000)
    )
    np.testing.assert_allclose(one.weights1, other.weights1, rtol=1e-12)


def test_sampled_laws_share_their_noise(x64):
    x = points(3, 1)
    law = flows.flow_sample_law(
        jax.random.key(9), gaussian_flow(0.0, 1.0), gaussian_flow(5.0, 2.0), x, num_samples=4
    )
    np.testing.assert_allclose(law.atoms0, 5 + 2 * law.atoms1, rtol=1e-12)
    np.testing.assert_allclose(law.weights1, np.kron(np.eye(3), np.full(4, 0.25)))
    # these flows ignore x: every block holds the same samples
    np.testing.assert_allclose(law.atoms1.reshape(3, 4), np.tile(law.atoms1[:4].T, (3, 1)))


def test_gradients_are_finite_far_out():
    flow = some_flow(2, dtype="float32")
    y, x = jnp.array([[1e6, -1e6]]), jnp.array([[1e4, 0.0]])
    gradient = jax.grad(
        lambda c, y: eqx.tree_at(CONDITIONERS, flow, c).log_prob(y, x).sum(), (0, 1)
    )
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient(flow.conditioners, y)))


@pytest.mark.parametrize(
    ("y", "x", "match"),
    [
        (jnp.ones((4, 3)), jnp.ones((4, 2)), r"y: expected shape \(4, 2\), got \(4, 3\)"),
        (jnp.ones((4, 2)), jnp.ones((4, 1)), r"x: expected shape \(4, 2\), got \(4, 1\)"),
    ],
)
def test_wrong_widths_are_refused(y, x, match, as_user):
    with pytest.raises(ValueError, match=match):
        some_flow(2, dtype="float32").log_prob(y, x)
