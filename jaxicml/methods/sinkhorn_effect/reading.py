"""What people hand in, as one sample of float64 numbers with names."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxicml import checks
from jaxicml.data import tabular

__all__ = ["NamedSample", "read_sample"]


class NamedSample(NamedTuple):
    """What was asked of the table, as float64."""

    x: Float[np.ndarray, "n p"]
    a: Float[np.ndarray, " n"]
    y: Float[np.ndarray, "n d"]
    treatment: str
    outcomes: tuple[str, ...]
    covariates: tuple[str, ...]


def read_sample(table: Any, treatment: Any, outcome: Any, covariates: Any) -> NamedSample:
    """Reads the columns asked for, or the arrays themselves where `table` is None.

    Raises:
        ValueError: an unknown column, missing values, text, or a treatment that is not binary.
    """
    if table is None:
        given = {"treatment": treatment, "outcome": outcome, "covariate": covariates}
        columns = {role: _array_columns(role, values) for role, values in given.items()}
        names = [[name for name, _ in found] for found in columns.values()]
        table = dict(pair for found in columns.values() for pair in found)
    else:
        given = {"treatment": treatment, "outcome": outcome, "covariates": covariates}
        names = [_column_names(role, wanted) for role, wanted in given.items()]
        if isinstance(table, Mapping):
            wanted = {name for found in names for name in found}
            table = {
                name: _array(f"column {name!r}", column) if name in wanted else column
                for name, column in table.items()
            }
    treatments, outcomes, covariates = names
    checks.check_shape("treatment", treatments, (1,))
    checks.check_min_rows("outcome", outcomes, 1)
    chosen = tabular.as_table(table, [*treatments, *outcomes, *covariates])
    a = tabular.binary_column(chosen, treatments[0]).astype(np.float64)
    y = tabular.frame_columns(chosen, outcomes)
    # without covariates one that says nothing: every weight is then the same
    x = tabular.frame_columns(chosen, covariates) if covariates else np.zeros((len(a), 1))
    return NamedSample(x, a, y, treatments[0], tuple(outcomes), tuple(covariates))


def _array_columns(role: str, values) -> list[tuple[str, Any]]:
    """Named columns of an array, a series or a frame; its own names where it has some."""
    if values is None or isinstance(values, str):
        raise ValueError(f"{role}: expected an array when there is no table, got {values!r}")
    if hasattr(values, "columns") and hasattr(values, "iloc"):
        return [(str(name), values.iloc[:, i]) for i, name in enumerate(values.columns)]
    name = getattr(values, "name", None)
    values = _array(role, values)
    if values.ndim < 2:
        return [(role if name is None else str(name), values)] if values.size else []
    checks.check_shape(role, values, (None, None))
    if values.shape[1] == 1:
        return [(role, values[:, 0])]
    return [(f"{role} {i + 1}", column) for i, column in enumerate(values.T)]


def _array(name: str, values) -> np.ndarray:
    """The values as an array of whatever they hold."""
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected one value a row, got {error}") from error


def _column_names(role: str, wanted) -> list[str]:
    names = [wanted] if not np.iterable(wanted) or isinstance(wanted, str) else list(wanted)
    for name in names:
        if not isinstance(name, str):
            got = type(name).__name__
            raise ValueError(f"{role}: expected names of columns of the table, got {got}")
    return names
