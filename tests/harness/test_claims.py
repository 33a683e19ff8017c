import itertools
import json
import math

import jax
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from jaxicml.harness import claims, text
from jaxicml.harness.claims import Claim, Condition, Report, Table

NAN, INF = math.nan, math.inf
MIRROR = {a: a.replace("above", "below") for a in ("above", "not_above", "point_above")}
finite = st.floats(-1e6, 1e6)


def by_quantifiers(op, value, low, high, threshold):
    """The rule in words, over every point of a grid in the interval."""
    inside = [x for x in range(-3, 4) if low <= x <= high]
    over, under = all(x > threshold for x in inside), all(x < threshold for x in inside)
    return {
        "above": "holds" if over else "fails" if under else "inconclusive",
        "below": "holds" if under else "fails" if over else "inconclusive",
        "not_above": "fails" if over else "holds",
        "not_below": "fails" if under else "holds",
        "point_above": "holds" if value in range(threshold, 9) else "fails",
        "point_below": "holds" if value in range(-9, threshold + 1) else "fails",
    }[op]


@pytest.mark.parametrize("op", claims.RULES)
def test_every_rule_over_all_small_intervals(op):
    grid = range(-2, 3)
    for low, value, high, threshold in itertools.product(grid, grid, grid, grid):
        if low <= value <= high:
            got = Condition("x", value, (low, high), op=op, threshold=threshold).verdict
            assert got == by_quantifiers(op, value, low, high, threshold), (low, high, threshold)


@pytest.mark.parametrize(
    ("op", "below", "equal", "beyond"),
    [
        ("above", "fails", "fails", "holds"),
        ("below", "holds", "fails", "fails"),
        ("not_above", "holds", "holds", "fails"),
        ("not_below", "fails", "holds", "holds"),
        ("point_above", "fails", "holds", "holds"),
        ("point_below", "holds", "holds", "fails"),
    ],
)
def test_exact_numbers_are_never_inconclusive(op, below, equal, beyond):
    verdicts = [claims.exact("x", value, op, 5).verdict for value in (4, 5, 6)]
    assert verdicts == [below, equal, beyond]


@pytest.mark.parametrize("op", claims.RULES)
@pytest.mark.parametrize("numbers", [(NAN, (0, 1)), (0.5, (NAN, 1)), (0.5, (0, NAN)), (NAN, None)])
def test_nan_fails_and_never_hides(op, numbers):
    value, interval = numbers
    assert Condition("x", value, interval, interval is None, op, 0.5).verdict == "fails"


def test_infinite_ends():
    assert Condition("x", 3, (2, INF), op="above", threshold=1).verdict == "holds"
    assert Condition("x", 3, (-INF, INF), op="above", threshold=1).verdict == "inconclusive"
    assert claims.exact("x", INF, "below", 1).verdict == "fails"


def test_without_threshold_reported_even_when_nan():
    assert Condition("x", 1, (0, 2)).verdict == "reported"
    assert claims.exact("x", NAN).verdict == "reported"


@given(st.sampled_from([*MIRROR]), st.tuples(finite, finite, finite).map(sorted), finite)
def test_mirrored_numbers_give_mirrored_rules(op, ends, threshold):
    low, value, high = ends
    ours = Condition("x", value, (low, high), op=op, threshold=threshold)
    mirrored = Condition("x", -value, (-high, -low), op=MIRROR[op], threshold=-threshold)
    assert ours.verdict == mirrored.verdict


@given(st.tuples(finite, finite, finite, finite, finite).map(sorted), finite)
def test_a_narrower_interval_decides_at_least_as_much(ends, threshold):
    a, b, value, c, d = ends
    for op in ("above", "below"):
        wide = Condition("x", value, (a, d), op=op, threshold=threshold).verdict
        narrow = Condition("x", value, (b, c), op=op, threshold=threshold).verdict
        assert wide in ("inconclusive", narrow)


@given(st.lists(st.sampled_from(claims.WORST_FIRST), min_size=1), st.randoms())
def test_worst_is_the_worst_in_any_order(verdicts, random):
    shuffled = random.sample(verdicts, len(verdicts))
    got = claims.worst(shuffled)
    assert got in verdicts
    order = ["reported", "holds", "not run", "inconclusive", "fails"]
    assert all(order.index(got) >= order.index(verdict) for verdict in verdicts)


def test_claim_takes_the_worst_of_its_conditions():
    good, bad = claims.exact("a", 1, "above", 0), claims.exact("b", 1, "below", 0)
    open_ = Condition("c", 0, (-1, 1), op="above", threshold=0)
    assert Claim("x", "X.", [good, claims.exact("d", 1)]).verdict == "holds"
    assert Claim("x", "X.", [good, open_]).verdict == "inconclusive"
    assert Claim("x", "X.", [open_, bad, good]).verdict == "fails"
    assert Claim("x", "X.", [claims.exact("d", 1)]).verdict == "reported"
    assert Claim.not_run("x", "X.", "no data").verdict == "not run"


@given(
    st.floats(allow_nan=True),
    st.none() | st.tuples(st.floats(allow_nan=False), st.floats(allow_nan=False)).map(sorted),
    st.sampled_from([*claims.RULES]),
    finite,
)
def test_json_gives_back_the_same_verdict(value, interval, op, threshold):
    before = Condition("x", value, interval, interval is None, op, threshold, "kg")
    stored = text.dumps(Claim("id", "Sentence.", [before], paper=1.5).to_json())
    after = Claim.from_json(json.loads(stored, parse_constant=pytest.fail))
    assert after.verdict == before.verdict
    assert text.dumps(after.to_json()) == stored


def test_bad_conditions_say_what_is_wrong(as_user):
    with pytest.raises(ValueError, match=r"'x': expected an interval or exact=True, got neither"):
        Condition("x", 1)
    with pytest.raises(ValueError, match="got both"):
        Condition("x", 1, (0, 2), exact=True)
    with pytest.raises(ValueError, match="expected op and threshold together"):
        Condition("x", 1, (0, 2), op="above")
    with pytest.raises(ValueError, match="expected op and threshold together"):
        Condition("x", 1, (0, 2), threshold=1)
    with pytest.raises(ValueError, match=r"expected an op of .*'above'.*, got '>'"):
        Condition("x", 1, (0, 2), op=">", threshold=1)
    with pytest.raises(ValueError, match=r"expected an interval \(low, high\)"):
        Condition("x", 1, (2, 0))
    with pytest.raises(ValueError, match=r"expected an interval \(low, high\)"):
        Condition("x", 1, (0, 1, 2))
    with pytest.raises(ValueError, match="expected a finite threshold, got nan"):
        claims.exact("x", 1, "above", NAN)


def test_bad_claims_tables_and_reports(as_user):
    with pytest.raises(ValueError, match=r"claim 'x': expected conditions, or a reason .* neither"):
        Claim("x", "X.", [])
    with pytest.raises(ValueError, match="expected 2 cells in every row, got 1"):
        Table("t", ["a", "b"], [[1]])
    twice = [Claim.not_run("x", "X.", "no data")] * 2
    with pytest.raises(ValueError, match=r"expected different ids, got \['x'\]"):
        Report(twice)
    with pytest.raises(ValueError, match="expected letters, digits, _ and -, got 'a/b'"):
        Report([], figures={"a/b": None})


@pytest.mark.parametrize(("successes", "trials"), [(0, 20), (8, 200), (20, 20), (133, 200)])
def test_rate_has_the_wilson_interval(successes, trials, x64):
    got = claims.rate("r", successes, trials, "above", 0.5)
    want = scipy.stats.binomtest(successes, trials).proportion_ci(method="wilson")
    np.testing.assert_allclose(got.interval, (want.low, want.high), atol=1e-9)
    assert got.value == pytest.approx(successes / trials)


def test_rate_takes_counts_from_arrays_and_refuses_impossible_ones(as_user):
    assert claims.rate("r", jax.numpy.array([1, 0, 1]).sum(), 3).value == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="trials"):
        claims.rate("r", 0, 0)
    with pytest.raises(ValueError, match="successes"):
        claims.rate("r", 5, 4)


def test_paired_matches_an_independent_bootstrap(x64):
    values = np.random.default_rng(0).normal(0.3, 1, 80)
    got = claims.paired("d", values, "above", 0, unit="kg")
    rng = np.random.default_rng(1)
    reference = scipy.stats.bootstrap((values,), np.mean, method="percentile", rng=rng)
    want = reference.confidence_interval
    spread = want.high - want.low
    np.testing.assert_allclose(got.interval, (want.low, want.high), atol=0.05 * spread)
    assert got.value == pytest.approx(values.mean())
    assert claims.paired("d", values).interval == got.interval
    assert claims.paired("d", values, key=jax.random.key(1)).interval != got.interval


def test_markdown_names_everything_and_is_stable():
    def make():
        size = Condition("rate | null", 0.04, (0.02, 0.08), op="not_above", threshold=0.05)
        size = Claim("size", "Holds.", [size], paper=0.05)
        absent = Claim.not_run("real", "On data.", "not fetched")
        return Report([size, absent], [Table("Numbers", ["n", "x"], [[1, 1 / 3]], "Note.")])

    page = make().markdown("toy, scale cpu")
    assert page == make().markdown("toy, scale cpu")
    assert "| size | Holds. | 0.05 | holds |" in page
    assert "| real | On data. | - | not run: not fetched |" in page
    assert r"| size | rate \| null | 0.04 [0.02, 0.08] | not above 0.05 | holds |" in page
    assert "### Numbers\n\n| n | x |\n| --- | --- |\n| 1 | 0.3333 |\n\nNote." in page
    assert make().verdict == "not run"


def test_table_keeps_six_digits_and_plain_numbers():
    table = Table("t", ["a", "b"], [[np.float32(1 / 3), jax.numpy.int32(2)], [NAN, None]])
    assert table.to_json()["rows"] == [[0.333333, 2], ["nan", None]]
