"""Entry points of streaming attention: checks, the choice of a form, and its derivative.

Reverse mode recomputes each block's weights p_ij = exp(s q_i·k_j + b_j − lse_i):

    δ_i = Σ dout_i·out_i − dlse_i,   g_ij = p_ij (dout_i·v_j − δ_i)
    dq = s g k,   dk = s gᵀ q,   dv = pᵀ dout,   db_j = Σ_i g_ij,   ds = Σ_i q_i·(g k)_i

Forward mode and second derivatives are not defined: the derivative is a custom reverse rule.
"""

import functools
import importlib
import math
from types import ModuleType
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jaxicml_kernels.streaming_attention import xla

__all__ = ["streaming_attention", "streaming_attention_with_lse"]

Implementation = Literal["xla", "pallas_tpu", "pallas_gpu"]
_KERNELS = {"tpu": "pallas_tpu", "cuda": "pallas_gpu"}
_SIGNATURE = "(b,d),(k,d),(k,v),(k),()->(b,v),(b)"


def streaming_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    scale: ArrayLike = 1.0,
    block: int | None = None,
    implementation: Implementation | None = None,
) -> jax.Array:
    """Σ_j softmax_j(scale q·k_j + bias_j) v_j, with memory O(B d + block d) at any K.

    Leading dimensions broadcast. Logits and sums are float32, float64 for float64 inputs. Keys
    of bias −∞ have no weight; where no key has any, the output is 0. Differentiable in reverse
    mode, once, towards all five arguments, also with memory O((B + K) d).

    Args:
        q: queries (..., B, d).
        k: keys (..., K, d), of the same dtype.
        v: values (..., K, dv), of the same dtype.
        bias: additive bias of each key (..., K), finite or −∞; zero by default.
        scale: factor of q·k, one number.
        block: keys per step of the XLA form; chosen from B and K by default. The kernels choose
            their own.
        implementation: "xla", "pallas_tpu" or "pallas_gpu"; the fast one of the platform by
            default, the XLA form where a kernel does not serve (float64).

    Returns:
        The output (..., B, dv) in the dtype of `v`.

    Raises:
        ValueError: shapes or dtypes that do not match, no keys, a block below 1, an unknown
            implementation or one that does not serve these inputs.

    >>> means = jnp.array([[-1.0, 0.0], [1.0, 0.0]])
    >>> x = jnp.array([[0.5, 3.0]])
    >>> print(streaming_attention(x, means, means, jnp.log(jnp.array([0.25, 0.75]))).round(4))
    [[0.7816 0.    ]]
    """
    return streaming_attention_with_lse(
        q, k, v, bias, scale=scale, block=block, implementation=implementation
    )[0]


def streaming_attention_with_lse(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    scale: ArrayLike = 1.0,
    block: int | None = None,
    implementation: Implementation | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The output of `streaming_attention` with log Σ_j exp(scale q·k_j + bias_j) beside it.

    Args:
        q: queries (..., B, d).
        k: keys (..., K, d), of the same dtype.
        v: values (..., K, dv), of the same dtype.
        bias: additive bias of each key (..., K), finite or −∞; zero by default.
        scale: factor of q·k, one number.
        block: keys per step of the XLA form.
        implementation: "xla", "pallas_tpu" or "pallas_gpu".

    Returns:
        The output (..., B, dv) in the dtype of `v` and the log-sum-exp (..., B) in float32,
        float64 for float64 inputs; −∞ where no key has weight.

    Raises:
        ValueError: as `streaming_attention`.

    >>> q, k = jnp.zeros((1, 2)), jnp.ones((3, 2))
    >>> out, lse = streaming_attention_with_lse(q, k, k)
    >>> print(out, lse.round(4))  # the mean of the keys, log 3
    [[1. 1.]] [1.0986]
    """
    q, k, v = (jnp.asarray(x) for x in (q, k, v))
    _check_arrays(q, k, v)
    acc = xla.accumulator_dtype(q.dtype)
    bias = jnp.zeros(k.shape[-2:-1], acc) if bias is None else jnp.asarray(bias)
    scale = jnp.asarray(scale)
    _check_options(k, bias, scale, block)
    bias, scale = bias.astype(acc), scale.astype(acc)
    _check_leading(q=q.shape[:-2], k=k.shape[:-2], v=v.shape[:-2], bias=bias.shape[:-1])
    _check_implementation(implementation, q, v)
    return _batched(q, k, v, bias, scale, block=block, implementation=implementation)


def _check_arrays(q: jax.Array, k: jax.Array, v: jax.Array) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim < 2:
            raise ValueError(f"{name}: expected at least two dimensions, got shape {x.shape}")
        if not jnp.issubdtype(x.dtype, jnp.floating) or jnp.finfo(x.dtype).bits < 16:
            raise ValueError(f"{name}: expected a float dtype of 16 bits or more, got {x.dtype}")
        if x.dtype != q.dtype:
            raise ValueError(f"{name}: expected the dtype of q, {q.dtype}, got {x.dtype}")
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"k: expected {q.shape[-1]} columns as q has, got shape {k.shape}")
    if v.shape[-2] != k.shape[-2]:
        raise ValueError(f"v: expected {k.shape[-2]} rows as k has, got shape {v.shape}")
    if k.shape[-2] < 1:
        raise ValueError(f"k: expected at least one key, got shape {k.shape}")


def _check_options(k: jax.Array, bias: jax.Array, scale: jax.Array, block: int | None) -> None:
    for name, x in (("bias", bias), ("scale", scale)):
        if jnp.iscomplexobj(x):
            raise ValueError(f"{name}: expected real numbers, got {x.dtype}")
    if bias.shape[-1:] != k.shape[-2:-1]:
        raise ValueError(f"bias: expected {k.shape[-2]} entries per key set, got {bias.shape}")
    if scale.shape:
        raise ValueError(f"scale: expected one number, got shape {scale.shape}")
    counts = isinstance(block, int | np.integer) and not isinstance(block, bool) and block >= 1
    if block is not None and not counts:
        raise ValueError(f"block: expected an integer of at least 1, got {block}")


def _check_leading(**leading: tuple[int, ...]) -> None:
    try:
        np.broadcast_shapes(*leading.values())
    except ValueError:
        given = ", ".join(f"{name} {shape}" for name, shape in leading.items())
        raise ValueError(f"q: expected leading dimensions that broadcast, got {given}") from None


def _check_implementation(implementation: str | None, q: jax.Array, v: jax.Array) -> None:
    if implementation in (None, "xla"):
        return
    if implementation not in _KERNELS.values():
        known = ", ".join(("xla", *_KERNELS.values()))
        raise ValueError(f"implementation: expected one of {known}, got {implementation!r}")
    if not _serves(_load(implementation), q, v):
        raise ValueError(
            f"implementation: expected one that serves {q.dtype} of width {q.shape[-1]} and "
            f"{v.shape[-1]} with this jax, got {implementation!r}"
        )


def _load(name: str) -> ModuleType | None:
    """The module of a kernel; None where this jax has no such backend."""
    try:
        return importlib.import_module(f"{__package__}.{name}")
    except ImportError:
        return None


def _serves(kernel: ModuleType | None, q: jax.Array, v: jax.Array) -> bool:
    empty = q.size == 0 or v.size == 0
    return kernel is not None and not empty and kernel.serves(q.dtype, q.shape[-1], v.shape[-1])


@functools.partial(jax.jit, static_argnames=("block", "implementation"))
def _batched(q, k, v, bias, scale, *, block, implementation):
    one = lambda *args: _attend(*args, block, implementation)
    if max(k.ndim, v.ndim, bias.ndim + 1) == 2:
        # one set of keys serves all queries: read it once, and hold its cotangents once
        out, lse = one(q.reshape(math.prod(q.shape[:-1]), q.shape[-1]), k, v, bias, scale)
        return out.reshape(*q.shape[:-1], v.shape[-1]), lse.reshape(q.shape[:-1])
    return jnp.vectorize(one, signature=_SIGNATURE)(q, k, v, bias, scale)


def _forward(q, k, v, bias, scale, block, implementation) -> tuple[jax.Array, jax.Array]:
    out, lse = _run("forward", implementation, block, q, k, v, bias, scale)
    return out, lse


def _forward_with_residuals(q, k, v, bias, scale, block, implementation):
    out, lse = _forward(q, k, v, bias, scale, block, implementation)
    return (out, lse), (q, k, v, bias, scale, out, lse)


def _backward(block, implementation, residuals, cotangents):
    q, k, v, bias, scale, out, lse = residuals
    dout, dlse = cotangents
    delta = (dout.astype(lse.dtype) * out.astype(lse.dtype)).sum(axis=1) - dlse
    dq, dk, dv, dbias = _run(
        "backward", implementation, block, q, k, v, bias, scale, lse, dout, delta
    )
    dscale = (q * dq).sum()
    return (scale * dq).astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), dbias, dscale


_attend = jax.custom_vjp(_forward, nondiff_argnums=(5, 6))
_attend.defvjp(_forward_with_residuals, _backward)


def _run(
    direction: str, implementation: str | None, block: int | None, *args: jax.Array
) -> tuple[jax.Array, ...]:
    """One direction in the form asked for, or in the platform's own."""
    q, _, v = args[:3]
    plain = functools.partial(getattr(xla, direction), block=block)
    if implementation == "xla":
        return plain(*args)
    if implementation is not None:
        return getattr(_load(implementation), direction)(*args)
    kernels = {platform: _load(name) for platform, name in _KERNELS.items()}
    fast = {p: getattr(x, direction) for p, x in kernels.items() if _serves(x, q, v)}
    return lax.platform_dependent(*args, default=plain, **fast)
