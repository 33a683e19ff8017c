"""Streaming attention for TPUs: Pallas kernels that keep one block of everything in VMEM.

Forward: a grid of query blocks by key blocks, the inner dimension over keys; running maximum, sum
and output stay in scratch memory. Backward: one kernel with keys inside for dq, one with queries
inside for dk, dv and dbias; each recomputes its weights, and both add into their output blocks.

Numbers per query travel as (B, 128) arrays with equal lanes, the scale as a row as wide as a block
of biases: a scalar in SMEM does not batch.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxicml_kernels.streaming_attention import xla

__all__ = ["backward", "forward", "serves"]

_LANES = 128
_VMEM_BYTES = 12 * 2**20
"""What a kernel may hold, of the 16 MB that every generation has."""

_BLOCKS = tuple((q, k) for q in (256, 128, 64, 32, 16) for k in (512, 256, 128))


def serves(dtype, width: int, value_width: int) -> bool:
    """Whether these kernels take the dtype, and a block of such rows fits into VMEM."""
    return dtype in (jnp.float32, jnp.bfloat16) and _fitting(dtype, width, value_width) is not None


def _fitting(dtype, width: int, value_width: int) -> tuple[int, int] | None:
    """The largest blocks of queries and keys whose backward pass fits."""
    lanes = sum(-(-x // _LANES) * _LANES for x in (width, value_width))
    # inputs are buffered twice, so are float32 outputs; five arrays of the size of the logits
    row = lanes * (2 * jnp.dtype(dtype).itemsize + 2 * 4)
    for queries, keys in _BLOCKS:
        per_query = 4 * 4 * _LANES * queries
        if row * (queries + keys) + 5 * 4 * queries * keys + per_query <= _VMEM_BYTES:
            return queries, keys
    return None


def _blocks(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[int, int]:
    """Blocks of queries and keys; an array smaller than its block is one block."""
    fitting = _fitting(q.dtype, q.shape[1], v.shape[1])
    assert fitting is not None, "checked by serves"
    return min(fitting[0], q.shape[0]), min(fitting[1], k.shape[0])


def forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    bias: jax.Array,
    scale: jax.Array,
    *,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Output (B, dv) and log-sum-exp (B,); arguments as in the XLA form."""
    (queries, width), (keys, value_width) = q.shape, v.shape
    block_q, block_k = _blocks(q, k, v)
    out, lse = pl.pallas_call(
        functools.partial(_forward_kernel, keys=keys),
        grid=(pl.cdiv(queries, block_q), pl.cdiv(keys, block_k)),
        in_specs=[
            pl.BlockSpec((1, block_k), lambda i, j: (0, 0)),
            pl.BlockSpec((block_q, width), lambda i, j: (i, 0)),
            pl.BlockSpec((block_k, width), lambda i, j: (j, 0)),
            pl.BlockSpec((block_k, value_width), lambda i, j: (j, 0)),
            pl.BlockSpec((1, block_k), lambda i, j: (0, j)),
        ],
        out_specs=[
            pl.BlockSpec((block_q, value_width), lambda i, j: (i, 0)),
            pl.BlockSpec((block_q, _LANES), lambda i, j: (i, 0)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct((queries, value_width), v.dtype),
            jax.ShapeDtypeStruct((queries, _LANES), jnp.float32),
        ],
        scratch_shapes=[
            pltpu.VMEM((block_q, _LANES), jnp.float32),
            pltpu.VMEM((block_q, _LANES), jnp.float32),
            pltpu.VMEM((block_q, value_width), jnp.float32),
        ],
        compiler_params=_INNER_IN_ORDER,
        interpret=interpret,
        name="streaming_attention_forward",
    )(_row(scale, block_k), q, k, v, bias[None])
    return out, lse[:, 0]


_INNER_IN_ORDER = pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary"))


def _row(scale: jax.Array, block_k: int) -> jax.Array:
    return jnp.broadcast_to(scale, (1, block_k))


def _lanes(per_query: jax.Array) -> jax.Array:
    return jnp.broadcast_to(per_query[:, None], (per_query.shape[0], _LANES))


def _forward_kernel(
    scale_ref,
    q_ref,
    k_ref,
    v_ref,
    bias_ref,
    out_ref,
    lse_ref,
    peak_ref,
    total_ref,
    sum_ref,
    *,
    keys,
):
    step = pl.program_id(1)

    @pl.when(step == 0)
    def _():
        peak_ref[...] = jnp.full_like(peak_ref, -jnp.inf)
        total_ref[...] = jnp.zeros_like(total_ref)
        sum_ref[...] = jnp.zeros_like(sum_ref)

    values = _real_rows(v_ref[...], step, keys)
    logits = scale_ref[...] * xla.dot(q_ref[...], k_ref[...], (1, 1)) + bias_ref[...]
    logits = _real_columns(logits, step, keys, -jnp.inf)
    peak, total, weights, shrink = xla.accumulate(peak_ref[:, :1], total_ref[:, :1], logits)
    sum_ref[...] = shrink * sum_ref[...] + xla.dot(weights.astype(values.dtype), values, (1, 0))
    total_ref[...] = jnp.broadcast_to(total, total_ref.shape)
    peak_ref[...] = jnp.broadcast_to(peak, peak_ref.shape)

    @pl.when(step == pl.num_programs(1) - 1)
    def _():
        out, lse = xla.normalise(peak_ref[:, :1], total_ref[:, :1], sum_ref[...])
        out_ref[...] = out.astype(out_ref.dtype)
        lse_ref[...] = jnp.broadcast_to(lse, lse_ref.shape)


def _real_rows(rows: jax.Array, step: jax.Array, count: int) -> jax.Array:
    """A block of rows with zeros beyond the array's end, where anything may stand."""
    if count % rows.shape[0] == 0:
        return rows
    index = step * rows.shape[0] + lax.broadcasted_iota(jnp.int32, rows.shape, 0)
    return jnp.where(index < count, rows, jnp.zeros_like(rows))


def _real_columns(block: jax.Array, step: jax.Array, count: int, fill: float) -> jax.Array:
    """A block of columns with `fill` beyond the array's end."""
    if count % block.shape[1] == 0:
        return block
    index = step * block.shape[1] + lax.broadcasted_iota(jnp.int32, block.shape, 1)
    return jnp.where(index < count, block, fill)


def backward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    bias: jax.Array,
    scale: jax.Array,
    lse: jax.Array,
    dout: jax.Array,
    delta: jax.Array,
    *,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Cotangents of scale·q, k, v and bias in float32; arguments as in the XLA form."""
    block_q, block_k = _blocks(q, k, v)
    arrays = (
        _row(scale, block_k), q, k, v, bias[None], _lanes(xla.finite_or_zero(lse)), dout,
        _lanes(delta),
    )  # fmt: skip
    call = functools.partial(_backward_call, arrays, (block_q, block_k), interpret)
    (dq,) = call(_query_kernel, keys_inside=True)
    dk, dv, dbias = call(_key_kernel, keys_inside=False)
    return dq, dk, dv, dbias[0]


def _backward_call(arrays, blocks, interpret, kernel, *, keys_inside: bool):
    """One backward kernel, its inner grid dimension over keys or over queries."""
    (queries, width), (keys, value_width) = arrays[1].shape, arrays[3].shape
    block_q, block_k = blocks
    steps = pl.cdiv(queries, block_q), pl.cdiv(keys, block_k)
    at_query = (lambda i, j: (i, 0)) if keys_inside else (lambda j, i: (i, 0))
    at_key = (lambda i, j: (j, 0)) if keys_inside else (lambda j, i: (j, 0))
    at_bias = lambda *step: at_key(*step)[::-1]
    query_rows = lambda size: pl.BlockSpec((block_q, size), at_query)
    key_rows = lambda size: pl.BlockSpec((block_k, size), at_key)
    bias_row = pl.BlockSpec((1, block_k), at_bias)
    outputs = {
        "dq": (query_rows(width), (queries, width)),
        "dk": (key_rows(width), (keys, width)),
        "dv": (key_rows(value_width), (keys, value_width)),
        "dbias": (bias_row, (1, keys)),
    }
    wanted = ("dq",) if keys_inside else ("dk", "dv", "dbias")
    return pl.pallas_call(
        functools.partial(kernel, queries=queries, keys=keys),
        grid=steps if keys_inside else steps[::-1],
        in_specs=[
            pl.BlockSpec((1, block_k), lambda i, j: (0, 0)),
            query_rows(width),
            key_rows(width),
            key_rows(value_width),
            bias_row,
            query_rows(_LANES),
            query_rows(value_width),
            query_rows(_LANES),
        ],
        out_specs=[outputs[name][0] for name in wanted],
        out_shape=[jax.ShapeDtypeStruct(outputs[name][1], jnp.float32) for name in wanted],
        compiler_params=_INNER_IN_ORDER,
        interpret=interpret,
        name="streaming_attention_backward_" + wanted[0],
    )(*arrays)


def _weights(scale_ref, bias_ref, lse_ref, delta_ref, q, k, v, dout):
    """One block of weights p and of cotangents of the logits."""
    logits = scale_ref[...] * xla.dot(q, k, (1, 1)) + bias_ref[...]
    weights = jnp.exp(logits - lse_ref[:, :1])
    return weights, weights * (xla.dot(dout, v, (1, 1)) - delta_ref[:, :1])


def _query_kernel(
    scale_ref, q_ref, k_ref, v_ref, bias_ref, lse_ref, dout_ref, delta_ref, dq_ref, *, queries, keys
):
    del queries  # rows beyond the last query are never written
    step = pl.program_id(1)

    @pl.when(step == 0)
    def _():
        dq_ref[...] = jnp.zeros_like(dq_ref)

    k = _real_rows(k_ref[...], step, keys)
    dlogits = _weights(
        scale_ref, bias_ref, lse_ref, delta_ref, q_ref[...], k, v_ref[...], dout_ref[...]
    )[1]
    dlogits = _real_columns(dlogits, step, keys, 0.0)
    dq_ref[...] += xla.dot(dlogits.astype(k.dtype), k, (1, 0))


def _key_kernel(
    scale_ref, q_ref, k_ref, v_ref, bias_ref, lse_ref, dout_ref, delta_ref,
    dk_ref, dv_ref, dbias_ref, *, queries, keys,
):  # fmt: skip
    del keys  # columns beyond the last key are never written
    step = pl.program_id(1)

    @pl.when(step == 0)
    def _():
        for ref in (dk_ref, dv_ref, dbias_ref):
            ref[...] = jnp.zeros_like(ref)

    q, dout = (_real_rows(ref[...], step, queries) for ref in (q_ref, dout_ref))
    weights, dlogits = _weights(
        scale_ref, bias_ref, lse_ref, delta_ref, q, k_ref[...], v_ref[...], dout
    )
    weights, dlogits = (_real_rows(x, step, queries) for x in (weights, dlogits))
    dbias_ref[...] += dlogits.sum(axis=0, keepdims=True)
    dk_ref[...] += xla.dot((scale_ref[...] * dlogits).astype(q.dtype), q, (0, 0))
    dv_ref[...] += xla.dot(weights.astype(dout.dtype), dout, (0, 0))
