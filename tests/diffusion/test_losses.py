import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxicml.diffusion import ema, guidance, losses, schedules
from tests.diffusion import gaussian

KINDS = ("eps", "x0", "v", "score")


def hang(snr, gamma, kind):
    # Hang et al. 2023, section 3.4
    return {
        "x0": np.minimum(snr, gamma),
        "eps": np.minimum(snr, gamma) / snr,
        "score": np.minimum(snr, gamma) / snr,
        "v": np.minimum(snr, gamma) / (snr + 1),
    }[kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gamma", [1.0, 5.0])
def test_min_snr_weight(kind, gamma, x64):
    snr = np.geomspace(1e-6, 1e6, 13)
    ours = losses.min_snr_weight(jnp.asarray(snr), kind, gamma)
    np.testing.assert_allclose(ours, hang(snr, gamma, kind), rtol=1e-13)
    ends = losses.min_snr_weight(jnp.array([0.0, jnp.inf]), kind, gamma)
    expected = {"x0": [0, gamma], "eps": [1, 0], "score": [1, 0], "v": [0, 0]}[kind]
    np.testing.assert_array_equal(ends, expected)


def test_weights_mean_the_same_error(x64):
    # the error of x_0 is −b/a of the error of ε and −b of the error of v
    a, b = np.cos(0.4), np.sin(0.4)
    snr = jnp.asarray((a / b) ** 2)
    in_x0, in_eps, in_v = (losses.min_snr_weight(snr, kind) for kind in ("x0", "eps", "v"))
    np.testing.assert_allclose(in_x0 * (b / a) ** 2, in_eps, rtol=1e-12)
    np.testing.assert_allclose(in_x0 * b**2, in_v, rtol=1e-12)


def every_loss(network, x0, schedule, weightings):
    """The loss of each kind and weighting in one program; `network` depends on the kind."""
    return jax.jit(
        lambda key: {
            (kind, weighting): losses.diffusion_loss(
                *(key, network(kind), x0, schedule), prediction=kind, weighting=weighting
            )
            for kind in KINDS
            for weighting in weightings
        }
    )(jax.random.key(0))


def test_loss_of_a_constant_network(x64):
    # point mass 2 and output 0.3: the mean over t of weight · E (0.3 − target)²
    out, point = 0.3, 2.0
    net = lambda x, t, carry: (jnp.full_like(x, out), carry)
    x0 = jnp.full((20_000, 5), point)
    found = every_loss(lambda kind: net, x0, schedules.linear(20), ["uniform", "min_snr"])
    abar = np.cumprod(1 - np.linspace(1e-4, 0.02, 20))
    a, b = np.sqrt(abar), np.sqrt(1 - abar)
    means = {
        "eps": out**2 + 1,
        "x0": (out - point) ** 2,
        "v": (out + b * point) ** 2 + a**2,
        "score": (b * out) ** 2 + 1,
    }
    for (kind, weighting), loss in found.items():
        weight = 1.0 if weighting == "uniform" else hang((a / b) ** 2, 5.0, kind)
        assert float(loss) == pytest.approx(np.mean(weight * means[kind]), rel=0.03)


def test_exact_network_of_a_point_mass_has_no_loss(x64):
    made = schedules.cosine(20)

    def network(kind):
        def net(x, t, carry):
            a, b = made.signal[t][:, None], made.noise[t][:, None]
            return gaussian.output(x, a, b, kind, mu=2.0, s2=0.0), carry

        return net

    found = every_loss(network, jnp.full((64, 2), 2.0), made, ["uniform"])
    assert max(found.values()) < 1e-20


def test_loss_in_half_precision_and_at_zero_snr():
    made = schedules.zero_snr(schedules.linear(4))
    net = lambda x, t, carry: (jnp.zeros_like(x), carry)
    x0 = jnp.ones((32, 2, 2), jnp.bfloat16)
    for loss in every_loss(lambda kind: net, x0, made, ["min_snr"]).values():
        assert loss.dtype == jnp.float32
        assert np.isfinite(loss)


def test_targets(x64):
    x0, eps, a, b = 1.2, -0.7, np.cos(0.3), np.sin(0.3)
    for kind, expected in truth(x0, eps, a, b).items():
        target = losses.prediction_target(jnp.asarray(x0), jnp.asarray(eps), a, b, kind)
        np.testing.assert_allclose(target, expected, rtol=1e-12)


def truth(x0, eps, a, b):
    return {"eps": eps, "x0": x0, "v": a * eps - b * x0, "score": -eps / b}


def test_guidance_is_affine_in_the_weight(x64):
    rng = np.random.default_rng(0)
    u, c = (jnp.asarray(array) for array in rng.normal(size=(2, 3, 4)))
    np.testing.assert_array_equal(guidance.guide(u, c, 0.0), u)
    np.testing.assert_allclose(guidance.guide(u, c, 1.0), c, rtol=1e-14)
    np.testing.assert_allclose(guidance.guide(u, c, 7.5), u + 7.5 * (c - u), rtol=1e-14)
    each = guidance.guide(u, c, jnp.array([[0.0], [1.0], [2.0]]))
    np.testing.assert_allclose(each, [u[0], c[1], 2 * c[2] - u[2]], rtol=1e-12)


def test_rescaling_against_numpy(x64):
    rng = np.random.default_rng(1)
    guided, conditional = 3 * rng.normal(size=(2, 3, 4, 5)) + 1
    # Lin et al. 2023, algorithm 2
    std = lambda x: np.std(x, axis=(1, 2), keepdims=True, ddof=1)
    for phi in (0.0, 0.7, 1.0):
        rescaled = guided * std(conditional) / std(guided)
        expected = phi * rescaled + (1 - phi) * guided
        ours = guidance.rescale(jnp.asarray(guided), jnp.asarray(conditional), phi)
        np.testing.assert_allclose(ours, expected, rtol=1e-12)
    single = guidance.rescale(jnp.asarray(guided[0]), jnp.asarray(conditional[0]), 1.0, axis=(0, 1))
    np.testing.assert_allclose(single.std(), conditional[0].std(), rtol=1e-12)


def test_rescaling_a_constant_prediction():
    flat = jnp.ones((2, 3))
    total = lambda x: guidance.rescale(x, flat, 0.7).sum()
    value, grad = jax.value_and_grad(total)(flat)
    assert value == 6
    assert np.isfinite(grad).all()


def test_interval_has_open_and_closed_ends():
    levels = jnp.array([0.1, 0.2, 0.5, 0.8, 0.9])
    ours = guidance.interval_weight(3.0, levels, 0.2, 0.8)
    np.testing.assert_array_equal(ours, [1, 1, 3, 3, 1])


def test_ema_against_the_weighted_sum(x64):
    rng = np.random.default_rng(2)
    values = rng.normal(size=(30, 4))
    average, weights = values[0], np.array([1.0])
    ours = {"w": jnp.asarray(values[0]), "steps": jnp.asarray(0)}
    for n, value in enumerate(values[1:]):
        decay = min(0.7, (1 + n) / (10 + n))
        weights = np.append(weights * decay, 1 - decay)
        ours = ema.update(ours, {"w": jnp.asarray(value), "steps": jnp.asarray(n)}, n, decay=0.7)
    average = weights @ values
    np.testing.assert_allclose(ours["w"], average, rtol=1e-12)
    assert ours["steps"] == 28


def test_ema_keeps_dtypes_and_scans():
    def step(state, value):
        average, n = state
        return (ema.update(average, {"w": value.astype(jnp.bfloat16)}, n), n + 1), None

    start = {"w": jnp.zeros(2, jnp.bfloat16)}, jnp.asarray(0)
    (average, _), _ = jax.lax.scan(step, start, jnp.ones((5, 2)))
    assert average["w"].dtype == jnp.bfloat16


def test_training_with_the_loss_finds_the_mean(x64):
    # x_0 network that knows a constant alone: the least squares constant is the mean of the data
    made, data = schedules.linear(20), jnp.asarray(np.random.default_rng(3).normal(2, 1, (256, 1)))
    net = lambda mean: lambda x, t, carry: (jnp.full_like(x, mean), carry)
    loss = lambda mean, key: losses.diffusion_loss(key, net(mean), data, made, prediction="x0")
    optimiser = optax.sgd(0.2)

    def step(state, key):
        mean, memory = state
        updates, memory = optimiser.update(jax.grad(loss)(mean, key), memory)
        return (optax.apply_updates(mean, updates), memory), None

    start = jnp.asarray(0.0), optimiser.init(jnp.asarray(0.0))
    (mean, _), _ = jax.lax.scan(step, start, jax.random.split(jax.random.key(0), 60))
    np.testing.assert_allclose(mean, data.mean(), rtol=1e-9)


NET = lambda x, t, carry: (x, carry)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda loss: loss(NET, jnp.ones((2, 2)), prediction="noise"), "prediction: expected one"),
        (lambda loss: loss(NET, jnp.ones((2, 2)), weighting="snr"), "weighting: expected one of"),
        (
            lambda loss: loss(NET, jnp.ones((2, 2)), weighting="min_snr", gamma=0.0),
            "gamma: expected a finite number above 0, got 0.0",
        ),
        (lambda loss: loss(NET, jnp.ones(())), "x0: expected at least 1 rows, got a scalar"),
        (
            lambda loss: loss(lambda x, t, carry: (x[0], carry), jnp.ones((2, 2))),
            r"output of denoise: expected shape \(2, 2\), got \(2,\)",
        ),
    ],
)
def test_bad_loss(call, match, as_user):
    with pytest.raises(ValueError, match=match):
        call(
            lambda net, x0, **options: losses.diffusion_loss(
                jax.random.key(0), net, x0, schedules.linear(5), **options
            )
        )
