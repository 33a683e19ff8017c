"""Tables from frames, dicts, arrays and files; the two studies against published numbers."""

import sys

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest

from jaxicml.data import tabular
from jaxicml.data.tabular import as_table, binary_column, frame_columns

VALUES = {"age": [42, 36, 56], "weight": [79.5, 58.25, 57.0], "smokes": [True, False, True]}
NUMBERS = np.array([[79.5, 42, 1], [58.25, 36, 0], [57.0, 56, 1]])
ORDER = ["weight", "age", "smokes"]


def structured():
    rows = list(zip(*VALUES.values(), strict=True))
    return np.array(rows, dtype=[("age", "i2"), ("weight", "f4"), ("smokes", "?")])


def csv_file(folder, text, name="people.csv", encoding="utf-8"):
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


PEOPLE = "age,weight,smokes\n42,79.5,1\n36,58.25,0\n56,57.0,1\n"
MAKE = {
    "frame": lambda folder: pd.DataFrame(VALUES),
    "nullable": lambda folder: pd.DataFrame(VALUES).convert_dtypes(),
    "category": lambda folder: pd.DataFrame(VALUES).astype({"age": "category"}),
    "text category": lambda folder: pd.DataFrame(VALUES).astype({"age": str}).astype("category"),
    "dict": lambda folder: VALUES,
    "structured": lambda folder: structured(),
    "table": lambda folder: as_table(VALUES),
    "csv": lambda folder: csv_file(folder, PEOPLE),
    "csv as str": lambda folder: str(csv_file(folder, PEOPLE)),
    "csv with mark": lambda folder: csv_file(folder, PEOPLE, encoding="utf-8-sig"),
    "csv of windows": lambda folder: csv_file(folder, PEOPLE.replace("\n", "\r\n")),
    "tsv": lambda folder: csv_file(folder, PEOPLE.replace(",", "\t"), "people.tsv"),
    "quoted": lambda folder: csv_file(
        folder, 'age,"weight",smokes,"a, b"\n"42",79.5,1,"x, y"\n36,58.25,0,\n56,57.0,1,\n\n'
    ),
}


@pytest.mark.parametrize("kind", MAKE)
def test_columns_in_the_order_asked_for(kind, tmp_path):
    got = frame_columns(MAKE[kind](tmp_path), ORDER)
    np.testing.assert_array_equal(got, NUMBERS)
    assert got.dtype == np.float64


@pytest.mark.parametrize("kind", MAKE)
def test_binary_column(kind, tmp_path):
    got = binary_column(MAKE[kind](tmp_path), "smokes")
    np.testing.assert_array_equal(got, [1, 0, 1])
    assert got.dtype.kind == "i"


@pytest.mark.parametrize("kind", MAKE)
def test_an_unknown_column_gets_a_suggestion(kind, tmp_path, as_user):
    table = MAKE[kind](tmp_path)
    with pytest.raises(ValueError, match=r"column: expected .*'wieght'; did you mean 'weight'"):
        frame_columns(table, ["wieght"])


@pytest.mark.parametrize("missing", ["", "NA", " ", "nan", "null", None, np.nan, pd.NA])
def test_missing_values_name_the_column_and_the_rows(missing, as_user):
    table = {"age": np.array([42, missing, 56, missing, 1.5], object)}
    message = r"column 'age': expected no missing values, got 2 \(rows 1, 3\)"
    for form in (table, pd.DataFrame(table)):
        with pytest.raises(ValueError, match=message):
            frame_columns(form, ["age"])


@pytest.mark.parametrize(
    "column", [pd.array([1, None, 3], "Int64"), pd.Categorical(["1", None, "3"])]
)
def test_missing_values_of_extension_types(column, as_user):
    with pytest.raises(ValueError, match=r"column 'x': expected no missing values, got 1 \(rows 1"):
        frame_columns(pd.DataFrame({"x": column}), ["x"])


def test_missing_values_of_a_file(tmp_path, as_user):
    path = csv_file(tmp_path, "age,weight\n42,\n36,58\n56,NA\n")
    with pytest.raises(ValueError, match=r"column 'weight': expected no missing .* \(rows 0, 2\)"):
        frame_columns(path, ["age", "weight"])
    np.testing.assert_array_equal(frame_columns(path, ["age"]), [[42], [36], [56]])


def test_infinite_values(as_user):
    with pytest.raises(ValueError, match=r"column 'x': expected finite values.*rows 1"):
        frame_columns({"x": [0.0, np.inf]}, ["x"])


@pytest.mark.parametrize("form", [dict, pd.DataFrame, lambda v: pd.DataFrame(v, dtype="category")])
def test_text_names_the_column_and_the_rows(form, as_user):
    table = form({"sex": np.array(["0", "1", "male", "0", "female"], object)})
    message = r"column 'sex': expected numbers .*, got text 'male' \(rows 2, 4\)"
    with pytest.raises(ValueError, match=message):
        binary_column(table, "sex")


@pytest.mark.parametrize("column", [np.array(["2020-01-01"], "M8[D]"), np.array([1j])])
def test_other_types_are_no_numbers(column, as_user):
    with pytest.raises(ValueError, match=r"column 'x': expected numbers, got (datetime64|complex)"):
        frame_columns({"x": column}, ["x"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, 1, 2, 1], r"column 't': expected only 0 and 1, got 2\.0 \(rows 2\)"),
        ([1, 1], "column 't': expected both arms, got only 1"),
        (["yes", "no"], r"column 't': expected numbers .*, got text 'yes' \(rows 0, 1\)"),
    ],
)
def test_a_treatment_that_is_not_binary(values, message, as_user):
    with pytest.raises(ValueError, match=message):
        binary_column({"t": values}, "t")


@pytest.mark.parametrize(
    ("table", "names", "message"),
    [
        ([[1, 2]], ["a"], "table: expected a DataFrame, .*, got list"),
        (np.ones((2, 2)), ["a"], "table: expected a DataFrame, .*, got ndarray"),
        ({"a": [1]}, [], "names: expected at least one column"),
        ({}, None, "names: expected at least one column"),
        ({"a": [1]}, ["a", "a"], "expected distinct names, got 'a' more than once"),
        ({"a": []}, ["a"], "table: expected at least 1 rows, got 0"),
        ({"a": [[1, 2]]}, ["a"], r"column 'a': expected shape \(any\), got \(1, 2\)"),
        ({"a": [1], "b": [1, 2]}, ["a", "b"], "expected equal numbers of rows"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), ["a"], "expected distinct names, got 'a'"),
        (pd.DataFrame({"a": []}), ["a"], "expected at least 1 rows, got 0"),
    ],
)
def test_what_is_no_table(table, names, message, as_user):
    with pytest.raises(ValueError, match=message):
        as_table(table, names)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "people.csv: expected 1 to .* bytes, got 0"),
        ("a,b\n", "people.csv: expected at least 1 rows, got 0"),
        ("\n\n", "names: expected at least one column"),
        ("a,a\n1,2\n", "expected distinct names, got 'a'"),
        ("a,b\n1,2\n3,5,1\n", "people.csv: expected 2 fields in line 3, got 3"),
        ("a,b\n1,2\n3\n", "people.csv: expected 2 fields in line 3, got 1"),
        ("a,b\n1," + "9" * 200_000 + "\n", "people.csv: expected a CSV table in UTF-8, got field"),
    ],
)
def test_files_that_are_no_table(text, message, tmp_path, as_user):
    with pytest.raises(ValueError, match=message):
        as_table(csv_file(tmp_path, text))


def test_files_that_are_not_even_text(tmp_path, as_user):
    path = tmp_path / "model.pkl"
    path.write_bytes(b"\x80\x04\x95cposix\nsystem\n")
    with pytest.raises(ValueError, match=r"model\.pkl: expected a CSV table in UTF-8"):
        as_table(path)
    with pytest.raises(FileNotFoundError, match="expected a CSV file, got nothing of that name"):
        as_table(tmp_path / "nowhere.csv")
    with pytest.raises(FileNotFoundError, match="expected a CSV file"):
        as_table(tmp_path)


def test_a_large_file_is_refused_before_it_is_read(tmp_path, as_user):
    path = tmp_path / "large.csv"
    with path.open("wb") as file:
        file.truncate((1 << 30) + 1)  # sparse: takes no room
    with pytest.raises(ValueError, match=r"large\.csv: expected 1 to 1073741824 bytes"):
        as_table(path)
    small = csv_file(tmp_path, PEOPLE)
    with pytest.raises(ValueError, match="expected 1 to 10 bytes"):
        as_table(small, max_bytes=10)


@hypothesis.given(
    hnp.arrays(
        np.float64,
        st.tuples(st.sampled_from([1, 2, 7]), st.sampled_from([1, 3])),
        elements=st.floats(allow_nan=False, allow_infinity=False),
    )
)
def test_a_file_gives_back_what_pandas_wrote(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("csv") / "written.csv"
    names = [f"column {i}" for i in range(values.shape[1])]
    pd.DataFrame(values, columns=names).to_csv(path, index=False)
    np.testing.assert_array_equal(frame_columns(path, names), values)


def test_nhefs_counts():
    study = tabular.load_nhefs()
    assert study.covariates.shape == (1566, 9)
    assert study.outcome.shape == (1566, 1)
    assert study.treatment.sum() == 403
    assert np.isfinite(study.covariates).all()
    # Hernán and Robins, section 12.1 and table 12.1
    quit_, stayed = (study.outcome[study.treatment == a, 0] for a in (1, 0))
    assert round(quit_.mean(), 1) == 4.5
    assert round(stayed.mean(), 1) == 2.0
    age = study.covariates[:, study.covariate_names.index("age")]
    assert round(age[study.treatment == 1].mean(), 1) == 46.2
    assert round(age[study.treatment == 0].mean(), 1) == 42.8


def test_nhefs_of_all_people_keeps_the_unknown_outcomes():
    study = tabular.load_nhefs(complete=False)
    assert study.covariates.shape == (1629, 9)
    assert study.treatment.sum() == 428
    assert np.isnan(study.outcome).sum() == 63


def test_nhefs_indicators_are_those_of_pandas():
    codes, dummies = tabular.load_nhefs(), tabular.load_nhefs(one_hot=True)
    frame = pd.DataFrame(codes.covariates, columns=codes.covariate_names)
    categorical = ["education", "exercise", "active"]
    theirs = pd.get_dummies(frame, columns=categorical, drop_first=True, prefix_sep="=")
    theirs.columns = [name.removesuffix(".0") for name in theirs.columns]
    assert set(theirs.columns) == set(dummies.covariate_names)
    ours = pd.DataFrame(dummies.covariates, columns=dummies.covariate_names)
    np.testing.assert_array_equal(ours[theirs.columns], theirs.astype(float))
    assert dummies.covariates.shape == (1566, 6 + 4 + 2 + 2)


def test_nsw_counts_and_difference_in_means():
    study = tabular.load_nsw()
    assert study.covariates.shape == (445, 8)
    assert study.treatment.sum() == 185
    # Dehejia and Wahba report 1794
    difference = (
        study.outcome[study.treatment == 1].mean() - study.outcome[study.treatment == 0].mean()
    )
    assert round(difference, 2) == 1794.34


def test_cps_controls():
    trial, survey = tabular.load_nsw(), tabular.load_nsw("cps")
    assert survey.covariates.shape == (185 + 15_992, 8)
    assert survey.treatment.sum() == 185
    treated = trial.treatment == 1
    np.testing.assert_array_equal(survey.covariates[:185], trial.covariates[treated])
    np.testing.assert_array_equal(survey.outcome[:185], trial.outcome[treated])


def test_transforms_of_earnings():
    dollars = tabular.load_nsw().outcome
    get = lambda transform: tabular.load_nsw(transform=transform)
    np.testing.assert_allclose(get("thousands").outcome * 1000, dollars)
    np.testing.assert_allclose(np.exp(get("log1p").outcome), 1 + dollars)
    pair = get("pair")
    np.testing.assert_array_equal(pair.outcome, np.hstack([dollars / 1000, dollars > 0]))
    assert pair.outcome_names == ("re78 / 1000", "re78 > 0")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"controls": "psid"}, r"controls: expected one of \['exp', 'cps'\], got 'psid'"),
        ({"transform": "sqrt"}, "transform: expected one of .*, got 'sqrt'"),
    ],
)
def test_nsw_options(options, message, as_user):
    with pytest.raises(ValueError, match=message):
        tabular.load_nsw(**options)


@pytest.mark.parametrize("load", [tabular.load_nhefs, tabular.load_nsw])
def test_without_causaldata(load, monkeypatch):
    monkeypatch.setitem(sys.modules, "causaldata", None)
    with pytest.raises(ImportError, match=r'pip install "jaxicml\[data\]"'):
        load()


def test_files_need_no_pandas(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    np.testing.assert_array_equal(frame_columns(csv_file(tmp_path, PEOPLE), ORDER), NUMBERS)


def test_fewer_controls_are_a_fixed_random_part_of_all():
    every, some = tabular.load_nsw("cps"), tabular.load_nsw("cps", max_controls=815)
    assert some.treatment.sum() == 185
    assert len(some.treatment) == 1000
    rows = lambda study: {tuple(row) for row in np.hstack([study.covariates, study.outcome])}
    assert rows(some) <= rows(every)
    again = tabular.load_nsw("cps", max_controls=815)
    np.testing.assert_array_equal(some.covariates, again.covariates)
    # a random part resembles the whole, the first 815 rows need not
    age = every.covariates[every.treatment == 0, 0]
    error = age.std() / np.sqrt(815)
    assert abs(some.covariates[some.treatment == 0, 0].mean() - age.mean()) < 4 * error
    assert tabular.load_nsw(max_controls=60).covariates.shape == (245, 8)
    for count in (0, 261):
        with pytest.raises(ValueError, match=r"max_controls: expected a whole .* at most 260, got"):
            tabular.load_nsw(max_controls=count)
