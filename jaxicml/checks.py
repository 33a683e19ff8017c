"""Argument checks: `check_*` speak before tracing, `guard_*` inside a compiled program.

Every error of the library is worded here. A `check_*` raises `ValueError` that names the argument,
what was expected and what came. It looks only at what is known: shapes always, values when the
array is concrete; a tracer is let through, and what depends on its values is then a field of the
result (`converged`, NaN), never an exception in the middle of a compiled program.
"""

import difflib
from collections.abc import Iterable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

__all__ = [
    "as_numbers",
    "check_array",
    "check_below",
    "check_binary",
    "check_broadcast",
    "check_callable",
    "check_choice",
    "check_concrete",
    "check_covariance",
    "check_descending",
    "check_distinct",
    "check_equal",
    "check_finite",
    "check_floating",
    "check_floats",
    "check_given",
    "check_instance",
    "check_integer",
    "check_key",
    "check_known",
    "check_min_rows",
    "check_not_negative",
    "check_open_unit",
    "check_positive",
    "check_range",
    "check_row_stochastic",
    "check_rows",
    "check_same_length",
    "check_scalar",
    "check_shape",
    "check_static_number",
    "check_symmetric",
    "guard_finite",
    "is_traced",
]


def _concrete(value) -> np.ndarray | None:
    """The value as NumPy, or None when it is being traced."""
    return None if isinstance(value, Tracer) else np.asarray(value)


def _rows(mask: np.ndarray, limit: int = 5) -> str:
    rows = np.unique(np.nonzero(mask)[0]) if mask.ndim else np.array([0])
    shown = ", ".join(str(row) for row in rows[:limit])
    return shown + (f" and {len(rows) - limit} more" if len(rows) > limit else "")


def check_shape(name: str, value, shape: Sequence[int | None]) -> None:
    """Checks a shape; None stands for any size.

    Raises:
        ValueError: the shape differs.
    """
    got = np.shape(value)
    if len(got) != len(shape) or any(
        w is not None and w != g for w, g in zip(shape, got, strict=True)
    ):
        want = "(" + ", ".join("any" if w is None else str(w) for w in shape) + ")"
        raise ValueError(f"{name}: expected shape {want}, got {tuple(got)}")


def check_same_length(**arrays) -> None:
    """Checks that arrays agree in their first dimension.

    Raises:
        ValueError: two of them differ, or one has no dimension.
    """
    lengths = {}
    for name, value in arrays.items():
        shape = np.shape(value)
        if not shape:
            raise ValueError(f"{name}: expected at least one dimension, got a scalar")
        lengths[name] = shape[0]
    if len(set(lengths.values())) > 1:
        got = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ValueError(f"{next(iter(arrays))}: expected equal numbers of rows, got {got}")


def check_finite(name: str, value) -> None:
    """Checks for NaN and infinities.

    Raises:
        ValueError: there are some; their first rows are named.
    """
    known = _concrete(value)
    if known is not None and not np.isfinite(known).all():
        bad = ~np.isfinite(known)
        raise ValueError(
            f"{name}: expected finite values, got {int(bad.sum())} NaN or infinite "
            f"(rows {_rows(bad)})"
        )


def check_binary(name: str, value) -> None:
    """Checks that every entry is 0 or 1 and that both occur.

    Raises:
        ValueError: another value, or only one of the two.
    """
    known = _concrete(value)
    if known is None:
        return
    bad = ~np.isin(known, (0, 1))
    if bad.any():
        seen = ", ".join(str(v) for v in np.unique(known[bad])[:3])
        raise ValueError(f"{name}: expected only 0 and 1, got {seen} (rows {_rows(bad)})")
    if known.size and known.min() == known.max():
        raise ValueError(
            f"{name}: expected both arms, got only {int(known.flat[0])} (one arm is empty)"
        )
    if not known.size:
        raise ValueError(f"{name}: expected at least one row, got none")


def check_positive(name: str, value) -> None:
    """Checks that a number, or every entry, is finite and above zero.

    Raises:
        ValueError: it is not.
    """
    known = _concrete(value)
    if known is not None and not (np.isfinite(known) & (known > 0)).all():
        raise ValueError(f"{name}: expected a finite number above 0, got {_short(known)}")


def check_open_unit(name: str, value) -> None:
    """Checks that a number, or every entry, lies strictly between 0 and 1.

    Raises:
        ValueError: it does not.
    """
    known = _concrete(value)
    if known is not None and not ((known > 0) & (known < 1)).all():
        raise ValueError(f"{name}: expected values strictly between 0 and 1, got {_short(known)}")


def check_range(name: str, value, low: float | int, high: float | int) -> None:
    """Checks low <= value <= high for a number or every entry.

    Raises:
        ValueError: it lies outside.
    """
    known = _concrete(value)
    if known is not None and not ((known >= low) & (known <= high)).all():
        raise ValueError(f"{name}: expected values in [{low}, {high}], got {_short(known)}")


def check_integer(name: str, value: int, *, low: int, high: int | None = None) -> None:
    """Checks a static whole number.

    Raises:
        ValueError: it is no integer or lies outside [low, high].
    """
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):
        upper = "" if high is None else f" and at most {high}"
        raise ValueError(f"{name}: expected a whole number of at least {low}{upper}, got {value!r}")


def check_integers(name: str, value) -> None:
    """Checks that an array holds whole numbers, by its dtype.

    Raises:
        ValueError: another dtype.
    """
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise ValueError(f"{name}: expected whole numbers, got {value.dtype}")


def check_choice(name: str, value, choices: Iterable) -> None:
    """Checks that a static option is one of those that exist.

    Raises:
        ValueError: it is not.
    """
    options = list(choices)
    if isinstance(value, (jax.Array, np.ndarray)) or value not in options:
        raise ValueError(f"{name}: expected one of {options}, got {value!r}")


def check_known(name: str, value: str, known: Iterable[str]) -> None:
    """Checks a name against those that exist and suggests the nearest.

    Raises:
        ValueError: it is unknown.
    """
    names = [str(k) for k in known]
    if value in names:
        return
    near = difflib.get_close_matches(value, names, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    raise ValueError(f"{name}: expected one of {shown}, got {value!r}{hint}")


def check_row_stochastic(name: str, value, *, atol: float = 1e-6) -> None:
    """Checks that rows are non-negative and sum to one.

    Raises:
        ValueError: a negative weight, or a row whose sum differs from 1 by more than `atol`.
    """
    known = _concrete(value)
    if known is None:
        return
    if (known < 0).any():
        raise ValueError(
            f"{name}: expected non-negative weights, got {known.min():.3g} "
            f"(rows {_rows(known < 0)})"
        )
    # float32 sums of a few thousand weights are off by more than 1e-6
    near = np.abs(known.sum(-1, dtype=np.float64) - 1) <= max(atol, 4 * np.finfo(known.dtype).eps)
    off = ~near  # NaN is not near
    if off.any():
        worst = known.sum(-1, dtype=np.float64)[off].flat[0]
        raise ValueError(
            f"{name}: expected rows that sum to 1, got a sum of {worst:.6g} (rows {_rows(off)})"
        )


def guard_finite(name: str, value: Array) -> Array:
    """Returns `value`; a compiled program that meets NaN or infinity in it stops with an error."""
    return eqx.error_if(value, ~jnp.isfinite(value).all(), f"{name}: expected finite values")


def _short(known: np.ndarray) -> str:
    if known.ndim == 0:
        return repr(known.item())
    return f"values from {known.min():.4g} to {known.max():.4g}" if known.size else "no values"


def is_traced(*values) -> bool:
    """Whether any of the values is a tracer (its numbers are not known yet)."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values))


def check_min_rows(name: str, value, least: int) -> None:
    """Checks that an array has at least `least` rows.

    Raises:
        ValueError: it has fewer, or is a scalar.
    """
    shape = np.shape(value)
    if not shape or shape[0] < least:
        got = f"{shape[0]}" if shape else "a scalar"
        raise ValueError(f"{name}: expected at least {least} rows, got {got}")


def check_distinct(name: str, value) -> None:
    """Checks that no value of a vector occurs twice.

    Raises:
        ValueError: one does.
    """
    known = _concrete(value)
    if known is not None and len(np.unique(known)) < known.size:
        values, counts = np.unique(known, return_counts=True)
        raise ValueError(f"{name}: expected distinct values, got {values[counts > 1][0]:g} twice")


def check_rows(name: str, good, expected: str, got: str) -> None:
    """Checks a condition on every row.

    Args:
        name: of the argument.
        good: whether each row is as expected, known values.
        expected: what was expected, in words.
        got: what came instead, in words.

    Raises:
        ValueError: a row is not; the first ones are named.
    """
    bad = ~np.asarray(good, bool)
    if bad.any():
        raise ValueError(f"{name}: expected {expected}, got {got} (rows {_rows(bad)})")


def check_covariance(name: str, value, d: int) -> None:
    """Checks for a symmetric positive definite (d, d) matrix.

    Raises:
        ValueError: another shape, NaN, not symmetric, or an eigenvalue that is not above zero.
    """
    check_shape(name, value, (d, d))
    check_finite(name, value)
    known = _concrete(value)
    if known is None:
        return
    known = known.astype(np.float64)
    if not np.allclose(known, known.T, rtol=1e-5):
        raise ValueError(f"{name}: expected a symmetric matrix, got one that is not")
    least = np.linalg.eigvalsh(known).min(initial=np.inf)
    if least <= 0:
        raise ValueError(
            f"{name}: expected a positive definite matrix, got a smallest eigenvalue of {least:.4g}"
        )


def check_below(name: str, value, bound: float | int) -> None:
    """Checks that a number lies strictly below a bound.

    Raises:
        ValueError: it does not.
    """
    known = _concrete(value)
    if known is not None and not (known < bound).all():
        raise ValueError(f"{name}: expected a number below {bound:.4g}, got {_short(known)}")


def check_floating(name: str, value) -> None:
    """Checks that an array holds float32 or float64 numbers.

    Integers would round every option to whole numbers, and half precision has too few digits for
    the solves here.

    Raises:
        ValueError: another dtype, or no array.
    """
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        raise ValueError(f"{name}: expected an array, got {type(value).__name__}")
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"{name}: expected float32 or float64, got {dtype}; convert it first")


def check_scalar(name: str, value) -> None:
    """Checks that a value is one number, known or traced.

    Raises:
        ValueError: it is no number, or has dimensions.
    """
    try:
        numeric = isinstance(value, Tracer) or np.asarray(value).dtype.kind in "iuf"
        got = _describe(value)
    except (TypeError, ValueError):  # random keys, rows of different lengths
        numeric, got = False, type(value).__name__
    if not numeric or np.shape(value):
        raise ValueError(f"{name}: expected one number, got {got}")


def _describe(value) -> str:
    shape = np.shape(value)
    return f"an array of shape {shape}" if shape else repr(value)


def check_not_negative(name: str, value) -> None:
    """Checks that a number, or every entry, is finite and not below zero.

    Raises:
        ValueError: it is not.
    """
    known = _concrete(value)
    if known is not None and not (np.isfinite(known) & (known >= 0)).all():
        raise ValueError(f"{name}: expected a finite number of at least 0, got {_short(known)}")


def check_symmetric(name: str, value) -> None:
    """Checks that the last two dimensions hold symmetric matrices.

    Raises:
        ValueError: they do not.
    """
    known = _concrete(value)
    if known is not None and not np.allclose(known, known.swapaxes(-1, -2), rtol=1e-5):
        raise ValueError(f"{name}: expected symmetric matrices, got one that is not")


def check_descending(name: str, value) -> None:
    """Checks that every entry of a vector is smaller than the one before it.

    Raises:
        ValueError: one is not.
    """
    known = _concrete(value)
    if known is not None:
        falls = np.diff(known) < 0
        check_rows(name, np.append(True, falls), "descending values", "a value that does not fall")


def check_concrete(name: str, value) -> None:
    """Checks that a value is known, as work on the host needs it.

    Raises:
        ValueError: it is being traced.
    """
    if is_traced(value):
        raise ValueError(f"{name}: expected known values, got a tracer; make it outside jit")


def check_equal(name: str, value, instead: str) -> None:
    """Checks that all entries are equal.

    Args:
        name: of the argument.
        value: the entries.
        instead: what to do where they are not, in words.

    Raises:
        ValueError: two entries differ.
    """
    known = _concrete(value)
    if known is not None and known.size and (known != known.flat[0]).any():
        raise ValueError(f"{name}: expected equal values, got {_short(known)}; {instead}")


def check_given(name: str, value, when: str) -> None:
    """Checks that an optional argument was passed where it is needed.

    Raises:
        ValueError: it is None.
    """
    if value is None:
        raise ValueError(f"{name}: expected a value {when}, got None")


def check_array(name: str, value, shape: Sequence[int | None] | None = None) -> None:
    """Checks for an array of real numbers or truth values, known or traced, and its shape if given.

    Raises:
        ValueError: a list or another object, entries that are no real numbers, or another shape.
    """
    if not isinstance(value, (jax.Array, np.ndarray, np.generic)):
        raise ValueError(f"{name}: expected an array, got {type(value).__name__}")
    if not any(jnp.issubdtype(value.dtype, kind) for kind in (np.floating, np.integer, np.bool)):
        raise ValueError(f"{name}: expected an array of real numbers, got {value.dtype}")
    if shape is not None:
        check_shape(name, value, shape)


def check_static_number(name: str, value) -> None:
    """Checks for a number that is part of the program: not traced, and no array.

    Raises:
        ValueError: something else.
    """
    if not isinstance(value, (int, float, np.number)):
        raise ValueError(f"{name}: expected a Python number, got {type(value).__name__}")
    check_scalar(name, value)


def check_callable(name: str, value) -> None:
    """Checks for something that can be called.

    Raises:
        ValueError: it cannot.
    """
    if not callable(value):
        raise ValueError(f"{name}: expected a function, got {type(value).__name__}")


def check_key(name: str, value) -> None:
    """Checks for one typed random key.

    Raises:
        ValueError: a number, a key of the old kind, or several keys.
    """
    dtype = getattr(value, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jax.dtypes.prng_key):
        got = type(value).__name__ if dtype is None else str(dtype)
        raise ValueError(f"{name}: expected a key as jax.random.key makes it, got {got}")
    check_shape(name, value, ())


def as_numbers(name: str, value) -> np.ndarray:
    """A known value, such as a list, as a NumPy array of real numbers.

    Raises:
        ValueError: rows of different lengths, or entries that are no real numbers.
    """
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:  # rows of different lengths, say
        raise ValueError(f"{name}: expected an array of numbers, got {error}") from error
    check_array(name, array)
    return array


def check_floats(
    name: str, value, shape: Sequence[int | None] | None = None, *, finite: bool = True
) -> None:
    """Checks for an array of float32 or float64 numbers, finite and of a shape where asked.

    Raises:
        ValueError: no array, another dtype or shape, NaN or infinity.
    """
    check_array(name, value, shape)
    check_floating(name, value)
    if finite:
        check_finite(name, value)


def check_instance(name: str, value, kind: type) -> None:
    """Checks that a value is of a class.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, kind):
        raise ValueError(f"{name}: expected a {kind.__name__}, got {type(value).__name__}")


def check_broadcast(**arrays) -> None:
    """Checks that shapes broadcast together.

    Raises:
        ValueError: they do not.
    """
    shapes = {name: np.shape(value) for name, value in arrays.items()}
    try:
        np.broadcast_shapes(*shapes.values())
    except ValueError:
        got = " and ".join(str(shape) for shape in shapes.values())
        raise ValueError(f"{', '.join(shapes)}: expected shapes that match, got {got}") from None
