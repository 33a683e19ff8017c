import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxicml.diffusion import parameterization as P

KINDS = ("eps", "x0", "v", "score")
TO = {"eps": P.to_eps, "x0": P.to_x0, "v": P.to_v, "score": P.to_score}
numbers = st.floats(-5, 5)
angles = st.floats(0.05, 1.5)


def truth(x0, eps, a, b):
    return {"eps": eps, "x0": x0, "v": a * eps - b * x0, "score": -eps / b}


@pytest.mark.parametrize("source", KINDS)
@given(x0=numbers, eps=numbers, angle=angles)
def test_every_kind_gives_every_other(source, x0, eps, angle):
    with jax.enable_x64(True):
        a, b = np.cos(angle), np.sin(angle)
        expected = truth(x0, eps, a, b)
        x_t, out = jnp.asarray(a * x0 + b * eps), jnp.asarray(expected[source])
        for kind in KINDS:
            np.testing.assert_allclose(
                TO[kind](out, x_t, a, b, source), expected[kind], rtol=1e-12, atol=1e-11
            )


def test_levels_broadcast_over_a_batch(x64):
    rng = np.random.default_rng(0)
    x0, eps = rng.normal(size=(2, 3, 4))
    angle = rng.uniform(0.1, 1.4, (3, 1))
    a, b = np.cos(angle), np.sin(angle)
    x_t = P.add_noise(jnp.asarray(x0), jnp.asarray(eps), jnp.asarray(a), jnp.asarray(b))
    np.testing.assert_allclose(x_t, a * x0 + b * eps, rtol=1e-14)
    v = P.to_v(jnp.asarray(eps), x_t, jnp.asarray(a), jnp.asarray(b), "eps")
    np.testing.assert_allclose(v, a * eps - b * x0, rtol=1e-10)


def test_unscaled_noise(x64):
    x0, eps, sigma = jnp.asarray(1.3), jnp.asarray(-0.4), 7.0
    x = x0 + sigma * eps
    for kind, out in (("eps", eps), ("x0", x0), ("score", -eps / sigma)):
        np.testing.assert_allclose(P.to_x0(out, x, 1.0, sigma, kind), x0, rtol=1e-13)
        np.testing.assert_allclose(P.to_eps(out, x, 1.0, sigma, kind), eps, rtol=1e-13)


def test_zero_signal_is_determined_by_v_and_x0():
    # a = 0, b = 1: x_t = ε and v = −x_0
    x0, eps = jnp.array([2.0, -1.0]), jnp.array([0.3, 0.4])
    for kind, out in (("v", -x0), ("x0", x0)):
        np.testing.assert_array_equal(P.to_x0(out, eps, 0.0, 1.0, kind), x0)
        np.testing.assert_array_equal(P.to_eps(out, eps, 0.0, 1.0, kind), eps)
        np.testing.assert_array_equal(P.to_v(out, eps, 0.0, 1.0, kind), -x0)
        np.testing.assert_array_equal(P.to_score(out, eps, 0.0, 1.0, kind), -eps)


def test_zero_noise_is_the_data():
    x0, eps = jnp.array([2.0, -1.0]), jnp.array([0.3, 0.4])
    for kind, out in (("eps", eps), ("v", eps), ("x0", x0), ("score", -eps)):
        np.testing.assert_array_equal(P.to_x0(out, x0, 1.0, 0.0, kind), x0)
    for kind, out in (("eps", eps), ("v", eps)):
        np.testing.assert_array_equal(P.to_eps(out, x0, 1.0, 0.0, kind), eps)


@pytest.mark.parametrize(("a", "b"), [(0.0, 1.0), (1.0, 0.0)])
@pytest.mark.parametrize("source", KINDS)
def test_guards_have_finite_gradients(source, a, b):
    def total(out, x, a, b):
        return sum(to(out, x, a, b, source) for to in TO.values())

    values = [jnp.asarray(value) for value in (0.7, -1.2, a, b)]
    value, grads = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2, 3)))(*values)
    assert np.isfinite(value)
    assert np.isfinite(grads).all()


@pytest.mark.parametrize(
    ("source", "kind", "a", "b"),
    [
        ("eps", "x0", 0.0, 1.0),
        ("score", "x0", 0.0, 1.0),
        ("eps", "v", 0.0, 1.0),
        ("score", "v", 0.0, 1.0),
        ("x0", "eps", 1.0, 0.0),
        ("x0", "v", 1.0, 0.0),
        ("eps", "score", 1.0, 0.0),
    ],
)
def test_what_is_not_determined_is_zero(source, kind, a, b):
    assert TO[kind](jnp.asarray(3.0), jnp.asarray(2.0), a, b, source) == 0


def test_half_precision_is_computed_in_single():
    x0, eps = jnp.bfloat16(1.0), jnp.bfloat16(1.0)
    a, b = np.cos(0.001), np.sin(0.001)
    v = P.to_v(x0, x0, a, b, "x0")  # (a x − x_0)/b with a rounded to 1 would be 0
    assert v.dtype == jnp.bfloat16
    np.testing.assert_allclose(float(v), (a - 1) / b, rtol=0.1)
    assert P.add_noise(x0, eps, a, b).dtype == jnp.bfloat16


def test_edm_scalings_by_their_purpose(x64):
    sigma, s = jnp.geomspace(1e-3, 1e3, 7), 0.5
    c = P.edm_scalings(sigma, s)
    # unit variance of the input c_in (y + n) and of the target (y − c_skip (y + n)) / c_out
    np.testing.assert_allclose(c.c_in**2 * (s**2 + sigma**2), 1, rtol=1e-13)
    target = (1 - c.c_skip) ** 2 * s**2 + c.c_skip**2 * sigma**2
    np.testing.assert_allclose(target / c.c_out**2, 1, rtol=1e-9)
    # c_skip minimises c_out: the slope of the best linear denoiser
    np.testing.assert_allclose(c.c_skip, s**2 / (s**2 + sigma**2), rtol=1e-13)
    np.testing.assert_allclose(c.c_noise, np.log(sigma) / 4, rtol=1e-13)


def test_edm_at_the_ends():
    c = P.edm_scalings(jnp.array([0.0, 1e30]))
    assert np.isfinite(np.asarray(c)).all()
    assert (c.c_skip[0], c.c_out[0]) == (1, 0)


def test_edm_denoiser_of_a_gaussian(x64):
    # for N(0, σ_data²) the best network is 0: the skip alone denoises
    seen = []

    def network(x, c_noise, carry):
        seen.append((x, c_noise))
        return jnp.zeros_like(x), carry + 1

    x, sigma = jnp.array([3.0, -1.0]), jnp.array(2.0)
    x0, count = P.edm_denoiser(network, 0.5)(x, sigma, 0)
    np.testing.assert_allclose(x0, x * 0.25 / 4.25, rtol=1e-14)
    np.testing.assert_allclose(seen[0][0], x / np.sqrt(4.25), rtol=1e-14)
    np.testing.assert_allclose(seen[0][1], np.log(2) / 4, rtol=1e-14)
    assert count == 1
