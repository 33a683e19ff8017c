"""Contract rows of the kernels' entry points."""

import numpy as np
from jaxicml_kernels import streaming_attention as attention

from tests.contract import Bad, Row


def _inputs(rng):
    shapes = ((3, 4), (5, 4), (5, 2), (5,), ())
    return tuple(np.asarray(rng.normal(size=shape)) for shape in shapes)


ROWS = [
    Row(
        "jaxicml_kernels.streaming_attention",
        lambda q, k, v, bias, scale: attention.streaming_attention(
            q, k, v, bias, scale=scale, block=2
        ),
        _inputs,
        vmap=(0, 1, 2, 3, 4),
        grad=(0, 1, 2, 3, 4),
        dtypes=("float32", "bfloat16"),
        bad=(
            Bad("one dimension", {0: lambda q: q[0]}, "q: expected at least two dimensions"),
            Bad("integers", {1: lambda k: k.astype("int32")}, "k: expected a float dtype"),
            Bad("mixed dtypes", {2: lambda v: v.astype("bfloat16")}, "v: expected the dtype of q"),
            Bad("other width", {1: lambda k: k[:, :3]}, "k: expected 4 columns"),
            Bad("other rows", {2: lambda v: v[:4]}, "v: expected 5 rows"),
            Bad("no keys", {1: lambda k: k[:0], 2: lambda v: v[:0]}, "at least one key"),
            Bad("short bias", {3: lambda b: b[:4]}, "bias: expected 5 entries"),
            Bad("complex bias", {3: lambda b: b + 1j}, "bias: expected real numbers"),
            Bad("vector scale", {4: lambda s: s[None]}, "scale: expected one number"),
            Bad(
                "leading dimensions",
                {
                    0: lambda q: np.zeros((2, *q.shape), q.dtype),
                    1: lambda k: np.zeros((3, *k.shape), k.dtype),
                },
                "q: expected leading dimensions that broadcast",
            ),
        ),
        also=("jaxicml_kernels.streaming_attention_with_lse",),
    )
]
