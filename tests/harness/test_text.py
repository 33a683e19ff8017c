import dataclasses
import json
import math
import pathlib
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxicml.harness import text

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
trees = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12
)


@given(trees)
def test_json_is_valid_and_a_fixed_point(tree):
    first = text.dumps(tree)
    read = json.loads(first, parse_constant=pytest.fail)
    assert text.dumps(read) == first


def test_json_does_not_depend_on_the_order_of_keys():
    assert text.dumps({"a": 1, "b": 2}) == text.dumps({"b": 2, "a": 1})


def test_plain_knows_the_types_of_results():
    @dataclasses.dataclass
    class Config:
        path: pathlib.Path
        names: frozenset

    assert text.plain(Config(pathlib.Path("a/b"), frozenset("ba"))) == {
        "path": "a/b",
        "names": ["a", "b"],
    }
    assert text.plain([np.arange(2), jnp.float32(0.5), np.bool_(True)]) == [[0, 1], 0.5, True]
    assert text.plain(jnp.array([math.inf, -math.inf, math.nan])) == ["inf", "-inf", "nan"]


@given(st.floats(1e-300, 1e300), st.sampled_from([-1, 1]))
def test_rounded_keeps_ten_digits(size, sign):
    kept = text.rounded(sign * size)
    assert text.rounded(kept) == kept
    assert kept == pytest.approx(sign * size, rel=5.0001e-10)


def test_rounding_never_makes_an_infinity():
    assert math.isfinite(text.rounded(sys.float_info.max))
    assert text.rounded(0.0) == 0.0
    assert math.isnan(text.rounded(math.nan))


@given(st.lists(st.text(alphabet="a|\n "), min_size=3, max_size=3))
def test_markdown_rows_stay_rows(cells):
    lines = text.markdown_table(["a", "b", "c"], [cells]).split("\n")
    assert len(lines) == 3
    assert lines[2].replace("\\|", "").count("|") == 4
