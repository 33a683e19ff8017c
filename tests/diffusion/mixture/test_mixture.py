"""The exact score of a Gaussian mixture against autodiff, SciPy, quadrature and symmetries."""

import functools

import chex
import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from sklearn.mixture import GaussianMixture

from jaxicml.diffusion import gmm, mixture
from tests.diffusion.mixture import cases

DIMENSIONS = (2, 9)  # differences below 9, matrix products from there
QUANTITIES = (
    mixture.gmm_log_prob,
    mixture.gmm_score,
    mixture.gmm_eps,
    mixture.gmm_denoise,
    mixture.gmm_hess_trace,
)


@functools.cache
def compiled(function, **options):
    return jax.jit(functools.partial(function, **options))


@pytest.mark.parametrize("form", cases.FORMS)
@pytest.mark.parametrize("d", DIMENSIONS)
def test_density_equals_scipy(x64, form, d):
    g, x = cases.mixture(form, d), cases.points(d)
    got = compiled(mixture.gmm_log_prob)(g, x, 0.4)
    np.testing.assert_allclose(got, cases.log_density(form, x, 0.4, d), rtol=1e-11)


@pytest.mark.parametrize("form", cases.FORMS)
@pytest.mark.parametrize("d", DIMENSIONS)
def test_score_and_trace_are_derivatives(x64, form, d):
    g, x = cases.mixture(form, d), cases.points(d)

    @jax.jit
    def derivatives(x):
        log_prob = lambda x: mixture.gmm_log_prob(g, x, 0.4)
        return jax.vmap(jax.grad(log_prob))(x), jax.vmap(jax.hessian(log_prob))(x)

    gradient, hessian = derivatives(x)
    score = compiled(mixture.gmm_score)(g, x, 0.4)
    np.testing.assert_allclose(score, gradient, rtol=1e-9, atol=1e-11)
    trace = compiled(mixture.gmm_hess_trace)(g, x, 0.4)
    np.testing.assert_allclose(trace, np.trace(hessian, axis1=1, axis2=2), rtol=1e-8)


@pytest.mark.parametrize("form", cases.FORMS)
def test_denoiser_and_noise_follow_tweedie(x64, form):
    g, x, abar = cases.mixture(form), cases.points(), 0.4
    score = np.asarray(compiled(mixture.gmm_score)(g, x, abar))
    clean = (x + (1 - abar) * score) / np.sqrt(abar)
    np.testing.assert_allclose(compiled(mixture.gmm_denoise)(g, x, abar), clean, rtol=1e-10)
    eps = (x - np.sqrt(abar) * clean) / np.sqrt(1 - abar)
    np.testing.assert_allclose(compiled(mixture.gmm_eps)(g, x, abar), eps, rtol=1e-9, atol=1e-11)


def test_denoiser_is_the_posterior_mean_by_quadrature(x64):
    weights, means, variances = np.array([0.3, 0.7]), np.array([-1.0, 2.0]), np.array([0.2, 0.6])
    g = gmm.gaussian_mixture(jnp.array(weights), jnp.array(means)[:, None], jnp.array(variances))
    x0, abar, x = np.linspace(-12, 12, 20001), 0.3, np.array([-1.5, 0.2, 1.0])
    prior = weights * np.exp(-((x0[:, None] - means) ** 2) / (2 * variances)) / np.sqrt(variances)
    likelihood = np.exp(-((x[:, None] - np.sqrt(abar) * x0) ** 2) / (2 * (1 - abar)))
    joint = prior.sum(1) * likelihood
    want = (joint @ x0) / joint.sum(1)
    np.testing.assert_allclose(
        compiled(mixture.gmm_denoise)(g, x[:, None], abar)[:, 0], want, rtol=1e-9
    )


@pytest.mark.parametrize("abar", [0.0, 1.0])
@pytest.mark.parametrize("form", ["shared", "each"])
def test_denoiser_at_the_two_ends(x64, form, abar):
    g, x = cases.mixture(form), cases.points()
    want = x if abar else np.broadcast_to(np.asarray(g.center), x.shape)
    np.testing.assert_allclose(compiled(mixture.gmm_denoise)(g, x, abar), want, rtol=1e-10)


def test_density_equals_sklearn(x64):
    weights, means, full, _ = cases.parts("full", 3)
    theirs = GaussianMixture(3, covariance_type="full")
    theirs.weights_, theirs.means_ = weights, means
    theirs.precisions_cholesky_ = np.stack([np.linalg.inv(np.linalg.cholesky(c)).T for c in full])
    x = cases.points(3)
    ours = compiled(mixture.gmm_log_prob)(cases.mixture("full", 3), x, 1.0)
    np.testing.assert_allclose(ours, theirs.score_samples(x), rtol=1e-10)


@pytest.mark.parametrize("quantity", QUANTITIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("form", ["shared", "each"])
def test_streaming_equals_dense(quantity, form):
    g = cases.mixture(form, d=9, K=50, dtype="float32")
    x = jnp.asarray(cases.points(9, 7), jnp.float32)
    dense = compiled(quantity)(g, x, 0.6)
    streamed = compiled(quantity, block=16)(g, x, 0.6)  # 50 is no multiple of 16
    np.testing.assert_allclose(streamed, dense, rtol=2e-5, atol=2e-5 * np.abs(dense).max())


def test_streaming_never_holds_all_responsibilities():
    shape = lambda size: jax.ShapeDtypeStruct(size, jnp.float32)
    g = jax.eval_shape(
        lambda w, mu: gmm.GMM(w, mu, mu[0], w[0]), shape((40_000,)), shape((40_000, 32))
    )
    x = jax.ShapeDtypeStruct((64, 32), jnp.float32)
    temporaries = lambda **options: (
        compiled(mixture.gmm_score, **options)
        .lower(g, x, 0.5)
        .compile()
        .memory_analysis()
        .temp_size_in_bytes
    )
    responsibilities = 4 * 64 * 40_000
    assert temporaries() >= responsibilities
    assert temporaries(block=1000) < responsibilities / 5


@pytest.mark.parametrize("form", ["shared", "full"])
def test_components_may_be_sharded(x64, form):
    g, x = cases.mixture(form, K=4), cases.points()
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("k",))
    P = jax.sharding.PartitionSpec
    split = jax.tree.map(lambda leaf: P("k") if leaf.shape[:1] == (4,) else P(), g)
    for quantity in (mixture.gmm_score, mixture.gmm_log_prob, mixture.gmm_hess_trace):
        local = lambda g, x, quantity=quantity: quantity(g, x, 0.4, axis_name="k")
        sharded = jax.shard_map(
            local, mesh=mesh, in_specs=(split, P()), out_specs=P(), check_vma=False
        )
        np.testing.assert_allclose(
            jax.jit(sharded)(g, x), compiled(quantity)(g, x, 0.4), rtol=1e-10
        )


@given(seed=st.integers(0, 10**6), abar=st.floats(0.05, 0.95))
def test_symmetries(seed, abar):
    """Order of components, rotations and shifts of everything change nothing else."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(seed)
        weights, means, _, cov = cases.parts("each", seed=seed)
        x, shift = cases.points(seed=seed), 5 * rng.normal(size=2)
        turn = np.linalg.qr(rng.normal(size=(2, 2)))[0]
        order = rng.permutation(3)
        build = lambda w, m, c: gmm.gaussian_mixture(*map(jnp.asarray, (w, m, c)))
        score = compiled(mixture.gmm_score)
        plain = np.asarray(score(build(weights, means, cov), x, abar))
        permuted = score(build(weights[order], means[order], cov[order]), x, abar)
        turned = score(build(weights, means @ turn, cov), x @ turn, abar)
        shifted = score(build(weights, means + shift, cov), x + np.sqrt(abar) * shift, abar)
        tolerance = {"rtol": 1e-8, "atol": 1e-10}
        np.testing.assert_allclose(permuted, plain, **tolerance)
        np.testing.assert_allclose(turned, plain @ turn, **tolerance)
        np.testing.assert_allclose(shifted, plain, **tolerance)


def test_marginal_has_the_same_density(x64):
    g, x = cases.mixture("full"), cases.points()
    direct = compiled(mixture.gmm_log_prob)(g, x, 0.3)
    via = compiled(mixture.gmm_log_prob)(gmm.gmm_marginal(g, 0.3), x, 1.0)
    np.testing.assert_allclose(via, direct, rtol=1e-11)


@pytest.mark.parametrize("form", cases.FORMS)
def test_draws_have_the_moments(form):
    weights, means, full, _ = cases.parts(form)
    g = cases.mixture(form, dtype="float32")
    x, labels = gmm.gmm_sample(jax.random.key(0), g, 100_000)
    share = np.bincount(labels, minlength=3) / len(labels)
    np.testing.assert_allclose(share, weights, atol=4 * np.sqrt(0.25 / len(labels)))
    mean = weights @ means
    spread = np.einsum("k,kij->ij", weights, full) + (weights * (means - mean).T) @ (means - mean)
    error = np.sqrt(np.diag(spread) / len(x))
    assert (np.abs(x.mean(0) - mean) < 5 * error).all()
    np.testing.assert_allclose(np.cov(np.asarray(x).T), spread, rtol=0.05, atol=0.05)


def test_far_components_and_tiny_weights_do_not_overflow():
    weights = jnp.array([1e-30, 1 - 1e-30], jnp.float32)
    g = gmm.gaussian_mixture(weights, jnp.array([[-1e5], [1e5]], jnp.float32), 0.01)
    x = jnp.array([[-1e5], [0.0], [1e5]], jnp.float32)
    for quantity in QUANTITIES:
        chex.assert_tree_all_finite(compiled(quantity)(g, x, 0.9))


def test_the_smallest_weights_keep_their_logarithm(x64):
    """Float32 has no number for them."""
    means = jnp.array([[-1.0], [1.0]], "float32")
    g = gmm.gaussian_mixture(jnp.array([1e-300, 1.0]), means, 1.0)
    assert g.log_weights.dtype == jnp.float32
    np.testing.assert_allclose(g.log_weights, [-300 * np.log(10), 0], rtol=1e-6)


def test_a_weight_of_none_takes_no_part(x64):
    """As shards of few components have them, with −∞ for a logarithm, also in the first place."""
    g = cases.mixture("full")
    none = eqx.tree_at(lambda g: g.log_weights, g, g.log_weights.at[0].set(-jnp.inf))
    rest = jax.tree.map(lambda leaf: leaf[1:], (g.log_weights, g.offsets, g.variances, g.axes))
    alone = gmm.GMM(rest[0], rest[1], g.center, rest[2], rest[3])
    score = compiled(mixture.gmm_score)
    np.testing.assert_allclose(
        score(none, cases.points(), 0.5), score(alone, cases.points(), 0.5), rtol=1e-12
    )


def test_labels_have_their_frequencies():
    weights = np.array([0.5, 0.0, 0.2, 0.3])
    log_weights = jnp.asarray(np.log(weights, where=weights > 0, out=np.full(4, -np.inf)))
    labels = gmm.draw_labels(jax.random.key(0), log_weights, 10_000)
    counts = np.bincount(labels, minlength=4)
    assert counts[1] == 0
    present = weights > 0
    assert scipy.stats.chisquare(counts[present], 10_000 * weights[present]).pvalue > 1e-3


def test_one_point_mass(x64):
    g = gmm.gaussian_mixture(jnp.ones(1), jnp.array([[2.0, -1.0]]), 0.0)
    x = cases.points()
    np.testing.assert_allclose(
        compiled(mixture.gmm_score)(g, x, 0.36),
        (0.6 * np.array([2.0, -1.0]) - x) / 0.64,
        rtol=1e-12,
    )


def test_duplicate_means_count_as_one(x64):
    x = cases.points(1)
    twice = gmm.gaussian_mixture(jnp.array([0.2, 0.3, 0.5]), jnp.array([[1.0], [1.0], [3.0]]), 0.5)
    once = gmm.gaussian_mixture(jnp.array([0.5, 0.5]), jnp.array([[1.0], [3.0]]), 0.5)
    np.testing.assert_allclose(
        compiled(mixture.gmm_score)(twice, x, 0.5),
        compiled(mixture.gmm_score)(once, x, 0.5),
        rtol=1e-12,
    )


def test_small_noise_keeps_its_digits():
    """A schedule knows √(1 − ᾱ) where 1 − ᾱ has lost its digits in float32."""
    g = gmm.gaussian_mixture(jnp.ones(1), jnp.zeros((1, 1)), 0.0)
    noise2 = 1e-7
    got = mixture.gmm_score(g, jnp.full((1, 1), 1e-4), 1 - noise2, noise=np.sqrt(noise2))
    np.testing.assert_allclose(got, -1e-4 / noise2, rtol=1e-5)


@pytest.mark.parametrize(
    ("args", "match"),
    [
        (([0.5, 0.4], [[0.0], [1.0]], 1.0), "weights: expected rows that sum to 1, got a sum of"),
        (([1.0, 0.0], [[0.0], [1.0]], 1.0), "weights: expected a finite number above 0"),
        (([1.5, -0.5], [[0.0], [1.0]], 1.0), "weights: expected non-negative"),
        (([0.5, 0.5], [[0.0], [np.nan]], 1.0), "means: expected finite values"),
        (([0.5, 0.5], [[0.0], [1.0]], -1.0), "cov: expected a finite number of at least 0"),
        (([0.5, 0.5], [[0.0], [1.0]], [1.0, -1.0]), "cov: expected a finite number of at least 0"),
        (([0.5, 0.5], [[0.0], [1.0]], [1.0] * 3), r"cov: expected shape \(2\), got \(3,\)"),
        (([1.0], [[0.0, 0.0]], [[[1.0, 2.0], [2.0, 1.0]]]), "cov .eigenvalues.: expected a finite"),
        (([1.0], [[0.0, 0.0]], [[[1.0, 0.5], [0.0, 1.0]]]), "cov: expected symmetric matrices"),
        (([1.0], [0.0], 1.0), r"means: expected shape \(any, any\), got \(1,\)"),
        (([0.5, 0.5], [[0.0]], 1.0), r"weights: expected shape \(1\), got \(2,\)"),
    ],
)
def test_mixtures_that_are_none_are_refused(as_user, args, match):
    with pytest.raises(ValueError, match=match):
        gmm.gaussian_mixture(*(jnp.asarray(a, jnp.float32) for a in args))
