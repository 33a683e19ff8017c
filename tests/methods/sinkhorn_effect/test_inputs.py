"""Odd arguments of every public function: a ValueError that names the argument, nothing else.

Nothing here is compiled: every call ends in a check.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxicml.methods import sinkhorn_effect as ste
from jaxicml.methods.sinkhorn_effect import data, study
from jaxicml.stats import intervals, significance

N = 16
rng = np.random.default_rng(0)
KEY = jax.random.key(0)
single = lambda values: jnp.asarray(values, jnp.float32)
Y, X = (single(rng.normal(size=(N, 2))) for _ in range(2))
NULLS = single(rng.normal(size=(2, N)))
V, V2 = single(rng.normal(size=N)), single(rng.normal(size=2))
A, A2 = jnp.asarray(np.arange(N) % 2), jnp.asarray(np.array([0, 1]))
E, UNIFORM = single(np.full(N, 0.5)), single(np.full(N, 1 / N))
T, W, EYE = single(rng.normal(size=(4, 2))), single(np.full((N, 4), 0.25)), single(np.eye(2))
LAW = ste.ConditionalLaw(T, T, W, W)
GRID = single([1.0, 2.0])

OBSERVED = {"outcome": Y, "treatment": A}
WEIGHTED = OBSERVED | {"propensity": E, "clip": 0.02}
SAMPLE = WEIGHTED | {"law": LAW}
SOLVER = {"tol": 1e-5, "max_iter": 100}
NULL = {"key": KEY, "num_null": 99, "alpha": 0.05}
TRAINING = {"key": KEY, "x": X, "steps": 1, "width": 4, "learning_rate": 0.1, "validation": 0.2}


def without(name, options):
    return {key: value for key, value in options.items() if key != name}


def fit_propensity(key, x, treatment):
    return lambda x_eval: jnp.full(len(x_eval), 0.5)


def fit_law(key, x, treatment, outcome, x_eval):
    return None


CROSS_FIT = OBSERVED | NULL | SOLVER
CROSS_FIT |= {"x": X, "propensity_fn": fit_propensity, "law_fn": fit_law, "epsilons": GRID}
CROSS_FIT |= {"num_folds": 2, "clip": 0.02, "regime_tol": 0.1}

CALLS = {
    ste.sinkhorn_treatment_effect: SAMPLE | NULL | SOLVER | {"epsilon": 1.0},
    ste.sinkhorn_effect_aggregated: SAMPLE | NULL | SOLVER | {"epsilons": GRID, "regime_tol": 0.1},
    ste.mmd_treatment_effect: SAMPLE | NULL | {"epsilon": 1.0},
    ste.mmd_effect_aggregated: SAMPLE | NULL | {"epsilons": GRID, "beta": 0.1},
    ste.cross_fit: CROSS_FIT,
    ste.ate_aipw: SAMPLE | {"alpha": 0.05},
    ste.dr_xkte: SAMPLE | {"bandwidth": 1.0},
    ste.ipw_kte_permutation: WEIGHTED | {"key": KEY, "bandwidth": 1.0, "num_permutations": 99},
    ste.ipw_sinkhorn_plugin: WEIGHTED | SOLVER | {"epsilon": 1.0},
    ste.naive_two_sample: OBSERVED | SOLVER | {"key": KEY, "epsilon": 1.0, "num_permutations": 99},
    ste.median_cost: {"outcome": Y},
    ste.epsilon_grid: {"outcome": Y, "multiples": GRID},
    ste.sinkhorn_divergence: SOLVER | {"x": X, "y": Y, "a": UNIFORM, "b": UNIFORM, "epsilon": 1.0},
    ste.hadamard_kernel: SOLVER
    | {"atoms": Y, "mu": UNIFORM, "query_a": X, "query_b": X, "epsilon": 1.0},
    ste.first_order_eif: without("clip", SAMPLE) | SOLVER | {"epsilon": 1.0},
    ste.second_order_eif: without("clip", SAMPLE) | SOLVER | {"epsilon": 1.0},
    ste.kernel_law: {"x_train": X, "a_train": A, "y_train": Y, "x_eval": X, "bandwidth": 1.0},
    ste.select_bandwidth: {"x": X, "a": A, "y": Y, "bandwidths": GRID},
    ste.conditional_law: {"atoms1": T, "atoms0": T, "weights1": W, "weights0": W},
    ste.logistic_propensity: {"x": X, "a": A, "l2": 0.1, "num_steps": 1},
    ste.mlp_propensity: TRAINING | {"a": A, "depth": 1, "weight_decay": 0.1},
    ste.fit_flow: TRAINING | {"y": Y, "mask": A, "num_layers": 2},
    ste.clip_propensity: {"propensity": E, "eta": 0.02},
    ste.simulate_gaussian: {"key": KEY, "n": 5, "theta": 0.5, "kind": "cov", "overlap": 1.0},
    data.sample_gaussian: {"key": KEY, "n": 5, "law": LAW, "confounding": 1.0},
    ste.simulate_image_trial: {
        "key": KEY, "n": 5, "theta": 0.5, "pool0": X, "pool1": Y, "pi0": 0.0, "gamma0": 0.0,
        "gamma1": 0.5, "p": 4,
    },
    ste.gaussian_sinkhorn_divergence: {
        "mean1": V2, "cov1": EYE, "mean0": V2, "cov0": EYE, "epsilon": 1.0,
    },
    ste.bimodal_curve: {"thetas": GRID, "epsilon": 1.0, "num_points": 60},
    study.Protocol: {"n": 20, "num_null": 99, "alpha": 0.05, "clip": 0.02},
    intervals.wilson_interval: {"successes": 3, "trials": 10, "level": 0.9},
    intervals.mean_interval: {"values": Y, "level": 0.9},
    intervals.bootstrap_interval: {"key": KEY, "values": V, "level": 0.9, "num_samples": 9},
    intervals.slope_interval: {"x": GRID, "y": Y, "level": 0.9},
    intervals.student_t_quantile: {"level": 0.9, "dof": 3},
    significance.quadratic_form_draws: {"gaussians": Y, "form": EYE},
    significance.monte_carlo_p_value: {"statistic": 0.5, "null": V},
    significance.upper_quantile: {"null": V, "alpha": 0.1},
    significance.max_over_family: {"statistics": GRID, "nulls": NULLS, "scales": GRID, "keep": A2},
    significance.permutation_p_value: {
        "key": KEY, "statistic": jnp.sum, "labels": A, "num_permutations": 9, "batch_size": 4,
        "permute": jax.random.permutation,
    },
    significance.permute_within_strata: {"key": KEY, "labels": A, "strata": A},
    significance.quantile_strata: {"scores": V, "num_strata": 2},
    significance.benjamini_hochberg: {"p_values": E, "level": 0.1},
}  # fmt: skip

RAGGED = [[1.0], [1.0, 2.0]]
BROADCAST = {"successes", "trials"}
GRIDS = {"epsilons", "multiples"}
"""Arguments that are numbers or arrays, and those that may be lists."""

SHORT = {"x_train": "x", "a_train": "a", "y_train": "y"}
"""What the errors of a law call the columns of its training sample."""


def odd_values(name, value):
    """What may come instead of a good value, by its kind."""
    if name == "key":
        return 0, None, jax.random.PRNGKey(0), jax.random.split(KEY, 3)
    if callable(value) or isinstance(value, (str, ste.ConditionalLaw)):
        return None, "x", 1.0, np.ones(3)
    if isinstance(value, (int, float)):
        vectors = () if name in BROADCAST else (np.full(3, 0.5), jnp.ones(1))
        return "x", RAGGED, object(), 1j, KEY, *vectors
    lists = () if name in GRIDS or name == "null" else ([1.0, 2.0],)
    text, mixed = np.array(["a"] * N), np.array([None, 1.0])
    return "x", RAGGED, object(), text, mixed, np.ones((2, 2, 2), complex), *lists


@pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__name__)
def test_odd_values_are_refused_by_name(function, as_user):
    good = CALLS[function]
    for name, value in good.items():
        if function is data.sample_gaussian and name not in ("key", "n", "law"):
            continue  # comes after the law, which is no Gaussian one
        for odd in odd_values(name, value):
            with pytest.raises(ValueError, match=rf"{SHORT.get(name, name)}.*: expected"):
                function(**good | {name: odd})


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"propensity_fn": lambda *_: None},
            r"propensity_fn\(.*\): expected a function",
        ),
        ({"propensity_fn": lambda *_: lambda x: None}, r"propensity_fn.*\(x\): expected an array"),
        ({"propensity_fn": lambda *_: lambda x: x}, r"propensity_fn.*\(x\): expected shape \(8\)"),
        ({}, r"law_fn\(.*\): expected a ConditionalLaw, got NoneType"),
    ],
)
def test_nuisances_that_return_something_else(options, match, as_user):
    with pytest.raises(ValueError, match=match):
        ste.cross_fit(**CROSS_FIT | options)


@pytest.mark.parametrize("clip", [-0.01, 0.5, np.nan])
@pytest.mark.parametrize("function", [ste.sinkhorn_treatment_effect, ste.ate_aipw, ste.dr_xkte])
def test_one_rule_for_the_clipping_bound(function, clip, as_user):
    with pytest.raises(ValueError, match="clip: expected a"):
        function(**CALLS[function] | {"clip": clip})


def test_no_member_of_a_family(as_user):
    empty = jnp.ones(0)
    with pytest.raises(ValueError, match="statistics: expected at least 1 rows, got 0"):
        significance.max_over_family(empty, jnp.ones((0, 3)), empty)


def test_integers_have_no_interval(as_user):
    with pytest.raises(ValueError, match="values: expected float32 or float64, got int"):
        intervals.mean_interval(np.arange(5))


ROWS = 200
"""And two covariates: shapes that other tests of the front door have."""

TABLE = {"treatment": np.arange(ROWS) % 2, "outcome": rng.normal(size=ROWS)}
TABLE["covariates"] = rng.normal(size=(ROWS, 2))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"seed": 2**63}, "seed: expected a whole number of at least 0 and at most 9223"),
        ({"seed": 1.0}, "seed: expected a whole number"),
        ({"covariates": None}, "covariate: expected an array when there is no table, got None"),
        ({"outcome": [[1.0], [1.0, 2.0]]}, "outcome: expected one value a row"),
        ({"outcome": np.array([{}] * ROWS)}, "outcome'?: expected numbers"),
        ({"treatment": object()}, "treatment.*: expected"),
        ({"alpha": np.full(2, 0.05)}, "alpha: expected one number"),
        ({"clip": None}, "clip: expected one number, got None"),
        ({"bandwidth": np.ones(2)}, "bandwidth: expected one number"),
        ({"multiples": 1.0}, r"multiples: expected shape \(any\)"),
        ({"epsilons": "ab"}, "epsilons: expected an array of real numbers"),
        ({"propensity": RAGGED}, "propensity: expected an array of numbers"),
        ({"propensity": lambda *_: None}, r"propensity\(.*\): expected a function"),
        ({"propensity": lambda *_: lambda x: None}, r"propensity.*\(x\): expected an array of"),
        ({"propensity": lambda *_: lambda x: x}, r"propensity.*\(x\): expected shape \(100\)"),
        ({"law": lambda *_: None}, "law: expected a ConditionalLaw, got NoneType"),
        ({"law": np.ones(3)}, "law: expected a str, got ndarray"),
        ({"standardise_outcome": "no"}, "standardise_outcome: expected one of"),
        ({"regime_tol": "0.1"}, "regime_tol: expected a Python number, got str"),
        ({"progress": 1}, "progress: expected a Progress, got int"),
    ],
)
def test_the_front_door_names_what_is_odd(options, match, as_user):
    with pytest.raises(ValueError, match=match):
        ste.estimate(**TABLE | options)


def test_a_ragged_column_of_a_table_is_named(as_user):
    table = {"treated": [0, 1], "pay": [[1.0], [1.0, 2.0]]}
    with pytest.raises(ValueError, match="column 'pay': expected one value a row"):
        ste.estimate(table, treatment="treated", outcome="pay", covariates=())


def test_covariates_of_a_table_that_are_no_names(as_user):
    table = {"treated": [0, 1], "pay": [1.0, 2.0]}
    with pytest.raises(ValueError, match="covariates: expected names of columns of the table, got"):
        ste.estimate(table, treatment="treated", outcome="pay", covariates=None)
