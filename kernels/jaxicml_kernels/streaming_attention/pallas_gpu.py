"""Streaming attention for NVIDIA GPUs: Pallas kernels in the Triton form.

Rows may be wide (784 and more) and tiles must be powers of two, so every product goes through
chunks of at most 64 columns, masked at the array's edge. A program owns one block of rows; the
columns of its result stay in registers as up to 16 chunks, wider results are shared out over the
grid. Few queries would leave most of the chip idle: keys are split over programs as well, and the
partial results, each normalised, are put together outside.

Tiles are 32 rows by 64 columns in 16 bits, 16 by 32 in float32, whose products run without tensor
cores and want registers. With one stage in flight a chunk of each operand takes at most 24 kB of
shared memory, far below the 200 kB of a recent chip. A result of 1024 columns takes 128 or 64 kB
of the 256 kB of registers that 8 warps can address.

The backward pass is one kernel used three times. With rows and columns either queries and keys or
keys and queries, it adds G X over columns, where G is p or g (see `api`):

    dq: rows queries, G = g, X = k;   dk: rows keys, G = g, X = q;   dv: rows keys, G = p, X = dout
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from jaxicml_kernels.streaming_attention import xla

__all__ = ["backward", "forward", "serves"]

_CHUNK = 64
_MAX_CHUNKS = 16
_PROGRAMS = 264
"""Programs worth starting: two for each multiprocessor of a large chip."""


def serves(dtype, width: int, value_width: int) -> bool:
    """Whether these kernels take the dtype; any width is served."""
    del width, value_width
    return dtype in (jnp.float32, jnp.bfloat16, jnp.float16)


def _tile(dtype) -> tuple[int, int]:
    """Rows and columns of a block of logits."""
    return (16, 32) if jnp.finfo(dtype).bits == 32 else (32, 64)


def _chunk(width: int) -> int:
    return min(_CHUNK, max(16, pl.next_power_of_2(width)))


def _groups(width: int) -> tuple[int, int]:
    """Over how many programs the columns of a result go, and how many chunks each holds."""
    chunks = pl.cdiv(width, _chunk(width))
    groups = pl.cdiv(chunks, _MAX_CHUNKS)
    return groups, pl.cdiv(chunks, groups)


def _grid(rows: jax.Array, columns: jax.Array, groups: int) -> tuple[tuple[int, int, int], int]:
    """Programs for blocks of rows, groups and shares of the columns, and blocks in a share."""
    row_size, column_size = _tile(rows.dtype)
    row_blocks = pl.cdiv(rows.shape[0], row_size)
    blocks = pl.cdiv(columns.shape[0], column_size)
    wanted = pl.cdiv(_PROGRAMS, row_blocks * groups)
    steps = pl.cdiv(blocks, min(wanted, blocks))
    return (row_blocks, groups, pl.cdiv(blocks, steps)), steps


_PARAMS = plgpu.CompilerParams(num_warps=8, num_stages=1)


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
    queries, value_width = q.shape[0], v.shape[1]
    groups, chunks = _groups(value_width)
    grid, steps = _grid(q, k, groups)
    parts, lse = pl.pallas_call(
        functools.partial(_forward_kernel, steps=steps, chunks=chunks),
        grid=grid,
        **_partial_results(grid[2], queries, value_width),
        compiler_params=_PARAMS,
        interpret=interpret,
        name="streaming_attention_forward",
    )(scale[None], q, k, v, bias)
    peak = lse.max(axis=0)
    shares = jnp.exp(lse - xla.finite_or_zero(peak))
    out = (shares[:, :, None] * parts).sum(axis=0)
    out, lse = xla.normalise(peak[:, None], shares.sum(axis=0)[:, None], out)
    return out.astype(v.dtype), lse[:, 0]


def _partial_results(splits: int, rows: int, width: int) -> dict:
    """A matrix and a vector of float32 from every split, each seen whole by its programs."""
    return {
        "out_shape": [
            jax.ShapeDtypeStruct((splits, rows, width), jnp.float32),
            jax.ShapeDtypeStruct((splits, rows), jnp.float32),
        ],
        "out_specs": [
            pl.BlockSpec((None, rows, width), lambda row, group, split: (split, 0, 0)),
            pl.BlockSpec((None, rows), lambda row, group, split: (split, 0)),
        ],
    }


def _forward_kernel(
    scale_ref, q_ref, k_ref, v_ref, bias_ref, out_ref, lse_ref, *, steps: int, chunks: int
):
    block, group, split = (pl.program_id(axis) for axis in range(3))
    rows, columns = _tile(q_ref.dtype)
    row = block * rows
    chunk = _chunk(v_ref.shape[1])
    scale = scale_ref[0]

    def step(i, carry):
        peak, total, sums = carry
        key = (split * steps + i) * columns
        offsets = _load_vector(bias_ref, key, columns, -jnp.inf)
        logits = scale * _product(q_ref, k_ref, row, key) + offsets[None, :]
        peak, total, weights, shrink = xla.accumulate(peak, total, logits)
        weights = weights.astype(v_ref.dtype)
        values = (
            _load(v_ref, key, columns, (group * chunks + c) * chunk, chunk) for c in range(chunks)
        )
        sums = [shrink * s + xla.dot(weights, x, (1, 0)) for s, x in zip(sums, values, strict=True)]
        return peak, total, tuple(sums)

    start = (
        jnp.full((rows, 1), -jnp.inf, jnp.float32),
        jnp.zeros((rows, 1), jnp.float32),
        _zeros(rows, chunk, chunks),
    )
    peak, total, sums = _loop(steps, step, start)
    finished = [xla.normalise(peak, total, part) for part in sums]
    for c, (out, _) in enumerate(finished):
        _store(out_ref, row, (group * chunks + c) * chunk, out)
    _store_vector(lse_ref, row, finished[0][1][:, 0])


def _loop(steps: int, step, start):
    """A loop with a 32-bit counter, whatever the width of Python numbers."""
    return lax.fori_loop(jnp.int32(0), jnp.int32(steps), step, start)


def _zeros(rows: int, chunk: int, chunks: int) -> tuple[jax.Array, ...]:
    return tuple(jnp.zeros((rows, chunk), jnp.float32) for _ in range(chunks))


def _indices(start, size: int) -> jax.Array:
    return start + lax.iota(jnp.int32, size)


def _inside(ref, row, rows: int, column, columns: int) -> jax.Array:
    """Which entries of a tile lie in the array."""
    real_rows = _indices(row, rows) < ref.shape[0]
    return real_rows[:, None] & (_indices(column, columns) < ref.shape[1])[None, :]


def _load(ref, row, rows: int, column, columns: int) -> jax.Array:
    """A tile of a matrix, zero beyond its edge."""
    tile = ref.at[pl.ds(row, rows), pl.ds(column, columns)]
    return plgpu.load(tile, mask=_inside(ref, row, rows, column, columns), other=0)


def _load_vector(ref, start, size: int, fill: float) -> jax.Array:
    return plgpu.load(
        ref.at[pl.ds(start, size)], mask=_indices(start, size) < ref.shape[0], other=fill
    )


def _store(ref, row, column, tile: jax.Array) -> None:
    rows, columns = tile.shape
    at = ref.at[pl.ds(row, rows), pl.ds(column, columns)]
    plgpu.store(at, tile, mask=_inside(ref, row, rows, column, columns))


def _store_vector(ref, start, values: jax.Array) -> None:
    size = values.shape[0]
    plgpu.store(ref.at[pl.ds(start, size)], values, mask=_indices(start, size) < ref.shape[0])


def _product(a_ref, b_ref, row, column) -> jax.Array:
    """One block of a bᵀ, over chunks of the columns of both."""
    rows, columns = _tile(a_ref.dtype)
    chunk = _chunk(a_ref.shape[1])

    def step(c, total):
        a = _load(a_ref, row, rows, c * chunk, chunk)
        b = _load(b_ref, column, columns, c * chunk, chunk)
        return total + xla.dot(a, b, (1, 1))

    start = jnp.zeros((rows, columns), jnp.float32)
    return _loop(pl.cdiv(a_ref.shape[1], chunk), step, start)


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
    weigh = functools.partial(_weighted_sums, scale, interpret=interpret)
    offset = -xla.finite_or_zero(lse)
    of_queries, of_keys = (q, dout, offset, delta), (k, v, bias, jnp.zeros_like(bias))
    dq, _ = weigh(of_queries, of_keys, of_cotangents=True)
    dk, dbias = weigh(of_keys, of_queries, of_cotangents=True)
    dv, _ = weigh(of_keys, of_queries, of_cotangents=False)
    return dq, scale * dk, dv, dbias


def _weighted_sums(scale, rows, columns, *, of_cotangents: bool, interpret: bool):
    """Σ over columns of G X, and of G, for each row.

    Rows and columns each come as the vectors of the logits' product, those of the weights'
    cotangents, an addend of the logits and one to take from the cotangents.
    """
    number, width = rows[0].shape[0], columns[0 if of_cotangents else 1].shape[1]
    groups, chunks = _groups(width)
    grid, steps = _grid(rows[0], columns[0], groups)
    sums, totals = pl.pallas_call(
        functools.partial(
            _backward_kernel, steps=steps, chunks=chunks, of_cotangents=of_cotangents
        ),
        grid=grid,
        **_partial_results(grid[2], number, width),
        compiler_params=_PARAMS,
        interpret=interpret,
        name="streaming_attention_backward",
    )(scale[None], *rows, *columns)
    return sums.sum(axis=0), totals.sum(axis=0)


def _backward_kernel(
    scale_ref, a_ref, da_ref, a_offset_ref, a_delta_ref, b_ref, db_ref, b_offset_ref, b_delta_ref,
    sums_ref, totals_ref, *, steps: int, chunks: int, of_cotangents: bool,
):  # fmt: skip
    block, group, split = (pl.program_id(axis) for axis in range(3))
    rows, columns = _tile(a_ref.dtype)
    row = block * rows
    x_ref = b_ref if of_cotangents else db_ref
    chunk = _chunk(x_ref.shape[1])
    scale = scale_ref[0]
    row_offset = _load_vector(a_offset_ref, row, rows, 0.0)[:, None]
    row_delta = _load_vector(a_delta_ref, row, rows, 0.0)[:, None]

    def step(i, carry):
        total, sums = carry
        column = (split * steps + i) * columns
        offset = _load_vector(b_offset_ref, column, columns, -jnp.inf)[None, :]
        factors = jnp.exp(scale * _product(a_ref, b_ref, row, column) + offset + row_offset)
        if of_cotangents:
            delta = row_delta + _load_vector(b_delta_ref, column, columns, 0.0)[None, :]
            factors = factors * (_product(da_ref, db_ref, row, column) - delta)
        total = total + factors.sum(axis=1, keepdims=True)
        factors = factors.astype(x_ref.dtype)
        parts = (
            _load(x_ref, column, columns, (group * chunks + c) * chunk, chunk)
            for c in range(chunks)
        )
        sums = [s + xla.dot(factors, x, (1, 0)) for s, x in zip(sums, parts, strict=True)]
        return total, tuple(sums)

    start = (jnp.zeros((rows, 1), jnp.float32), _zeros(rows, chunk, chunks))
    total, sums = _loop(steps, step, start)
    for c, part in enumerate(sums):
        _store(sums_ref, row, (group * chunks + c) * chunk, part)
    _store_vector(totals_ref, row, total[:, 0])
