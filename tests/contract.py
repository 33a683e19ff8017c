"""What a row is: one public entry point with small inputs, and what it promises.

A method's tests keep `rows.py` with `ROWS: list[Row]`; `test_contract.py` collects all of them.
"""

import importlib.util
import pathlib
from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

TESTS = pathlib.Path(__file__).parent


@dataclass(frozen=True)
class Bad:
    """An input that must be refused: arguments to replace and the words of the error.

    An argument is replaced by a value, or by a function of the good one (see `edited`).
    """

    what: str
    args: dict[int, object]
    match: str


@dataclass(frozen=True, eq=False)
class Row:
    """A public entry point as a function of arrays alone (options are closed over).

    Attributes:
        entry: dotted name below `jaxicml`, e.g. "stats.wilson_interval" or
            "methods.atlas.memory_scan"; one entry may have several rows.
        call: the function, of the arrays that `make` returns (after the key when `random`).
        make: NumPy generator -> tuple of NumPy arrays.
        random: whether the first argument is a key.
        vmap: positions (among the arrays) that `vmap` may map over; None: not batchable.
        grad: positions towards which the gradient of the sum of float outputs is finite.
        dtypes: float dtypes that come back as they went in.
        bad: inputs that are refused.
        host: runs on the host (files, tables, fitting loops): jit, vmap and dtypes do not apply.
        slow: whether its program takes seconds to compile: the runs in float64 (eager, mapped,
            differentiated) are then left to the slow tier.
        rtol: how close jit, vmap and a loop must be, in float64.
        also: further dotted names that this row exercises (result types with methods, helpers).
    """

    entry: str
    call: Callable
    make: Callable[[np.random.Generator], tuple]
    random: bool = False
    vmap: tuple[int, ...] | None = ()
    grad: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ("float32",)
    bad: tuple[Bad, ...] = ()
    host: bool = False
    slow: bool = False
    rtol: float = 1e-7
    also: tuple[str, ...] = field(default=())

    def arrays(self, dtype: str = "float64", seed: int = 0) -> tuple:
        """Fresh inputs, floats in the wanted dtype."""
        made = self.make(np.random.default_rng(seed))
        if self.host:
            return made
        cast = lambda a: (
            jnp.asarray(a, dtype) if np.issubdtype(a.dtype, np.floating) else jnp.asarray(a)
        )
        return jax.tree.map(cast, made)

    def key(self, seed: int = 0) -> tuple:
        """The leading key as a tuple: empty when the entry is not random."""
        return (jax.random.key(seed),) if self.random else ()


def edited(change: Callable[[np.ndarray], object]) -> Callable:
    """A function for `Bad` that changes a NumPy copy: in place, or by what it returns.

    Nothing is compiled that way, as an indexing of jax arrays would be.
    """

    def apply(value):
        copy = np.array(value)
        changed = change(copy)
        return copy if changed is None else changed

    return apply


def entry(index, value) -> Callable:
    """A function for `Bad` that replaces one entry, or one row."""
    return edited(lambda array: array.__setitem__(index, value))


def collect() -> list[Row]:
    """All rows of all `rows.py` files."""
    rows = []
    for path in sorted(TESTS.rglob("rows.py")):
        name = "tests_rows_" + "_".join(path.relative_to(TESTS).parts[:-1])
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        rows.extend(module.ROWS)
    return rows
