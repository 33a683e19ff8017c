import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import spatial, stats

from jaxicml.methods.sinkhorn_effect import analysis, cross_fit, epsilon_grid, estimator, folds
from jaxicml.methods.sinkhorn_effect.analysis import estimate
from jaxicml.methods.sinkhorn_effect.laws import conditional_law, kernel_law, select_bandwidth
from jaxicml.methods.sinkhorn_effect.propensity import logistic_propensity
from tests.methods.sinkhorn_effect import cheap

N, SHIFT = 200, 3.0
COLUMNS = {"treatment": "drug", "outcome": "pain", "covariates": ["age", "dose"]}


def people(seed=0, shift=SHIFT):
    """Older people take the drug more often and have more pain: the naive difference is wrong."""
    rng = np.random.default_rng(seed)
    age, dose = rng.normal(size=(2, N))
    drug = (rng.random(N) < 1 / (1 + np.exp(-0.7 * age))).astype(int)
    pain = shift * drug + age + rng.normal(size=N)
    return {"age": age, "dose": dose, "drug": drug, "pain": pain}


def analysed(table, **options):
    return estimate(table, **(COLUMNS | {"num_null": 199} | options))


@pytest.fixture(scope="module")
def report():
    return analysed(people())


def close(one, other, rtol=1e-7):
    """Two dicts of numbers agree in everything but names."""
    strip = lambda value: (
        [strip(v) for k, v in sorted(value.items())]
        if isinstance(value, dict)
        else [strip(v) for v in value]
        if isinstance(value, list)
        else np.nan
        if value is None or isinstance(value, str)
        else float(value)
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol, 1e-9), strip(one), strip(other)
    )


def test_confounded_shifts_are_recovered(report):
    # equal laws but for a shift: STE is half its square at every ε
    reports = [report, *(analysed(people(seed)) for seed in range(1, 8))]
    inside = lambda interval, value: interval[0] < value < interval[1]
    assert sum(inside(r.ste_interval, SHIFT**2 / 2) for r in reports) >= 6
    assert sum(inside(r.distance_interval, SHIFT) for r in reports) >= 6
    assert all(r.reject for r in reports)
    distances = [r.distance for r in reports]
    naive = [
        table["pain"][table["drug"] == 1].mean() - table["pain"][table["drug"] == 0].mean()
        for table in map(people, range(8))
    ]
    error = np.std(distances) / np.sqrt(8)
    assert abs(np.mean(distances) - SHIFT) < 3 * error < np.mean(naive) - SHIFT


@pytest.mark.slow
def test_the_numbers_are_those_of_cross_fit(x64, monkeypatch):
    """Equal seeds give equal splits, nuisances and draws, whatever the terms of a fold are."""
    monkeypatch.setattr(estimator, "fold_terms", cheap.fold_terms)
    options = ("num_null", "reference", "tol", "max_iter")
    compiled = jax.jit(cheap.fold_terms, static_argnames=options)
    monkeypatch.setattr(analysis, "_fold_terms", compiled)
    data, report = people(), analysed(people())
    x = np.stack([data["age"], data["dose"]], 1)
    x = jnp.asarray((x - x.mean(0)) / x.std(0))
    a, y = jnp.asarray(data["drug"], float), jnp.asarray(data["pain"])[:, None]

    def law_fn(key, x, a, y, x_eval):
        bandwidth = select_bandwidth(x, a, y, jnp.asarray(analysis.BANDWIDTHS)).bandwidth
        return kernel_law(x, a, y, x_eval, bandwidth=bandwidth)

    @jax.jit
    def crossed(key, x, a, y):
        return cross_fit(
            key,
            x,
            a,
            y,
            propensity_fn=lambda key, x, a: logistic_propensity(x, a),
            law_fn=law_fn,
            epsilons=epsilon_grid(y),
            num_null=199,
        )

    result, table = crossed(jax.random.key(0), x, a, y), report.by_epsilon
    for name in ("plugin", "onestep", "second_order", "se", "ci_low", "ci_high", "p_value"):
        np.testing.assert_allclose(getattr(table, name), getattr(result.per_eps, name), rtol=1e-8)
    np.testing.assert_allclose(table.regime_ratio, result.regime_ratio, rtol=1e-8)
    np.testing.assert_array_equal(table.kept, result.kept)
    assert report.p_value == result.p_value
    assert 1 / 200 < result.p_value < 1


def structured(table):
    fields = [(name, column.dtype) for name, column in table.items()]
    return np.array(list(zip(*table.values(), strict=True)), fields)


@pytest.mark.parametrize("form", ["frame", "csv", "structured", "boolean", "reversed"])
def test_every_form_of_a_table_says_the_same(report, form, tmp_path):
    table = people()
    if form == "frame":
        table = pd.DataFrame(table, index=np.arange(N)[::-1])
    elif form == "csv":
        pd.DataFrame(table).to_csv(tmp_path / "people.csv", index=False)
        table = tmp_path / "people.csv"
    elif form == "structured":
        table = structured(table)
    elif form == "boolean":
        table["drug"] = table["drug"] == 1
    else:
        table = dict(reversed(table.items()))
    assert analysed(table).to_dict() == report.to_dict()


def test_arrays_need_no_table(report):
    table = people()
    covariates = np.stack([table["age"], table["dose"]], axis=1)
    plain = analysed(None, treatment=table["drug"], outcome=table["pain"], covariates=covariates)
    assert (plain.treatment, plain.outcomes) == ("treatment", ("outcome",))
    assert plain.covariates == ("covariate 1", "covariate 2")
    close(plain.to_dict(), report.to_dict(), rtol=0)
    frame = pd.DataFrame(table)
    named = analysed(
        None,
        treatment=frame["drug"],
        outcome=frame[["pain"]],
        covariates=frame[["age", "dose"]],
    )
    assert named.to_dict() == report.to_dict()


def test_order_and_units_of_covariates_do_not_matter(report):
    table = people()
    table["dose"] = 1000 * table["dose"] + 1e4
    other = analysed(table, covariates=["dose", "age"])
    close(other.to_dict(), report.to_dict())


def test_outcome_units_scale_the_effect_and_leave_the_test(report):
    table = people()
    table["pain"] = 16 * table["pain"] + 1000
    other = analysed(table)
    assert other.p_value == report.p_value
    np.testing.assert_allclose(other.by_epsilon.p_value, report.by_epsilon.p_value)
    for name in ("epsilon", "plugin", "onestep", "second_order", "se", "ci_low", "ci_high"):
        one, two = getattr(report.by_epsilon, name), getattr(other.by_epsilon, name)
        np.testing.assert_allclose(two, 256 * one, rtol=1e-6)
    assert other.distance == pytest.approx(16 * report.distance, rel=1e-6)
    np.testing.assert_allclose(other.average.effect, 16 * report.average.effect)
    shown, before = other.distributions[0], report.distributions[0]
    np.testing.assert_allclose(shown.grid, 16 * before.grid + 1000)
    np.testing.assert_allclose(shown.cdf1, before.cdf1)


def test_swapping_the_arms_swaps_the_report(report):
    table = people()
    table["drug"] = 1 - table["drug"]
    other = analysed(table)
    np.testing.assert_allclose(other.by_epsilon.onestep, report.by_epsilon.onestep, rtol=1e-5)
    assert other.p_value == report.p_value
    np.testing.assert_allclose(other.average.effect, -report.average.effect)
    shown, before = other.distributions[0], report.distributions[0]
    np.testing.assert_allclose(shown.cdf1, before.cdf0)
    assert other.overlap.effective_treated == pytest.approx(report.overlap.effective_control)
    assert (other.n_treated, other.n_control) == (report.n_control, report.n_treated)


def own_propensity(key, x, a):
    return lambda x: 0.5 + 0.3 * np.tanh(np.asarray(x)[:, 0])


def own_law(key, x, a, y, x_eval):
    rows = np.tile(np.arange(1.0, len(y) + 1), (len(x_eval), 1))
    arms = (rows * (np.asarray(a) == arm) for arm in (1, 0))
    weights1, weights0 = (jnp.asarray(arm / arm.sum(1, keepdims=True)) for arm in arms)
    return conditional_law(y, y, weights1, weights0, shared=True)


def loops(table, seed=0):
    """Doubly robust scores of a function of the outcome under the nuisances above, row by row."""
    age = (table["age"] - table["age"].mean()) / table["age"].std()
    with jax.enable_x64(True):
        split_key, _ = jax.random.split(jax.random.key(seed))
        splits = jax.tree.map(np.asarray, folds.split_indices(split_key, N, 2))

    def scores(values, arm):
        """`values` holds the function at the outcome of each row."""
        found = {}
        for train, evaluate in splits:
            weights = (np.arange(len(train)) + 1) * (table["drug"][train] == arm)
            mean = weights @ values[train] / weights.sum()
            for i in map(int, evaluate):
                e = 0.5 + 0.3 * np.tanh(age[i])
                e = e if arm else 1 - e
                found[i] = mean + (table["drug"][i] == arm) * (values[i] - mean) / e
        return np.array([found[i] for i in range(N)])

    return scores


def test_average_and_distributions_equal_loops():
    table = people()
    report = analysed(table, propensity=own_propensity, law=own_law)
    scores = loops(table)
    psi = scores(table["pain"], 1) - scores(table["pain"], 0)
    se = psi.std() / np.sqrt(N)
    np.testing.assert_allclose(report.average.effect, psi.mean())
    np.testing.assert_allclose(report.average.se, se)
    np.testing.assert_allclose(report.average.ci_high, psi.mean() + stats.norm.ppf(0.975) * se)
    assert report.average.p_value == pytest.approx(2 * stats.norm.sf(psi.mean() / se))
    (shown,) = report.distributions
    assert set(shown.grid) <= set(table["pain"])
    for arm, cdf in ((1, shown.cdf1), (0, shown.cdf0)):
        raw = scores(table["pain"][:, None] <= shown.grid, arm).mean(0)
        np.testing.assert_allclose(cdf, np.sort(np.clip(raw, 0, 1)), atol=1e-12)
    age = (table["age"] - table["age"].mean()) / table["age"].std()
    e = 0.5 + 0.3 * np.tanh(age)
    w = 1 / e[table["drug"] == 1]
    assert report.overlap.effective_treated == pytest.approx(w.sum() ** 2 / (w**2).sum())
    assert report.overlap.propensity_low == pytest.approx(e.min())
    assert (report.overlap.clipped, report.bandwidths) == (0, ())
    assert "conditional law as given" in str(report)


def test_the_grid_and_the_headline_follow_the_median_cost(report):
    pain = people()["pain"][:, None]
    median = np.median(spatial.distance.pdist(pain, "sqeuclidean") / 2)
    np.testing.assert_allclose(report.by_epsilon.epsilon, median * np.array([0.5, 1, 2, 4, 8]))
    assert report.headline == 1
    other = analysed(people(), multiples=[16, 8, 4, 2, 1.2])
    assert other.headline == 4
    given = analysed(people(), epsilons=report.by_epsilon.epsilon)
    assert given.to_dict() == report.to_dict()


def test_an_outcome_of_ties_is_scaled_by_its_mean_cost():
    table = people()
    table["pain"] = (table["pain"] > 3.5).astype(int)
    report = analysed(table)
    assert report.by_epsilon.epsilon[1] == pytest.approx(np.var(table["pain"], ddof=1))
    assert report.warnings[0] == "most pairs of outcomes are equal: ε is scaled by mean cost"
    assert np.isfinite(report.p_value)


@pytest.mark.slow
def test_a_trial_has_no_covariates():
    table = people()
    report = analysed(table, covariates=())
    constant = analysed(table | {"dose": np.full(N, 7.0)}, covariates="dose")
    close(report.to_dict() | {"covariates": [""]}, constant.to_dict(), rtol=0)
    assert "adjusted for nothing (randomised)" in str(report)
    # weights are then the shares of the arms in the other fold: about the difference of means
    share = table["drug"].mean()
    assert report.overlap.propensity_low == pytest.approx(share, abs=0.15)


@pytest.mark.slow
def test_one_split_is_another_analysis(report):
    single = analysed(people(), num_folds=1)
    assert len(single.bandwidths) == 1
    assert "one split in halves" in str(single)
    assert single.ste != report.ste


def test_another_seed_is_another_analysis(report):
    assert analysed(people(), seed=1).ste != report.ste
    assert analysed(people()).to_dict() == report.to_dict()


def test_a_given_bandwidth_is_used(report):
    assert analysed(people(), bandwidth=0.9).bandwidths == (0.9, 0.9)
    assert analysed(people(), bandwidth=0.9).ste != report.ste


def test_known_probabilities_are_taken_as_they_are():
    table = people()
    chances = np.linspace(0.2, 0.8, N)
    out = analysed(table, propensity=chances)
    np.testing.assert_allclose(
        (out.overlap.propensity_low, out.overlap.propensity_high), (0.2, 0.8)
    )


def test_known_probabilities_must_be_one_a_row(as_user):
    with pytest.raises(ValueError, match=r"propensity: expected shape \(\d+\), got \(3,\)"):
        analysed(people(), propensity=np.full(3, 0.5))
    with pytest.raises(ValueError, match="propensity: expected values strictly between 0 and 1"):
        analysed(people(), propensity=np.ones(N))


def test_everything_is_said_in_json(report):
    values = report.to_dict()
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert values["ste"] == values["by_epsilon"]["onestep"][report.headline]
    assert values["distance"] == pytest.approx(np.sqrt(2 * values["ste"]))
    leaves = jax.tree.leaves(dataclasses.asdict(report))
    assert not any(isinstance(leaf, jax.Array) for leaf in leaves)


def test_the_text_answers_in_words_and_stays_short(report):
    assert report.p_value == 1 / 200
    assert "(p ≤ 0.005)" in report.verdict
    text = str(report)
    assert f"{N} rows, {people()['drug'].sum()} treated" in text
    assert "The distribution of pain differs between treated and untreated" in text
    assert "0 outside an interval is no test" in text.replace("\n    ", " ")
    assert "units of pain" in text
    many = np.ones(40)
    long = dataclasses.replace(
        report,
        outcomes=tuple(f"outcome {i}" for i in range(40)),
        covariates=tuple(f"covariate {i}" for i in range(40)),
        average=dataclasses.replace(
            report.average, effect=many, se=many, ci_low=many, ci_high=many
        ),
        by_epsilon=type(report.by_epsilon)(
            **{
                field.name: np.repeat(getattr(report.by_epsilon, field.name), 4)
                for field in dataclasses.fields(report.by_epsilon)
            }
        ),
    )
    assert len(str(long).splitlines()) < 40
    assert "and 32 more" in str(long)
    unsure = dataclasses.replace(report, p_value=0.214, reject=False)
    assert unsure.verdict.startswith("No evidence that the distribution of pain differs")
    assert "(p = 0.21)" in unsure.verdict
    unsure = dataclasses.replace(unsure, quadratic=False)
    assert "(p = 0.21, unreliable: see the warnings)" in unsure.verdict


def test_a_negative_estimate_is_no_distance(report):
    table = dataclasses.replace(
        report.by_epsilon, onestep=np.full(5, -1.0), ci_low=np.full(5, -2.0)
    )
    low = dataclasses.replace(report, by_epsilon=table)
    assert (low.distance, low.distance_interval[0]) == (0, 0)


def test_what_did_not_converge_says_nothing():
    report = analysed(people(), epsilons=[1e-6, 1e-5, 1.0, 10.0, 100.0])
    assert not report.converged
    assert not report.by_epsilon.kept[0]
    assert np.isnan(report.by_epsilon.p_value[0])
    assert any("did not converge at ε = 1e-06" in text for text in report.warnings)
    assert report.to_dict()["by_epsilon"]["p_value"][0] is None
    assert np.isfinite(report.p_value)
    nothing = dataclasses.replace(report, p_value=np.nan, reject=False)
    assert nothing.verdict.startswith("No test of whether")
    assert nothing.to_dict()["p_value"] is None


def test_poor_overlap_small_arms_and_long_tails_are_warned_of():
    sure = lambda key, x, a: lambda x: jnp.where(x[:, 0] > 0, 1.0, 0.0)
    report = analysed(people(), propensity=sure, clip=0.1)
    assert report.overlap.clipped == 1
    assert any(
        text.startswith("100% of the propensities were clipped at 0.1") for text in report.warnings
    )
    table = people()
    few = analysed(table | {"drug": (np.arange(N) % 8 == 0).astype(int)})
    assert "the smaller arm has 12 rows in a fold: expect little power" in few.warnings
    assert few.overlap.effective_treated < 25
    assert any(text.endswith("effective rows in the treated arm") for text in few.warnings)
    report = analysed(with_an_outlier())
    assert not report.quadratic
    assert "unreliable" in report.verdict
    assert any("take larger multiples" in text for text in report.warnings)


def with_an_outlier():
    table = people()
    table["pain"][np.argmax(table["pain"])] = 20.0
    return table


@pytest.mark.slow
def test_without_the_guard_nothing_is_called_unreliable():
    assert analysed(with_an_outlier(), regime_tol=None).quadratic


def changed(**columns):
    return people() | columns


def with_entry(name, row, value):
    column = people()[name].astype(object)
    column[row] = value
    return changed(**{name: column})


BAD = [
    (
        "two",
        changed(drug=np.arange(N) % 3),
        {},
        r"column 'drug': expected only 0 and 1, .*rows 2, 5",
    ),
    ("constant", changed(drug=np.ones(N)), {}, "column 'drug': expected both arms, got only 1"),
    ("few", changed(drug=np.arange(N) < 3), {}, r"rows with drug = 1 \(for 2 folds\): .* got 3"),
    (
        "few controls",
        changed(drug=np.arange(N) > 12),
        {"num_folds": 3},
        "drug = 0 .*15 rows, got 13",
    ),
    ("missing", with_entry("pain", 7, None), {}, r"column 'pain': expected no missing .*rows 7"),
    ("missing x", with_entry("age", 3, np.nan), {}, r"column 'age': expected no missing .*rows 3"),
    (
        "missing a",
        with_entry("drug", 4, np.nan),
        {},
        r"column 'drug': expected no missing .*rows 4",
    ),
    ("text", with_entry("age", 2, "old"), {}, r"column 'age': expected numbers .*'old' \(rows 2\)"),
    ("unknown", people(), {"outcome": "pian"}, "column: .* got 'pian'; did you mean 'pain'"),
    ("repeated", people(), {"covariates": ["age", "pain"]}, "distinct names, got 'pain' more than"),
    ("still", changed(pain=np.ones(N)), {}, "standard deviation of column 'pain': .* above 0"),
    ("no outcome", people(), {"outcome": []}, "outcome: expected at least 1 rows, got 0"),
    ("two treatments", people(), {"treatment": ["drug", "dose"]}, "treatment: expected shape"),
    ("array for name", people(), {"treatment": np.ones(N)}, "treatment: expected names of columns"),
    ("name for array", None, {}, "treatment: expected an array when there is no table, got 'drug'"),
    ("not a table", 3.0, {}, "table: expected a DataFrame"),
    ("alpha", people(), {"alpha": 1.0}, "alpha: expected values strictly between 0 and 1"),
    ("folds", people(), {"num_folds": 0}, "num_folds: expected a whole number of at least 1"),
    ("draws", people(), {"num_null": 98}, "num_null: expected a whole number of at least 99"),
    ("seed", people(), {"seed": -1}, "seed: expected a whole number of at least 0"),
    ("epsilons", people(), {"epsilons": [1.0, 0.0]}, "epsilons: expected a finite number above 0"),
    ("twice", people(), {"epsilons": [1.0, 1.0]}, "epsilons: expected distinct values"),
    ("empty", people(), {"multiples": []}, "multiples: expected at least one value"),
    ("clip", people(), {"clip": 0.5}, "clip: expected a number below 0.5, got 0.5"),
    ("guard", people(), {"regime_tol": -0.1}, "regime_tol: expected values in"),
    ("reference", people(), {"reference": "arm2"}, "reference: expected one of"),
    ("propensity", people(), {"propensity": "forest"}, "propensity: expected one of"),
    ("law", people(), {"law": "forest"}, "law: expected one of"),
    ("bandwidth", people(), {"bandwidth": 0.0}, "bandwidth: expected a finite number above 0"),
    ("two laws", people(), {"bandwidth": 1.0, "law": "flow"}, "law .beside a bandwidth.: expected"),
    (
        "bad propensity",
        people(),
        {"propensity": lambda key, x, a: lambda x: np.full(len(x), 1.5)},
        "propensity: expected values in",
    ),
]


@pytest.mark.parametrize(
    ("table", "options", "match"), [b[1:] for b in BAD], ids=[b[0] for b in BAD]
)
def test_bad_input_is_named(as_user, table, options, match):
    with pytest.raises(ValueError, match=match):
        analysed(table, **options)


def test_arrays_of_different_length_are_refused(as_user):
    with pytest.raises(ValueError, match="expected equal numbers of rows"):
        estimate(treatment=np.arange(8) % 2, outcome=np.ones(9), covariates=np.ones(8))


def test_an_unlucky_split_is_refused(as_user, monkeypatch):
    treated_first = np.argsort(1 - people()["drug"])
    split = [(jnp.asarray(treated_first[:30]), jnp.asarray(treated_first[30:]))]
    monkeypatch.setattr(folds, "split_indices", lambda *_: split)
    with pytest.raises(
        ValueError, match="training rows of fold 1 with drug = 0: expected at least 2"
    ):
        analysed(people(), num_folds=1)


@pytest.mark.slow
def test_several_outcomes_are_standardised():
    table = people()
    table["sleep"] = np.random.default_rng(1).normal(size=N) - table["drug"]
    both = {"outcome": ["pain", "sleep"]}
    report = analysed(table, **both)
    np.testing.assert_allclose(report.outcome_scale, [table[k].std() for k in ("pain", "sleep")])
    assert report.unit == "standard deviations"
    other = analysed(table | {"sleep": 1000 * table["sleep"]}, **both)
    assert other.ste == pytest.approx(report.ste, rel=1e-6)
    np.testing.assert_allclose(other.average.effect, report.average.effect * [1, 1000], rtol=1e-6)
    assert other.p_value == report.p_value
    kept = analysed(table, **both, standardise_outcome=False)
    assert (kept.outcome_scale, kept.unit) == ((1.0, 1.0), "outcome units")
    close({"p": kept.average.p_value}, {"p": report.average.p_value}, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"propensity": "mlp"}, {"law": "flow"}])
def test_other_nuisances_find_the_shift_too(options):
    reports = [analysed(people(seed), **options) for seed in range(3)]
    assert all(r.reject for r in reports)
    covered = [r.distance_interval[0] < SHIFT < r.distance_interval[1] for r in reports]
    assert sum(covered) >= 2
    assert np.mean([r.distance for r in reports]) == pytest.approx(SHIFT, abs=0.3)
