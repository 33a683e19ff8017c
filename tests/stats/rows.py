"""Public entries of `jaxicml.stats`."""

import numpy as np

from jaxicml.stats import intervals, significance
from tests.contract import Bad, Row

NORMAL = lambda *shape: lambda rng: (rng.normal(size=shape),)


def counts(rng):
    trials = rng.integers(5, 50, 4)
    return rng.binomial(trials, 0.3).astype(float), trials.astype(float)


def family(rng):
    keep = np.array([True, False, True])
    return rng.normal(size=3), rng.normal(size=(3, 20)), rng.uniform(1, 2, 3), keep


def labelled(rng):
    return rng.permutation(np.repeat([0, 1], 6)), rng.normal(size=12)


def permutation_test(key, labels, outcome):
    return significance.permutation_p_value(
        key, lambda a: outcome @ a, labels, num_permutations=99, batch_size=8
    )


ROWS = [
    Row(
        "stats.intervals.wilson_interval",
        intervals.wilson_interval,
        counts,
        vmap=(0, 1),
        grad=(0,),
        bad=(
            Bad("no trials", {1: 0}, "trials: expected a finite number above 0"),
            Bad("too many", {0: 7, 1: 5}, r"successes / trials: expected values in \[0"),
        ),
    ),
    Row(
        "stats.intervals.mean_interval",
        intervals.mean_interval,
        NORMAL(9, 2),
        vmap=(0,),
        grad=(0,),
        bad=(Bad("one row", {0: np.ones(1)}, "values: expected at least 2 rows, got 1"),),
    ),
    Row(
        "stats.intervals.bootstrap_interval",
        lambda key, values: intervals.bootstrap_interval(key, values, num_samples=100),
        NORMAL(9, 2),
        random=True,
        vmap=(0,),
        grad=(0,),
        bad=(Bad("no row", {0: np.ones((0, 2))}, "values: expected at least 1 rows, got 0"),),
    ),
    Row(
        "stats.intervals.slope_interval",
        intervals.slope_interval,
        lambda rng: (np.linspace(0, 1, 5), rng.normal(size=(3, 5))),
        vmap=(0, 1),
        grad=(0, 1),
        bad=(
            Bad("lengths", {0: np.arange(4.0)}, r"y: expected shape \(any, 4\), got \(3, 5\)"),
            Bad("no spread", {0: np.ones(5)}, "spread of x: expected a finite number above 0"),
            Bad("one seed", {1: np.ones((1, 5))}, "y: expected at least 2 rows, got 1"),
        ),
    ),
    Row(
        "stats.intervals.student_t_quantile",
        lambda level, dof: intervals.student_t_quantile(level, dof, dtype=level.dtype),
        lambda rng: (np.array(rng.uniform(0.5, 0.99)), np.array(rng.uniform(1, 30))),
        vmap=(0, 1),
        bad=(Bad("level", {0: np.ones(())}, "level: expected values strictly between 0 and 1"),),
    ),
    Row(
        "stats.significance.quadratic_form_draws",
        significance.quadratic_form_draws,
        lambda rng: (rng.normal(size=(7, 4)), rng.normal(size=(4, 4))),
        vmap=(0, 1),
        grad=(0, 1),
        bad=(Bad("shape", {1: np.ones((3, 4))}, r"form: expected shape \(4, 4\), got \(3, 4\)"),),
    ),
    Row(
        "stats.significance.monte_carlo_p_value",
        significance.monte_carlo_p_value,
        lambda rng: (np.array(rng.normal()), rng.normal(size=99)),
        vmap=(0, 1),
        bad=(Bad("no draws", {1: np.ones(0)}, "null: expected at least 1 rows, got 0"),),
    ),
    Row(
        "stats.significance.upper_quantile",
        significance.upper_quantile,
        lambda rng: (rng.normal(size=99), np.array(rng.uniform(0.05, 0.5))),
        vmap=(0, 1),
        grad=(0,),
        bad=(
            Bad("alpha", {1: 0}, "alpha: expected values strictly between 0 and 1, got 0"),
            Bad("matrix", {0: np.ones((2, 2))}, r"null: expected shape \(any\), got \(2, 2\)"),
        ),
    ),
    Row(
        "stats.significance.max_over_family",
        significance.max_over_family,
        family,
        vmap=(0, 1, 2, 3),
        grad=(0, 1, 2),
        bad=(
            Bad("nulls", {1: np.ones((2, 9))}, r"nulls: expected shape \(3, any\), got \(2, 9\)"),
            Bad("scales", {2: np.ones(2)}, r"scales: expected shape \(3\), got \(2,\)"),
            Bad("keep", {3: np.ones(4, bool)}, r"keep: expected shape \(3\), got \(4,\)"),
        ),
    ),
    Row(
        "stats.significance.permutation_p_value",
        permutation_test,
        labelled,
        random=True,
        vmap=(0, 1),
        bad=(Bad("labels", {0: np.ones((2, 6))}, r"labels: expected shape \(any\), got \(2, 6\)"),),
    ),
    Row(
        "stats.significance.permute_within_strata",
        significance.permute_within_strata,
        lambda rng: (rng.normal(size=12), rng.integers(0, 3, 12)),
        random=True,
        vmap=(0, 1),
        bad=(Bad("strata", {1: np.ones(3, int)}, r"strata: expected shape \(12\), got \(3,\)"),),
    ),
    Row(
        "stats.significance.quantile_strata",
        lambda scores: significance.quantile_strata(scores, num_strata=3),
        NORMAL(12),
        vmap=(0,),
        dtypes=(),
        bad=(Bad("few", {0: np.ones(2)}, "num_strata: expected a whole number of at least 1 and"),),
    ),
    Row(
        "stats.significance.benjamini_hochberg",
        significance.benjamini_hochberg,
        lambda rng: (rng.uniform(size=9),),
        vmap=(0,),
        grad=(0,),
        bad=(Bad("above 1", {0: np.full(3, 1.5)}, r"p_values: expected values in \[0"),),
    ),
]
