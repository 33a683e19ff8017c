"""The shapes that tests and benchmarks of streaming attention share, smallest to real."""

from typing import NamedTuple

__all__ = ["SHAPES", "Shape"]


class Shape(NamedTuple):
    """Sizes of one call.

    Attributes:
        queries: rows of `q`, B.
        keys: rows of `k` and `v`, K.
        width: columns of `q` and `k`, d.
        value_width: columns of `v`, dv.
    """

    queries: int
    keys: int
    width: int
    value_width: int


SHAPES = (
    Shape(5, 7, 3, 3),
    Shape(64, 100, 16, 16),
    Shape(33, 300, 96, 40),
    Shape(256, 1000, 64, 64),
    Shape(256, 60_000, 784, 784),
)
"""Odd sizes, blocks that do not divide, an attention head, and a mixture of training images."""
