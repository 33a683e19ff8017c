"""The flow against its Jacobian, the normal law, quadrature and simulation; the laws it induces."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxicml.methods.sinkhorn_effect import flow as flows
from jaxicml.methods.sinkhorn_effect.networks import Standardiser

FIT = {"steps": 250, "width": 16, "num_layers": 4, "learning_rate": 1e-2}


def some_flow(d, p=2, dtype="float64"):
    """A flow far from the identity: every parameter is random."""
    rng = np.random.default_rng(d)
    normal = lambda leaf: jnp.asarray(0.4 * rng.normal(size=leaf.shape), dtype)
    flow = jax.tree.map(normal, empty_flow(d, p, dtype, width=8, num_layers=6))
    scales = lambda flow: (flow.standardise_x.scale, flow.standardise_y.scale)
    return eqx.tree_at(scales, flow, replace_fn=lambda scale: jnp.asarray(np.exp(scale)))


def empty_flow(d, p, dtype, **sizes):
    """The shapes of a flow, without compiling anything."""
    make = lambda key: flows.ConditionalRealNVP(p, d, **sizes, dtype=dtype, key=key)
    return jax.eval_shape(make, jax.random.key(0))


def gaussian_flow(mean, scale, dtype="float32"):
    """Untrained flow of one outcome and one covariate: N(mean, scale²) whatever x."""
    zero = lambda leaf: jnp.asarray(np.zeros(leaf.shape), dtype)
    flow = jax.tree.map(zero, empty_flow(1, 1, dtype, width=4, num_layers=2))
    array = lambda value: jnp.asarray([value], dtype)
    own, unit = (Standardiser(array(m), array(s)) for m, s in ((mean, scale), (0.0, 1.0)))
    return eqx.tree_at(lambda f: (f.standardise_y, f.standardise_x), flow, (own, unit))


def points(n, d, dtype="float64", seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(n, d)), dtype)


@jax.jit
def views(flow, y, x):
    """Noise, its log-determinant, log density, outcomes from the noise, and Jacobians."""
    z, log_det = flow.forward(y, x)
    jacobians = jax.vmap(jax.jacfwd(lambda y, x: flow.forward(y, x)[0]))(y, x)
    return z, log_det, flow.log_prob(y, x), flow.inverse(z, x), jacobians


@pytest.mark.parametrize(
    ("d", "dtype", "atol"),
    [
        (3, "float64", 1e-12),
        pytest.param(1, "float64", 1e-12, marks=pytest.mark.slow),
        pytest.param(2, "float32", 1e-6, marks=pytest.mark.slow),
    ],
)
def test_inverse_undoes_forward_whose_determinant_is_that_of_the_jacobian(d, dtype, atol, x64):
    flow, y, x = some_flow(d, dtype=dtype), points(50, d, dtype), points(50, 2, dtype, 1)
    z, log_det, _, back, jacobians = views(flow, y, x)
    assert np.abs(np.asarray(z) - y).max() > 0.5
    np.testing.assert_allclose(back, y, atol=atol)
    expected = np.linalg.slogdet(jacobians)[1]
    np.testing.assert_allclose(log_det, expected, rtol=1e2 * atol, atol=atol)


log_prob = jax.jit(lambda flow, y, x: flow.log_prob(y, x))


@pytest.mark.slow
def test_densities_in_the_plane_integrate_to_one(x64):
    axis, step = np.linspace(-30, 30, 601, retstep=True)
    rows = map(jnp.asarray, np.stack(np.meshgrid(axis, axis), -1))
    flow, x = some_flow(2), points(1, 2, seed=1)
    densities = [np.exp(log_prob(flow, row, x)) for row in rows]
    np.testing.assert_allclose(np.sum(densities) * step**2, 1, atol=1e-6)


@pytest.mark.slow
def test_one_outcome_is_gaussian_given_x(x64):
    flow, y, x = some_flow(1), points(50, 1), points(50, 2, seed=1)
    _, _, log_density, *_ = views(flow, y, x)
    z = [np.asarray(views(flow, jnp.full_like(y, value), x)[0]) for value in (0.0, 1.0)]
    # noise is (y − mean)/scale
    scale = 1 / (z[1] - z[0])
    mean = -z[0] * scale
    expected = scipy.stats.norm(mean, scale).logpdf(y)[:, 0]
    np.testing.assert_allclose(log_density, expected, rtol=1e-10)
    assert np.ptp(mean) > 0.1
    assert np.ptp(scale) > 0.01


@pytest.mark.slow
def test_leading_dimensions_broadcast(x64):
    flow, y, x = some_flow(2), points(5, 2), points(3, 2, seed=1)
    table = log_prob(flow, y, x[:, None])
    loop = [[float(log_prob(flow, y[j], x[i])) for j in range(5)] for i in range(3)]
    np.testing.assert_allclose(table, loop, rtol=1e-12)


ROWS = 600


@pytest.fixture(scope="module")
def simulated():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(ROWS, 1))
    first = 2 + 3 * x + 0.5 * np.exp(0.3 * x) * rng.normal(size=(ROWS, 1))
    second = -1 + 0.8 * first + 0.3 * rng.normal(size=(ROWS, 1))
    return x.astype("float32"), np.hstack([first, second]).astype("float32")


def fit(key, x, y, mask):
    x, y, mask = map(jnp.asarray, (x, y, mask))
    return flows.fit_flow(jax.random.key(key), x, y, mask=mask, **FIT)


@pytest.mark.slow
def test_recovers_a_conditional_gaussian(simulated):
    flow = fit(5, *simulated, np.ones(ROWS, bool)).flow
    at = np.array([[-1.0], [0.0], [1.0]], "float32")
    x = jnp.asarray(np.broadcast_to(at[:, None], (3, 4000, 1)))
    drawn = np.asarray(jax.jit(type(flow).sample)(flow, jax.random.key(6), x))
    mean = 2 + 3 * at[:, 0]
    np.testing.assert_allclose(drawn[..., 0].mean(1), mean, atol=0.15)
    np.testing.assert_allclose(drawn[..., 1].mean(1), -1 + 0.8 * mean, atol=0.15)
    np.testing.assert_allclose(drawn[..., 0].std(1), 0.5 * np.exp(0.3 * at[:, 0]), rtol=0.2)
    residual = drawn[..., 1] - 0.8 * drawn[..., 0]
    np.testing.assert_allclose(residual.std(1), 0.3, rtol=0.25)


@pytest.mark.slow
def test_keeps_the_best_step_and_ignores_what_is_masked(simulated):
    x, y = simulated
    mask = np.arange(ROWS) % 2 == 1
    ours = fit(7, x, y, mask)
    assert ours.step == np.argmin(ours.validation_nll)
    far = lambda values: np.where(mask[:, None], values, np.float32(1e30))
    other = fit(7, far(x), far(y), mask)
    np.testing.assert_allclose(ours.train_nll, other.train_nll, rtol=1e-5)
    # reported losses are those of the kept flow on rows that it saw and did not see
    nll = -np.asarray(log_prob(ours.flow, *map(jnp.asarray, (y, x))))[mask].mean()
    step = int(ours.step)
    losses = [np.asarray(part)[step] for part in (ours.train_nll, ours.validation_nll)]
    np.testing.assert_allclose(nll, 0.8 * losses[0] + 0.2 * losses[1], rtol=1e-4)


@pytest.fixture(scope="module")
def two_arms():
    """Arms N(0, 1) and N(1, 2²) with their true flows: the outcomes are draws of the mixture."""
    rng, a = np.random.default_rng(8), np.arange(1000) % 2
    y = np.where(a == 1, rng.normal(size=1000), rng.normal(1, 2, 1000))
    sample = (np.zeros((1000, 1), "float32"), a, y[:, None].astype("float32"))
    return (gaussian_flow(0.0, 1.0), gaussian_flow(1.0, 2.0)), tuple(map(jnp.asarray, sample))


HERE = jnp.asarray(np.zeros((1, 1), "float32"))


def moments(law):
    atoms = np.asarray(law.atoms1)[:, 0]
    weights = np.stack([law.weights1[0], law.weights0[0]])
    mean = weights @ atoms
    return np.append(mean, (weights * (atoms - mean[:, None]) ** 2).sum(1))


@pytest.mark.slow
def test_weighted_outcomes_have_the_law_of_the_flows(two_arms):
    both, sample = two_arms
    law = flows.flow_law(*both, *sample, HERE)
    # four standard errors of 1000 draws
    np.testing.assert_allclose(moments(law), [0, 1, 1, 4], atol=0.5)
    assert law.shared
    np.testing.assert_array_equal(law.atoms0, sample[2])


@pytest.mark.slow
def test_the_bare_density_table_is_too_narrow(two_arms):
    both, sample = two_arms
    law = flows.flow_law(*both, *sample, HERE, reweight=False)
    y = np.asarray(sample[2][:, 0], float)
    density = scipy.stats.norm(1, 2).pdf(y)
    np.testing.assert_allclose(law.weights0[0], density / density.sum(), rtol=1e-4)
    assert moments(law)[3] < 2.5


@pytest.mark.slow
def test_batches_do_not_change_the_law(x64):
    flow, x, y = some_flow(2), points(20, 2), points(20, 2, seed=1)
    a = jnp.arange(20) % 2
    one, other = (
        flows.flow_law(flow, flow, x, a, y, x[:9], reweight=False, batch_size=size)
        for size in (7, 5000)
    )
    np.testing.assert_allclose(one.weights1, other.weights1, rtol=1e-12)


@jax.jit
def sampled_law(key, flow1, flow0, x):
    return flows.flow_sample_law(key, flow1, flow0, x, num_samples=4)


@pytest.mark.slow
def test_sampled_laws_share_their_noise(x64):
    both = gaussian_flow(0.0, 1.0, "float64"), gaussian_flow(5.0, 2.0, "float64")
    law = jax.tree.map(np.asarray, sampled_law(jax.random.key(9), *both, points(3, 1)))
    np.testing.assert_allclose(law.atoms0, 5 + 2 * law.atoms1, rtol=1e-12)
    np.testing.assert_allclose(law.weights1, np.kron(np.eye(3), np.full(4, 0.25)))
    # these flows ignore x: every block holds the same samples
    np.testing.assert_allclose(law.atoms1.reshape(3, 4), np.tile(law.atoms1[:4].T, (3, 1)))


@pytest.mark.slow
def test_gradients_are_finite_far_out():
    flow = some_flow(2, dtype="float32")
    y, x = jnp.array([[1e6, -1e6]]), jnp.array([[1e4, 0.0]])
    moved = lambda c: eqx.tree_at(lambda flow: flow.conditioners, flow, c)
    gradient = jax.jit(jax.grad(lambda c, y: moved(c).log_prob(y, x).sum(), (0, 1)))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient(flow.conditioners, y)))


@pytest.mark.parametrize(
    ("y", "x", "match"),
    [
        ((4, 3), (4, 2), r"y: expected shape \(4, 2\), got \(4, 3\)"),
        ((4, 2), (4, 1), r"x: expected shape \(4, 2\), got \(4, 1\)"),
    ],
)
def test_wrong_widths_are_refused(y, x, match, as_user):
    y, x = (jnp.asarray(np.ones(shape)) for shape in (y, x))
    with pytest.raises(ValueError, match=match):
        some_flow(2, dtype="float32").log_prob(y, x)
