"""Array types and protocols that several rooms share."""

from collections.abc import Iterable
from typing import Protocol, TypeVar, runtime_checkable

import jaxtyping
import numpy as np
from jaxtyping import Array, Float, Real

__all__ = ["Key", "Keys", "Progress", "PropensityFn", "Scalar"]

Scalar = float | int | np.floating | np.integer | Real[Array, ""]
"""A number a user may pass, trace or sweep: Python, NumPy or a zero-dimensional array."""

Key = jaxtyping.Key[Array, ""]
"""One typed random key (`jax.random.key`)."""

Keys = jaxtyping.Key[Array, " n"]
"""A vector of typed random keys (`jax.random.split`)."""

Item = TypeVar("Item")


class PropensityFn(Protocol):
    """A fitted propensity: covariates in, probability of treatment out."""

    def __call__(self, x: Float[Array, "n p"]) -> Float[Array, " n"]:
        """Returns P(A = 1 | x) for each row of `x`."""
        ...


@runtime_checkable
class Progress(Protocol):
    """What a long computation reports to: a bar in the harness, silence elsewhere."""

    def track(
        self, items: Iterable[Item], description: str, total: int | None = None
    ) -> Iterable[Item]:
        """Yields `items`, advancing a bar by one after each."""
        ...

    def note(self, message: str) -> None:
        """Shows one line."""
        ...
