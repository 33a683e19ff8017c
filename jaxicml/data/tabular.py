"""Tables as NumPy columns: people's own files and frames, and two studies of treatment effects.

A table is a pandas DataFrame, a dict of arrays, a structured array or the path of a CSV file. What
is asked of it comes back as float64; missing values and text are refused with the column and the
first rows, counted from 0. Files are not trusted: their size is bounded before they are read and
nothing in them is executed.

References:
    Hernán, Robins, "Causal Inference: What If", 2020 (NHEFS). LaLonde, "Evaluating the econometric
    evaluations of training programs with experimental data", 1986; Dehejia, Wahba, "Causal effects
    in nonexperimental studies", 1999 (NSW and its CPS controls).
"""

import csv
import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxicml import checks

__all__ = [
    "Study",
    "Table",
    "as_table",
    "binary_column",
    "frame_columns",
    "load_nhefs",
    "load_nsw",
]

MAX_BYTES = 1 << 30
"""Largest CSV file that is read unless the caller says otherwise."""

_MISSING = {"", ".", "na", "n/a", "nan", "none", "null", "<na>"}
"""What people write for a missing value, in lower case."""


@dataclass(frozen=True)
class Table:
    """Named columns of equal length, as they came.

    Attributes:
        columns: name to one-dimensional array.
        source: what errors call it.
    """

    columns: Mapping[str, np.ndarray]
    source: str = "table"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.columns)


class Study(NamedTuple):
    """An observational study or a trial."""

    covariates: Float[np.ndarray, "n p"]
    """What was known before treatment."""
    treatment: Int[np.ndarray, " n"]
    """1 treated, 0 control."""
    outcome: Float[np.ndarray, "n d"]
    covariate_names: tuple[str, ...]
    outcome_names: tuple[str, ...]
    name: str


def as_table(
    table: Any, names: Sequence[str] | None = None, *, max_bytes: int = MAX_BYTES
) -> Table:
    """The columns of whatever people have.

    Args:
        table: a `Table`, a pandas DataFrame, a dict of one-dimensional arrays, a structured NumPy
            array, or the path of a CSV file (`.tsv`: separated by tabs) whose first line names the
            columns.
        names: the columns wanted; all by default.
        max_bytes: bound on the size of a file.

    Returns:
        The columns, not yet converted.

    Raises:
        ValueError: an unknown or repeated column (the nearest name is suggested), columns of
            different length, no rows, a file that is empty, too large or no CSV table, or
            something else altogether.
        FileNotFoundError: there is no such file.

    >>> as_table({"age": [40, 50], "smokes": [True, False]}).names
    ('age', 'smokes')
    """
    if isinstance(table, (str, os.PathLike)):
        return _read_csv(Path(table), names, max_bytes)
    if isinstance(table, Table):
        known, column, source = table.names, lambda i: table.columns[known[i]], table.source
    elif hasattr(table, "iloc") and hasattr(table, "columns"):
        known, column = list(table.columns), lambda i: _from_series(table.iloc[:, i])
        source = "table"
    elif isinstance(table, Mapping):
        values = list(table.values())
        known, column, source = list(table), lambda i: np.asarray(values[i]), "table"
    elif isinstance(table, np.ndarray) and table.dtype.names:
        fields = table.dtype.names
        known, column, source = fields, lambda i: table[fields[i]], "table"
    else:
        raise ValueError(
            "table: expected a DataFrame, a dict of arrays, a structured array or the path of a "
            f"CSV file, got {type(table).__name__}"
        )
    known = [str(name) for name in known]
    wanted = _wanted(names, known)
    columns = {name: column(known.index(name)) for name in wanted}
    return _checked(Table(columns, source))


def frame_columns(
    table: Any, names: Sequence[str], *, max_bytes: int = MAX_BYTES
) -> Float[np.ndarray, "n k"]:
    """Columns of a table as numbers, in the order asked for.

    Truth values become 0 and 1; categories and text that read as numbers become those numbers.

    Args:
        table: anything that `as_table` takes.
        names: the columns wanted.
        max_bytes: bound on the size of a file.

    Returns:
        One column for each name.

    Raises:
        ValueError: as `as_table`; also missing or infinite values, or a column that is no number,
            each with the column and the first rows.

    >>> frame_columns({"age": [40, 50], "smokes": [True, False]}, ["smokes", "age"])
    array([[ 1., 40.], [ 0., 50.]])
    """
    chosen = as_table(table, names, max_bytes=max_bytes)
    return np.stack([_numbers(name, column) for name, column in chosen.columns.items()], axis=1)


def binary_column(table: Any, name: str, *, max_bytes: int = MAX_BYTES) -> Int[np.ndarray, " n"]:
    """One column of zeros and ones.

    Args:
        table: anything that `as_table` takes.
        name: the column.
        max_bytes: bound on the size of a file.

    Raises:
        ValueError: as `frame_columns`; also another value than 0 and 1, or only one of the two.

    >>> binary_column({"smokes": [True, False, True]}, "smokes")
    array([1, 0, 1])
    """
    values = frame_columns(table, [name], max_bytes=max_bytes)[:, 0]
    checks.check_binary(f"column {name!r}", values)
    return values.astype(int)


def load_nhefs(complete: bool = True, *, one_hot: bool = False) -> Study:
    """Quitting smoking and weight: the NHANES I Epidemiologic Follow-up Study.

    Treatment is quitting between 1971 and 1982, the outcome the change of weight in kg; nine
    covariates: sex, race, age, education, cigarettes a day, years of smoking, exercise, activity,
    weight in 1971 (kg).

    Args:
        complete: the 1566 people whose weight of 1982 is known; otherwise all 1629, whose unknown
            outcomes are NaN.
        one_hot: education, exercise and activity as indicators of each level but the first instead
            of their ordinal codes.

    Raises:
        ImportError: causaldata is not installed.
    """
    package = _require("causaldata")
    frame = (package.nhefs_complete if complete else package.nhefs).load_pandas().data
    names = ["sex", "race", "age", "education", "smokeintensity", "smokeyrs", "exercise", "active"]
    covariates = frame_columns(frame, [*names, "wt71"])
    names.append("wt71")
    if one_hot:
        covariates, names = _indicators(covariates, names, ("education", "exercise", "active"))
    return Study(
        covariates,
        binary_column(frame, "qsmk"),
        frame["wt82_71"].to_numpy(np.float64)[:, None],
        tuple(names),
        ("wt82_71",),
        "NHEFS",
    )


def load_nsw(
    controls: str = "exp", *, transform: str = "none", max_controls: int | None = None
) -> Study:
    """Job training and earnings: the National Supported Work trial, treated men.

    Covariates: age, years of schooling, black, hispanic, married, no degree, earnings of 1974 and
    1975 (dollars); the outcome is the earnings of 1978.

    Args:
        controls: "exp", the 260 men whom the trial left untreated, or "cps", 15,992 men of the
            Current Population Survey.
        transform: of the outcome: "none" (dollars), "thousands", "log1p", or "pair" (thousands of
            dollars, and whether there were any).
        max_controls: keep that many controls, drawn at random, always the same ones.

    Raises:
        ValueError: another option, or more controls than there are.
        ImportError: causaldata is not installed.
    """
    checks.check_choice("controls", controls, ("exp", "cps"))
    checks.check_choice("transform", transform, tuple(_EARNINGS))
    package = _require("causaldata")
    names = ["age", "educ", "black", "hisp", "marr", "nodegree", "re74", "re75"]
    columns = [*names, "treat", "re78"]
    rows = frame_columns(package.nsw_mixtape.load_pandas().data, columns)
    if controls == "cps":
        survey = frame_columns(package.cps_mixtape.load_pandas().data, columns)
        rows = np.concatenate([rows[rows[:, -2] == 1], survey])
    if max_controls is not None:
        rows = rows[_keep_controls(rows[:, -2] == 0, max_controls)]
    outcome_names, outcome = _EARNINGS[transform]
    return Study(
        rows[:, :-2],
        rows[:, -2].astype(int),
        outcome(rows[:, -1:]),
        tuple(names),
        outcome_names,
        "NSW" if controls == "exp" else "NSW and CPS",
    )


def _keep_controls(is_control: np.ndarray, count: int) -> np.ndarray:
    """Rows of everybody treated and of `count` controls, in their order."""
    controls = np.flatnonzero(is_control)
    checks.check_integer("max_controls", count, low=1, high=len(controls))
    drawn = np.random.default_rng(0).choice(len(controls), count, replace=False)
    return np.sort(np.concatenate([np.flatnonzero(~is_control), controls[drawn]]))


_EARNINGS = {
    "none": (("re78",), lambda y: y),
    "thousands": (("re78 / 1000",), lambda y: y / 1000),
    "log1p": (("log(1 + re78)",), np.log1p),
    "pair": (("re78 / 1000", "re78 > 0"), lambda y: np.hstack([y / 1000, y > 0])),
}


def _wanted(names, known: list[str]) -> list[str]:
    wanted = known if names is None else list(names)
    if not wanted:
        raise ValueError("names: expected at least one column, got none")
    for name in wanted:
        checks.check_known("column", name, known)
        if known.count(name) > 1 or wanted.count(name) > 1:
            raise ValueError(f"column: expected distinct names, got {name!r} more than once")
    return wanted


def _checked(table: Table) -> Table:
    for name, column in table.columns.items():
        checks.check_shape(f"column {name!r}", column, (None,))
    checks.check_same_length(**{f"column {n!r}": c for n, c in table.columns.items()})
    checks.check_min_rows(table.source, next(iter(table.columns.values())), 1)
    return table


def _from_series(series) -> np.ndarray:
    """A pandas column: extension types as objects, whose missing entries are NaN."""
    if isinstance(series.dtype, np.dtype):
        return series.to_numpy()
    return series.to_numpy(dtype=object, na_value=np.nan)


def _numbers(name: str, column: np.ndarray) -> np.ndarray:
    label = f"column {name!r}"
    if column.dtype.kind not in "biufOUSV":
        raise ValueError(f"{label}: expected numbers, got {column.dtype}")
    try:
        values = column.astype(np.float64)
    except (TypeError, ValueError):
        values = _read_numbers(label, column)
    missing = np.isnan(values)
    checks.check_rows(label, ~missing, "no missing values", f"{int(missing.sum())}")
    checks.check_finite(label, values)
    return values


def _read_numbers(label: str, column: np.ndarray) -> np.ndarray:
    """Entry by entry, for a column that did not convert: what is text is named."""
    values, text = np.full(len(column), np.nan), np.zeros(len(column), bool)
    for row, entry in enumerate(column):
        try:
            values[row] = float(entry)
        except (TypeError, ValueError):
            text[row] = str(entry).strip().lower() not in _MISSING
    if text.any():
        first = str(column[np.argmax(text)])[:40]
        checks.check_rows(label, ~text, "numbers (encode groups as 0 and 1)", f"text {first!r}")
    return values


def _read_csv(path: Path, names, max_bytes: int) -> Table:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: expected a CSV file, got nothing of that name")
    size = path.stat().st_size
    if not 0 < size <= max_bytes:
        raise ValueError(f"{path.name}: expected 1 to {max_bytes} bytes, got {size}")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _checked(_read_rows(file, path, names))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path.name}: expected a CSV table in UTF-8, got {error}") from error


def _read_rows(file, path: Path, names) -> Table:
    """The wanted columns as text; a line that is longer or shorter than the first is an error."""
    reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
    known = next(reader, [])
    wanted = _wanted(names, known)
    columns = [(known.index(name), []) for name in wanted]
    for row in reader:
        if row and len(row) != len(known):
            raise ValueError(
                f"{path.name}: expected {len(known)} fields in line {reader.line_num}, "
                f"got {len(row)}"
            )
        for position, column in columns if row else ():
            column.append(row[position])
    # objects: in a text array every entry would take the room of the longest
    arrays = {name: np.array(c, object) for name, (_, c) in zip(wanted, columns, strict=True)}
    return Table(arrays, path.name)


def _indicators(covariates, names, categorical):
    columns, labels = [], []
    for name, column in zip(names, covariates.T, strict=True):
        if name not in categorical:
            columns.append(column)
            labels.append(name)
            continue
        for level in np.unique(column)[1:]:
            columns.append((column == level).astype(np.float64))
            labels.append(f"{name}={level:g}")
    return np.stack(columns, axis=1), labels


def _require(module: str):
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f'{module} is not installed: pip install "jaxicml[data]"') from error
