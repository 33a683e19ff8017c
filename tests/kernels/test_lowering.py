"""Kernels without their hardware: values in interpret mode, and lowering for TPU and CUDA.

Lowering checks block shapes and operations for real; speed and the last compiler stage it cannot.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxicml_kernels.streaming_attention import (
    pallas_gpu,
    pallas_tpu,
    streaming_attention,
    streaming_attention_with_lse,
    xla,
)
from jaxicml_kernels.streaming_attention.shapes import SHAPES, Shape

KERNELS = {"tpu": pallas_tpu, "cuda": pallas_gpu}
FIVE = (0, 1, 2, 3, 4)

# newer jax asks what the GPU is before it lowers for one
GPU = jax.sharding.AbstractDevice(
    device_kind="NVIDIA H100 80GB HBM3", num_cores=132, platform="gpu"
)
MESH = jax.sharding.AbstractMesh((1,), ("x",), abstract_device=GPU)


def abstract(shape, dtype="float32", batched=None):
    """Inputs without values; the argument `batched` gets a leading dimension."""
    queries, keys, width, value_width = shape
    sizes = ((queries, width), (keys, width), (keys, value_width), (keys,), ())
    dtypes = (dtype, dtype, dtype, "float32", "float32")
    lead = lambda i: (2,) if i == batched else ()
    return [
        jax.ShapeDtypeStruct(lead(i) + size, kind)
        for i, (size, kind) in enumerate(zip(sizes, dtypes, strict=True))
    ]


def kernels_in(function, args, platform) -> int:
    """Lowers for a platform that is not here and counts the kernels in the program."""
    traced = lambda: jax.jit(function).trace(*args).lower(lowering_platforms=(platform,))
    if platform == "cuda":
        with jax.sharding.use_abstract_mesh(MESH):
            text = traced().as_text()
    else:
        text = traced().as_text()
    return text.count("@tpu_custom_call(") + text.count("@__gpu$xla.gpu.triton(")


def attend(q, k, v, bias, scale):
    return streaming_attention_with_lse(q, k, v, bias, scale=scale)


def total(*args):
    out, lse = attend(*args)
    return out.astype(lse.dtype).sum() + lse.sum()


gradients = jax.grad(total, FIVE)
EXPECTED = {"tpu": 3, "cuda": 4}
"""Kernels of output and gradients: one forward, the others backward."""


def in_both_dtypes(shape):
    """One shape's parameters; those between the smallest and the real one run in the slow tier."""
    for dtype in ("float32", "bfloat16"):
        central = shape in (SHAPES[0], SHAPES[-1]) and dtype == "float32"
        marks = () if central else pytest.mark.slow
        yield pytest.param(shape, dtype, marks=marks, id=f"{shape}-{dtype}")


@pytest.mark.parametrize("platform", KERNELS)
@pytest.mark.parametrize(("shape", "dtype"), [p for s in SHAPES for p in in_both_dtypes(s)])
def test_every_shape_lowers(shape, dtype, platform):
    assert kernels_in(gradients, abstract(shape, dtype), platform) == EXPECTED[platform]


@pytest.mark.parametrize("platform", KERNELS)
@pytest.mark.parametrize("argument", FIVE)
def test_vmap_over_one_argument_lowers(argument, platform):
    axes = tuple(0 if i == argument else None for i in FIVE)
    args = abstract(SHAPES[0], batched=argument)
    assert kernels_in(jax.vmap(gradients, axes), args, platform) == EXPECTED[platform]


@pytest.mark.parametrize("platform", KERNELS)
def test_scan_around_it_lowers(platform):
    def repeated(q, k, v, bias, scale):
        step = lambda x, _: (streaming_attention(x, k, v, bias, scale=scale), None)
        return jax.lax.scan(step, q, length=3)[0]

    args = abstract(SHAPES[1])
    assert kernels_in(repeated, args, platform) == 1
    assert kernels_in(jax.grad(lambda *a: repeated(*a).sum()), args, platform) > 1


@pytest.mark.parametrize("platform", KERNELS)
def test_float64_takes_the_plain_form(platform, x64):
    args = [jax.ShapeDtypeStruct(x.shape, "float64") for x in abstract(SHAPES[0])]
    assert kernels_in(attend, args, platform) == 0


def test_a_kernel_that_cannot_serve_is_refused(x64, as_user, monkeypatch):
    q = jnp.zeros((4, 3))
    for name in ("pallas_tpu", "pallas_gpu"):
        with pytest.raises(ValueError, match="implementation: expected one that serves float64"):
            streaming_attention(q, q, q, implementation=name)
    wide = jnp.zeros((4, 30_000), "float32")
    with pytest.raises(ValueError, match="width 30000"):
        streaming_attention(wide, wide, wide, implementation="pallas_tpu")


def test_without_triton_the_plain_form_serves(monkeypatch):
    from jaxicml_kernels.streaming_attention import api

    load = api._load
    monkeypatch.setattr(api, "_load", lambda name: None if name == "pallas_gpu" else load(name))
    jax.clear_caches()
    assert kernels_in(attend, abstract(Shape(6, 9, 4, 4)), "cuda") == 0
    jax.clear_caches()


def inputs(shape, dtype, bias):
    rng = np.random.default_rng(0)
    q, k, v, _, _ = (rng.normal(size=x.shape) for x in abstract(shape))
    if bias == "some":
        bias = np.where(rng.random(shape.keys) < 0.3, -np.inf, rng.normal(size=shape.keys))
    else:
        bias = np.full(shape.keys, -np.inf)
    args = [jnp.asarray(x, dtype) for x in (q, k, v)]
    return [*args, jnp.asarray(bias, jnp.float32), jnp.asarray(0.3, jnp.float32)]


class InInterpreter:
    """A kernel module whose kernels run in Pallas' interpreter."""

    def __init__(self, module):
        self.forward = functools.partial(module.forward, interpret=True)
        self.backward = functools.partial(module.backward, interpret=True)


def output_and_cotangents(form, args, dout, dlse):
    out, lse = form.forward(*args)
    delta = (dout.astype(lse.dtype) * out.astype(lse.dtype)).sum(axis=1) - dlse
    return out, lse, form.backward(*args, lse, dout, delta)


compiled = {
    module: jax.jit(functools.partial(output_and_cotangents, form))
    for module, form in [(xla, xla), *((m, InInterpreter(m)) for m in KERNELS.values())]
}


def assert_kernel_equals_reference(kernel, shape, dtype="float32", bias="some"):
    args = inputs(shape, dtype, bias)
    rng = np.random.default_rng(1)
    dout = jnp.asarray(rng.normal(size=(shape.queries, shape.value_width)), dtype)
    dlse = jnp.asarray(rng.normal(size=shape.queries), jnp.float32)
    got, want = (compiled[form](args, dout, dlse) for form in (kernel, xla))
    # rounding of the inputs of the last product; the log-sum-exp is float32 in both
    tolerance = {"float32": 2e-5, "bfloat16": 2e-2}[dtype]
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5, atol=1e-5)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = (np.asarray(x, np.float32) for x in (a, b))
        largest = np.abs(b[np.isfinite(b)]).max(initial=0)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * largest)


both = pytest.mark.parametrize("kernel", KERNELS.values(), ids=list(KERNELS))


@both
@pytest.mark.parametrize("bias", ["some", "none"])
def test_values_of_a_small_kernel(kernel, bias):
    assert_kernel_equals_reference(kernel, SHAPES[0], bias=bias)


@both
def test_values_where_blocks_do_not_divide(kernel, monkeypatch):
    # several blocks of queries, keys and columns, the last of each not full
    monkeypatch.setattr(pallas_tpu, "_BLOCKS", ((16, 128),))
    assert_kernel_equals_reference(kernel, Shape(40, 150, 70, 90))


@pytest.mark.slow
@both
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES[1:-1], ids=str)
def test_values_of_every_shape(kernel, shape, dtype):
    assert_kernel_equals_reference(kernel, shape, dtype)


@pytest.mark.slow
@both
def test_values_of_wide_rows(kernel):
    # the columns of a result on several programs of the GPU form
    assert_kernel_equals_reference(kernel, Shape(16, 200, 40, 1100))


@pytest.mark.slow
@both
@pytest.mark.parametrize("argument", FIVE)
def test_vmap_of_a_kernel(kernel, argument):
    args = inputs(SHAPES[0], "float32", "some")
    mixed = [jnp.stack([x, x + 1]) if i == argument else x for i, x in enumerate(args)]
    axes = tuple(0 if i == argument else None for i in FIVE)
    run = lambda kernel: jax.jit(jax.vmap(kernel.forward, axes))(*mixed)
    for a, b in zip(run(InInterpreter(kernel)), run(xla), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
