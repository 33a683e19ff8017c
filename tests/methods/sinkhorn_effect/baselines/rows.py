"""Rows of the comparison methods."""

import jax.numpy as jnp
import numpy as np

from jaxicml.methods.sinkhorn_effect import baselines
from jaxicml.methods.sinkhorn_effect.laws import ConditionalLaw
from tests.contract import Bad, Row, edited, entry

M = "methods.sinkhorn_effect."


twice = edited(lambda w: 2 * w)
negative = edited(np.negative)


def observed(rng):
    """(outcome, treatment, propensity)."""
    treatment = rng.permutation(np.arange(14.0) % 2)
    outcome = rng.normal(size=(14, 2)) + 0.5 * treatment[:, None]
    return outcome, treatment, rng.uniform(0.3, 0.7, 14)


def with_law(rng):
    """(outcome, treatment, propensity, atoms1, atoms0, weights1, weights0)."""
    weights = [rng.dirichlet(np.ones(m), 14) for m in (6, 5)]
    return *observed(rng), rng.normal(size=(6, 2)), rng.normal(size=(5, 2)), *weights


def on_law(method, **options):
    """`method` as a function of arrays, the law put together inside."""
    return lambda *args: method(*args[:-4], ConditionalLaw(*args[-4:]), **options)


BAD_OBSERVED = (
    Bad("outcome", {0: entry((2, 0), np.nan)}, "outcome: expected finite values"),
    Bad("treatment", {1: edited(lambda a: a + 1)}, "treatment: expected only 0 and 1, got 2"),
    Bad("one arm", {1: np.ones(14)}, "treatment: expected both arms, got only 1"),
)
BAD_PROPENSITY = (
    Bad("propensity", {2: np.ones(14)}, "propensity: expected values strictly between 0 and 1"),
    Bad("length", {2: np.full(3, 0.5)}, r"propensity: expected shape \(14\), got \(3,\)"),
)
BAD_LAW = (
    Bad("weights", {5: twice}, "law.weights1: expected rows that sum to 1, got a"),
    Bad("negative", {6: negative}, "law.weights0: expected non-negative weights"),
    Bad("atoms", {3: np.ones((6, 3))}, r"law.atoms1: expected shape \(any, 2\), got \(6, 3\)"),
)
BAD = BAD_OBSERVED + BAD_PROPENSITY + BAD_LAW
EVERY = tuple(range(7))

ROWS = [
    Row(
        M + "ate_aipw",
        on_law(baselines.ate_aipw),
        with_law,
        vmap=EVERY,
        grad=(0, 3, 4),
        bad=BAD,
    ),
    Row(
        M + "mmd_treatment_effect",
        on_law(baselines.mmd_treatment_effect, epsilon=1.0, num_null=99),
        with_law,
        random=True,
        vmap=EVERY,
        grad=(3, 4, 5, 6),
        bad=BAD,
    ),
    Row(
        M + "mmd_effect_aggregated",
        on_law(
            baselines.mmd_effect_aggregated, epsilons=jnp.array([0.5, 2.0]), beta=0.1, num_null=99
        ),
        with_law,
        random=True,
        vmap=EVERY,
        bad=BAD,
    ),
    Row(
        M + "dr_xkte",
        on_law(baselines.dr_xkte, bandwidth=1.0),
        with_law,
        vmap=EVERY,
        grad=(0, 3, 4),
        bad=BAD,
    ),
    Row(
        M + "ipw_kte_permutation",
        lambda *args: baselines.ipw_kte_permutation(*args, bandwidth=1.0, num_permutations=999),
        observed,
        random=True,
        vmap=(0, 1, 2),
        grad=(0,),
        bad=BAD_OBSERVED + BAD_PROPENSITY,
    ),
    Row(
        M + "ipw_sinkhorn_plugin",
        lambda *args: baselines.ipw_sinkhorn_plugin(*args, epsilon=2.0),
        observed,
        vmap=(0, 1, 2),
        grad=(0, 2),
        bad=BAD_OBSERVED + BAD_PROPENSITY,
    ),
    Row(
        M + "naive_two_sample",
        lambda *args: baselines.naive_two_sample(*args, epsilon=2.0, num_permutations=99),
        lambda rng: observed(rng)[:2],
        random=True,
        vmap=(0, 1),
        slow=True,
        bad=BAD_OBSERVED,
    ),
]
