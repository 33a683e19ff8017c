"""Public entries of `jaxicml.data`."""

import numpy as np

from jaxicml.data import sources, tabular
from tests.contract import Bad, Row


def people(rng):
    return rng.normal(50, 9, 8), rng.permutation([0, 1] * 4)


def table(age, smokes):
    return {"age": age, "smokes": smokes}


MISSING = np.array([40.0, np.nan, 50, 60, 70, 80, 90, 30])

ROWS = [
    Row(
        "data.tabular.frame_columns",
        lambda age, smokes: tabular.frame_columns(table(age, smokes), ["age", "smokes"]),
        people,
        host=True,
        bad=(
            Bad("missing", {0: MISSING}, r"column 'age': expected no missing values, .*rows 1"),
            Bad("length", {0: np.ones(3)}, "expected equal numbers of rows"),
            Bad("matrix", {0: np.ones((8, 2))}, r"column 'age': expected shape \(any\)"),
        ),
        also=("data.tabular.as_table",),
    ),
    Row(
        "data.tabular.binary_column",
        lambda age, smokes: tabular.binary_column(table(age, smokes), "smokes"),
        people,
        host=True,
        bad=(
            Bad("two", {1: np.arange(8) % 3}, r"column 'smokes': expected only 0 and 1, .*rows 2"),
            Bad("one arm", {1: np.ones(8)}, "column 'smokes': expected both arms"),
        ),
    ),
    Row(
        "data.tabular.load_nhefs",
        tabular.load_nhefs,
        lambda rng: (True,),
        host=True,
    ),
    Row(
        "data.tabular.load_nsw",
        tabular.load_nsw,
        lambda rng: ("exp",),
        host=True,
        bad=(Bad("controls", {0: "psid"}, "controls: expected one of"),),
    ),
    Row(
        "data.sources.load",
        sources.load,
        lambda rng: ("brown", "ca01"),
        host=True,
        bad=(
            Bad("source", {0: "browne"}, "name: expected one of .*; did you mean 'brown'"),
            Bad("file", {1: "ca1"}, "path: expected one of .*; did you mean 'ca01'"),
        ),
        also=("data.sources.find_source", "data.sources.sources_for", "data.fetching.fetch"),
    ),
]
