"""Streaming attention in plain XLA: the reference, and the form that CPUs run.

One `lax.scan` over blocks of keys carries a running maximum, a running sum and the unnormalised
output. Blocks are read in place: the last one ends at the last key and overlaps the one before
where the block does not divide K, and keys already seen get bias −∞. Nothing of size B × K and no
copy of the keys is ever held.
"""

import jax
import jax.numpy as jnp
from jax import lax

__all__ = [
    "accumulate",
    "accumulator_dtype",
    "backward",
    "default_block",
    "dot",
    "finite_or_zero",
    "forward",
    "normalise",
]

_BLOCK_ENTRIES = 2**19
"""Entries of one B × block array of logits: 2 MB in float32, about the cache of a core."""


def accumulator_dtype(dtype) -> jnp.dtype:
    """The dtype of logits and sums: float32, or float64 for float64."""
    return jnp.promote_types(dtype, jnp.float32)


def default_block(queries: int, keys: int) -> int:
    """Keys per step: 512 to 4096, fewer for many queries, in blocks of almost equal size."""
    largest = min(max(_BLOCK_ENTRIES // max(queries, 1), 512), 4096)
    steps = -(-keys // largest)
    return -(-keys // steps)


def forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    bias: jax.Array,
    scale: jax.Array,
    *,
    block: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Output and log-sum-exp for one set of queries; memory O(B d + block d).

    Args:
        q: queries (B, d).
        k: keys (K, d).
        v: values (K, dv).
        bias: additive bias of each key (K,), in the accumulator's dtype.
        scale: factor of q·k, in the accumulator's dtype.
        block: keys per step.

    Returns:
        The output (B, dv) in the dtype of `v` and the log-sum-exp (B,) in the accumulator's.
    """
    acc = accumulator_dtype(q.dtype)
    queries = q.shape[0]
    starts, size = _blocks(queries, k.shape[0], block)

    def step(carry, first):
        peak, total, out = carry
        keys, values, offsets, _ = _read(k, v, bias, first, size)
        logits = scale * dot(q, keys, (1, 1)) + offsets
        peak, total, weights, shrink = accumulate(peak, total, logits)
        out = shrink * out + dot(weights.astype(v.dtype), values, (1, 0))
        return (peak, total, out), None

    start = (
        jnp.full((queries, 1), -jnp.inf, acc),
        jnp.zeros((queries, 1), acc),
        jnp.zeros((queries, v.shape[1]), acc),
    )
    out, lse = normalise(*lax.scan(step, start, starts)[0])
    return out.astype(v.dtype), lse[:, 0]


def accumulate(peak, total, logits) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The online softmax: one block of logits enters the running maximum and sum.

    Returns:
        New maximum and sum (columns), the block's weights relative to the new maximum, and the
        factor by which earlier sums shrink.
    """
    new_peak = jnp.maximum(peak, logits.max(axis=1, keepdims=True))
    # where no key has weight yet, any finite reference keeps −∞ − (−∞) away
    reference = finite_or_zero(new_peak)
    weights = jnp.exp(logits - reference)
    shrink = jnp.exp(peak - reference)
    return new_peak, shrink * total + weights.sum(axis=1, keepdims=True), weights, shrink


def normalise(peak, total, out) -> tuple[jax.Array, jax.Array]:
    """Output and log-sum-exp of running sums; 0 and −∞ where no key has weight."""
    empty = total == 0
    total = jnp.where(empty, 1, total)
    return out / total, jnp.where(empty, -jnp.inf, peak + jnp.log(total))


def finite_or_zero(reference: jax.Array) -> jax.Array:
    """The reference of an exponential, 0 where it is −∞."""
    return jnp.where(reference == -jnp.inf, 0, reference)


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
    block: int | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Cotangents, each block's weights recomputed from the log-sum-exp; memory O(B d + K d).

    Args:
        q: queries (B, d).
        k: keys (K, d).
        v: values (K, dv).
        bias: bias of each key (K,).
        scale: factor of q·k.
        lse: log-sum-exp of the forward pass (B,).
        dout: cotangent of the output (B, dv), in its dtype.
        delta: Σ dout·out − cotangent of the log-sum-exp (B,).
        block: keys per step.

    Returns:
        Cotangents of scale·q (B, d), k, v and bias, in the accumulator's dtype.
    """
    acc = accumulator_dtype(q.dtype)
    starts, size = _blocks(q.shape[0], k.shape[0], block)
    reference = finite_or_zero(lse)[:, None]

    def step(carry, first):
        dq, dk, dv, dbias = carry
        keys, values, offsets, at = _read(k, v, bias, first, size)
        weights = jnp.exp(scale * dot(q, keys, (1, 1)) + offsets - reference)
        dlogits = weights * (dot(dout, values, (1, 1)) - delta[:, None])
        dq = dq + dot(dlogits.astype(k.dtype), keys, (1, 0))
        dk = _add_rows(dk, at, dot((scale * dlogits).astype(q.dtype), q, (0, 0)))
        dv = _add_rows(dv, at, dot(weights.astype(dout.dtype), dout, (0, 0)))
        dbias = _add_rows(dbias, at, dlogits.sum(axis=0))
        return (dq, dk, dv, dbias), None

    start = tuple(jnp.zeros(x.shape, acc) for x in (q, k, v, bias))
    (dq, dk, dv, dbias), _ = lax.scan(step, start, starts)
    return dq, dk, dv, dbias


def _blocks(queries: int, keys: int, block: int | None) -> tuple[jax.Array, int]:
    """First key of every block, and the size of a block."""
    size = min(default_block(queries, keys) if block is None else block, keys)
    return jnp.arange(0, keys, size), size


def _read(k, v, bias, first, size):
    """One block of keys, values and biases, and where it was read.

    A block that would run over the end is read from further up; what the block before it has
    seen gets bias −∞.
    """
    at = jnp.minimum(first, k.shape[0] - size)
    keys, values, offsets = (lax.dynamic_slice_in_dim(x, at, size) for x in (k, v, bias))
    seen = at + jnp.arange(size) < first
    return keys, values, jnp.where(seen, -jnp.inf, offsets), at


def _add_rows(total, at, rows):
    """Adds rows in place; rows of an overlap are zero in the later block."""
    rows = rows + lax.dynamic_slice_in_dim(total, at, rows.shape[0])
    return lax.dynamic_update_slice_in_dim(total, rows, at, axis=0)


def dot(a: jax.Array, b: jax.Array, contract: tuple[int, int]) -> jax.Array:
    """A product of two matrices over one dimension of each, accumulated in float32 or better.

    Accelerators round float32 operands by default; here they must not.
    """
    exact = lax.Precision.HIGHEST if jnp.finfo(a.dtype).bits >= 32 else lax.Precision.DEFAULT
    return lax.dot_general(
        a,
        b,
        (((contract[0],), (contract[1],)), ((), ())),
        precision=exact,
        preferred_element_type=accumulator_dtype(a.dtype),
    )
