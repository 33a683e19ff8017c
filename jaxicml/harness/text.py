"""Numbers, JSON and Markdown: equal numbers give equal bytes."""

import dataclasses
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["dumps", "markdown_table", "number", "plain", "rounded"]

DIGITS = 10
"""Significant digits that JSON keeps: below them, sums differ between machines."""


def rounded(value: float, digits: int = DIGITS) -> float:
    """The value to so many significant digits; NaN and infinities as they are.

    >>> rounded(1 / 3, 4)
    0.3333
    """
    kept = float(f"{value:.{digits}g}")
    return kept if math.isfinite(kept) else value  # the largest floats round up to infinity


def number(value: Any) -> str:
    """A table cell in words: four significant digits, no needless exponent.

    >>> [number(v) for v in (0.123456, 12345.6, 3, True, None, float("nan"), "text")]
    ['0.1235', '12346', '3', 'yes', '-', 'nan', 'text']
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return str(value)
    if 1e4 <= abs(value) < 1e7:
        return f"{value:.0f}"
    return f"{value:.4g}"


def plain(value: Any, digits: int = DIGITS) -> Any:
    """What JSON can hold: dataclasses, arrays, tuples and paths become dicts, lists and strings.

    Floats are rounded; NaN and infinities, which JSON has not, become the strings `"nan"`,
    `"inf"` and `"-inf"`.

    >>> plain({"a": (1.0, float("inf")), 2: None})
    {'a': [1.0, 'inf'], '2': None}
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return rounded(float(value), digits) if math.isfinite(value) else str(float(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: plain(getattr(value, field.name), digits) for field in fields}
    if isinstance(value, Mapping):
        return {str(key): plain(item, digits) for key, item in value.items()}
    to_list = getattr(value, "tolist", None)  # NumPy and JAX arrays and scalars
    if to_list is not None:
        return plain(to_list(), digits)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item, digits) for item in value)
    if isinstance(value, Iterable):
        return [plain(item, digits) for item in value]
    return str(value)


def dumps(value: Any) -> str:
    """JSON with sorted keys, rounded numbers and a final newline.

    >>> print(dumps({"b": 1, "a": float("nan")}), end="")
    {
     "a": "nan",
     "b": 1
    }
    """
    text = json.dumps(plain(value), sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return text + "\n"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence]) -> str:
    r"""A Markdown table; cells are formatted by `number` and escaped.

    >>> print(markdown_table(["n", "a|b"], [[1, 0.5]]))
    | n | a\|b |
    | --- | --- |
    | 1 | 0.5 |
    """
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(value) -> str:
    return " ".join(number(value).split()).replace("|", "\\|")
