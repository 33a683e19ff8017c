import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxicml.methods.sinkhorn_effect import networks, propensity


def sample(n=60, p=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p)) * [1, 10, 0.1] + [0, 5, -3]
    odds = x @ [0.8, -0.1, 5.0] + 14.0
    return x, (rng.random(n) < 1 / (1 + np.exp(-odds))).astype(int)


predict = jax.jit(lambda model, x: model(x))


def logistic(x, a, l2=1e-3):
    """(fitted model, its probabilities at the covariates) of NumPy arrays."""
    model = propensity.logistic_propensity(jnp.asarray(x), jnp.asarray(a), l2=l2)
    return jax.tree.map(np.asarray, (model, predict(model, jnp.asarray(x))))


def objective_gradient(model, x, a, l2):
    """Gradient of mean log loss + l2/2 |beta|^2 in (beta, b), straight from its definition."""
    z = (x - x.mean(0)) / x.std(0)
    residual = 1 / (1 + np.exp(-(z @ model.coefficients + model.intercept))) - a
    return np.append(z.T @ residual / len(a) + l2 * model.coefficients, residual.mean())


@pytest.mark.parametrize("l2", [1e-6, 1e-3, 10.0])
def test_the_gradient_vanishes_at_the_fit(l2, x64):
    x, a = sample()
    model, e = logistic(x, a, l2)
    np.testing.assert_allclose(objective_gradient(model, x, a, l2), 0, atol=1e-12)
    odds = (x - x.mean(0)) / x.std(0) @ model.coefficients + model.intercept
    np.testing.assert_allclose(e, 1 / (1 + np.exp(-odds)), rtol=1e-10)


@pytest.mark.parametrize("treated", [[0], range(59), range(30)])
def test_unbalanced_and_separable_arms_stay_finite(treated, x64):
    x, a = np.sort(sample()[0], axis=0), np.zeros(60, int)
    a[list(treated)] = 1
    model, e = logistic(x, a)
    np.testing.assert_allclose(objective_gradient(model, x, a, 1e-3), 0, atol=1e-12)
    assert ((e > 0) & (e < 1)).all()


@pytest.mark.oracle
def test_logistic_against_scikit_learn(x64):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        linear_model = pytest.importorskip("sklearn.linear_model")
    x, a = sample()
    z = (x - x.mean(0)) / x.std(0)
    for l2 in (1e-3, 0.1):
        theirs = linear_model.LogisticRegression(C=1 / (60 * l2), tol=1e-12, max_iter=10_000)
        theirs.fit(z, a)
        model, e = logistic(x, a, l2)
        np.testing.assert_allclose(model.coefficients, theirs.coef_[0], atol=1e-6)
        np.testing.assert_allclose(e, theirs.predict_proba(z)[:, 1], atol=1e-6)


def test_units_of_the_covariates_do_not_matter(x64):
    x, a = sample()
    np.testing.assert_allclose(logistic(1e3 * x - 7, a)[1], logistic(x, a)[1], rtol=1e-9)


def test_a_constant_column_gets_no_coefficient(x64):
    x, a = sample()
    x[:, 2] = 0.1
    model, _ = logistic(x, a)
    assert np.abs(model.coefficients[:2]).min() > 0.1
    np.testing.assert_allclose(model.coefficients[2], 0, atol=1e-12)


@pytest.mark.slow
def test_float32_is_as_good_as_its_digits(x64):
    x, a = sample()
    single = logistic(x.astype("float32"), a)[1]
    assert single.dtype == "float32"
    np.testing.assert_allclose(single, logistic(x, a)[1], atol=1e-5)


@pytest.mark.slow
def test_the_network_beats_the_logistic_on_a_nonlinear_truth():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1200, 2)).astype("float32")
    e = 1 / (1 + np.exp(-3 * x[:, 0] * x[:, 1]))
    a = (rng.random(1200) < e).astype(int)
    loss = lambda e: -np.log(np.where(a[600:] == 1, e, 1 - e).clip(1e-6)).mean()
    seen, unseen, treated = jnp.asarray(x[:600]), jnp.asarray(x[600:]), jnp.asarray(a[:600])
    network = propensity.mlp_propensity(jax.random.key(0), seen, treated, steps=300)
    logistic = propensity.logistic_propensity(seen, treated)
    held_out = [loss(np.asarray(predict(model, unseen))) for model in (network, logistic)]
    assert held_out[0] < held_out[1] - 0.15
    assert held_out[0] < loss(e[600:]) + 0.05


def descend(losses, rate):
    """Twenty steps of gradient descent from zero, as one program."""
    fit = lambda w: networks.fit_by_validation(w, losses, optax.sgd(rate), steps=20)
    return jax.tree.map(np.asarray, jax.jit(fit)(jnp.float32(0)))


def test_fits_keep_their_best_step():
    # gradient descent on (w - 1)²: w_t = 1 - 0.8^t; validation is best at w = 1/2, near t = 3
    fit = descend(lambda w: ((w - 1) ** 2, (w - 0.5) ** 2), 0.1)
    path = 1 - 0.8 ** np.arange(20)
    np.testing.assert_allclose(fit.training, (path - 1) ** 2, rtol=1e-5)
    np.testing.assert_allclose(fit.validation, (path - 0.5) ** 2, rtol=1e-4)
    assert fit.step == 3
    np.testing.assert_allclose(fit.parameters, path[3], rtol=1e-6)


def test_fits_that_diverge_keep_what_was_finite():
    fit = descend(lambda w: (-jnp.sqrt(1 - w), -w), -0.4)
    assert np.isnan(fit.validation[-1])
    assert np.isfinite(fit.parameters)


split_weights = jax.jit(functools.partial(networks.split_weights, dtype="float32"))


@pytest.mark.parametrize(("rows", "share", "held_out"), [(10, 0.2, 2), (2, 0.9, 1), (3, 0.01, 1)])
def test_splits_hold_out_their_share_of_the_mask(rows, share, held_out):
    mask = np.arange(12) < rows
    inside, outside = map(np.asarray, split_weights(jax.random.key(0), mask, share))
    assert (outside > 0).sum() == held_out
    np.testing.assert_array_equal((inside > 0) ^ (outside > 0), mask)
    np.testing.assert_allclose((inside.sum(), outside.sum()), 1, rtol=1e-6)


clip = jax.jit(propensity.clip_propensity)


def test_clipping_counts_what_it_moves():
    e = np.array([0.0, 0.01, 0.02, 0.5, 0.98, 0.985, 1.0, 0.3])
    clipped, fraction = clip(jnp.array(e), 0.02)
    np.testing.assert_allclose(clipped, [0.02, 0.02, 0.02, 0.5, 0.98, 0.98, 0.98, 0.3])
    assert fraction == 0.5
