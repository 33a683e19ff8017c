"""Streaming attention against dense forms written here: values, derivatives, memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from jaxicml_kernels.streaming_attention import (
    streaming_attention,
    streaming_attention_with_lse,
    xla,
)
from jaxicml_kernels.streaming_attention.shapes import SHAPES, Shape

SMALL = Shape(5, 7, 3, 2)


@functools.partial(jax.jit, static_argnames="block")
def attend(q, k, v, bias, scale, block=3):
    return streaming_attention_with_lse(
        q, k, v, bias, scale=scale, block=block, implementation="xla"
    )


def oracle(q, k, v, bias, scale):
    """The dense form in NumPy float64, a row without weight giving 0 and −∞."""
    q, k, v, bias = (np.asarray(x, np.float64) for x in (q, k, v, bias))
    logits = float(scale) * q @ k.T + bias
    peak = logits.max(axis=1, keepdims=True)
    peak = np.where(np.isinf(peak), 0, peak)
    weights = np.exp(logits - peak)
    total = weights.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (peak + np.log(total))[:, 0]
    return weights @ v / np.where(total == 0, 1, total), lse


def inputs(shape=SMALL, dtype="float32", spread=1.0, seed=0):
    rng = np.random.default_rng(seed)
    queries, keys, width, value_width = shape
    q, k, v, bias = (
        rng.normal(size=size)
        for size in ((queries, width), (keys, width), (keys, value_width), keys)
    )
    cast = lambda x: jnp.asarray(x, dtype)
    bias = jnp.asarray(bias, xla.accumulator_dtype(dtype))
    return cast(spread * q), cast(k), cast(v), bias, jnp.asarray(0.7, bias.dtype)


def assert_equals_oracle(args, got, rtol):
    out, lse = got
    want_out, want_lse = oracle(*args)
    np.testing.assert_allclose(np.asarray(out, np.float64), want_out, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(np.asarray(lse, np.float64), want_lse, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("shape", SHAPES[:-1], ids=str)
def test_equals_the_dense_form(shape):
    args = inputs(shape)
    assert_equals_oracle(args, attend(*args, block=None), 1e-5)


@pytest.mark.parametrize("block", [1, 4, 7, 100])
def test_every_block_size(block, x64):
    args = inputs(dtype="float64")
    assert_equals_oracle(args, attend(*args, block=block), 1e-13)


def test_bfloat16_keeps_sums_in_float32():
    # weights and output are rounded to 8 bits, the log-sum-exp is not
    args = inputs(Shape(4, 900, 8, 3), "bfloat16")
    out, lse = attend(*args, block=128)
    assert (out.dtype, lse.dtype) == (jnp.bfloat16, jnp.float32)
    want_out, want_lse = oracle(*args)
    np.testing.assert_allclose(np.asarray(out, np.float64), want_out, atol=4e-3)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5)


def test_the_platform_chooses():
    args = inputs()
    q, k, v, bias, scale = args
    assert_equals_oracle(args, streaming_attention_with_lse(q, k, v, bias, scale=scale), 1e-5)
    np.testing.assert_allclose(
        streaming_attention(q, k, v), oracle(q, k, v, jnp.zeros(7), 1.0)[0], rtol=1e-5
    )


@pytest.mark.parametrize("spread", [1e4, 1e8])
def test_extreme_logits_do_not_overflow(spread):
    args = inputs(spread=spread)
    out, lse = attend(*args)
    want_out, want_lse = oracle(*args)
    np.testing.assert_allclose(out, want_out, rtol=1e-4)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5)


def test_keys_without_weight(x64):
    q, k, v, bias, scale = inputs(dtype="float64")
    some = bias.at[jnp.array([0, 1, 2, 5])].set(-jnp.inf)  # a whole block among them
    assert_equals_oracle((q, k, v, some, scale), attend(q, k, v, some, scale), 1e-13)
    kept = jnp.array([3, 4, 6])
    out, _ = attend(q, k, v, some, scale)
    np.testing.assert_allclose(out, oracle(q, k[kept], v[kept], bias[kept], scale)[0], rtol=1e-12)
    none = jnp.full_like(bias, -jnp.inf)
    out, lse = attend(q, k, v, none, scale)
    assert (np.asarray(out) == 0).all()
    assert (np.asarray(lse) == -np.inf).all()


def test_order_of_keys_is_nothing(x64):
    q, k, v, bias, scale = inputs(dtype="float64")
    order = np.random.default_rng(1).permutation(7)
    one = attend(q, k, v, bias, scale)
    other = attend(q, k[order], v[order], bias[order], scale)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-14)


def weighted_sum(function, *args):
    """A scalar in which every output and log-sum-exp has another weight."""
    out, lse = function(*args)
    rng = np.random.default_rng(2)
    lse = jnp.where(lse == -jnp.inf, 0, lse)
    return (rng.normal(size=out.shape) * out).sum() + (rng.normal(size=lse.shape) * lse).sum()


def dense(q, k, v, bias, scale):
    logits = scale * q @ k.T + bias
    return jax.nn.softmax(logits) @ v, jax.nn.logsumexp(logits, axis=1)


FIVE = (0, 1, 2, 3, 4)
streamed_gradients = jax.jit(jax.grad(functools.partial(weighted_sum, attend), FIVE))
dense_gradients = jax.jit(jax.grad(functools.partial(weighted_sum, dense), FIVE))


def test_gradients_equal_those_of_the_dense_form(x64):
    args = inputs(dtype="float64")
    for got, want in zip(streamed_gradients(*args), dense_gradients(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)


def test_gradients_without_weight_are_zero(x64):
    q, k, v, bias, scale = inputs(dtype="float64")
    some = bias.at[:4].set(-jnp.inf)
    got = streamed_gradients(q, k, v, some, scale)
    for position in (1, 2, 3):
        assert (np.asarray(got[position][:4]) == 0).all()
        assert np.abs(got[position][4:]).min() > 0
    for leaf in streamed_gradients(q, k, v, jnp.full_like(bias, -jnp.inf), scale):
        assert (np.asarray(leaf) == 0).all()


@pytest.mark.parametrize("argument", FIVE)
def test_vmap_over_one_argument(argument, x64):
    sets = [inputs(dtype="float64", seed=seed) for seed in (0, 1)]
    mixed = list(sets[0])
    mixed[argument] = jnp.stack([sets[0][argument], sets[1][argument] + 0.1])
    axes = tuple(0 if i == argument else None for i in FIVE)
    out, lse = jax.jit(jax.vmap(attend, in_axes=axes))(*mixed)
    for row in (0, 1):
        args = [x[row] if i == argument else x for i, x in enumerate(mixed)]
        assert_equals_oracle(args, (out[row], lse[row]), 1e-12)


def test_leading_dimensions_broadcast():
    q, k, v, bias, scale = inputs()
    heads = jnp.stack([k, -k, k + 1])
    out, lse = attend(jnp.stack([q, q + 1])[:, None], heads, v, bias, scale)
    assert out.shape == (2, 3, 5, 2)
    assert lse.shape == (2, 3, 5)
    assert_equals_oracle((q + 1, k + 1, v, bias, scale), (out[1, 2], lse[1, 2]), 1e-5)
    out, lse = attend(jnp.stack([q, q + 1])[:, None], k, v, bias, scale)
    assert_equals_oracle((q + 1, k, v, bias, scale), (out[1, 0], lse[1, 0]), 1e-5)


def test_unknown_options_are_refused(as_user):
    q, k, v, *_ = inputs()
    for block in (0, 2.5, True):
        with pytest.raises(ValueError, match="block: expected an integer of at least 1"):
            streaming_attention(q, k, v, block=block)
    with pytest.raises(ValueError, match="implementation: expected one of xla"):
        streaming_attention(q, k, v, implementation="cudnn")


# memory and arrays at the size of a data set of images: compiled, never run

LARGE = SHAPES[-1]
MEGABYTE = 2**20


def abstract(shape):
    queries, keys, width, value_width = shape
    sizes = ((queries, width), (keys, width), (keys, value_width), (keys,), ())
    return [jax.ShapeDtypeStruct(size, jnp.float32) for size in sizes]


def avals(jaxpr):
    """Shapes of all intermediate arrays of a jaxpr, inner ones included."""
    for equation in jaxpr.eqns:
        yield from (tuple(x.aval.shape) for x in equation.outvars if hasattr(x.aval, "shape"))
        for inner in jaxprs_in_params(equation.params):
            yield from avals(inner)


def streamed_sum(*args):
    return weighted_sum(functools.partial(attend, block=None), *args)


def test_no_array_of_queries_times_keys():
    shape = Shape(LARGE.queries, LARGE.keys, 8, 8)
    block = xla.default_block(shape.queries, shape.keys)
    for function in (functools.partial(attend, block=None), jax.grad(streamed_sum, FIVE)):
        jaxpr = jax.make_jaxpr(function)(*abstract(shape)).jaxpr
        largest = max(int(np.prod(size)) for size in avals(jaxpr))
        assert largest == max(shape.keys * shape.width, shape.queries * block)


@pytest.mark.parametrize("which", ["output", "towards q", "towards all"])
def test_memory_is_that_of_blocks(which):
    queries, keys, width, _ = LARGE
    forward = functools.partial(attend, block=None)
    towards_q, towards_all = jax.grad(streamed_sum), jax.grad(streamed_sum, FIVE)
    function = {"output": forward, "towards q": towards_q, "towards all": towards_all}[which]
    compiled = jax.jit(function).lower(*abstract(LARGE)).compile()
    # queries and output a few times, one block of keys and values, a few of logits: no copy of
    # the keys (188 MB) and no array of logits (61 MB)
    block = xla.default_block(queries, keys)
    allowed = 4 * (6 * queries * width + 2 * block * width + 4 * queries * block)
    assert compiled.memory_analysis().temp_size_in_bytes <= allowed < 30 * MEGABYTE
