"""Cross-fitting: nuisances from the rows outside of a fold, terms of the estimators from inside.

With K folds each is evaluated once, with both nuisances fitted on its complement; with one fold the
sample is split in halves, nuisances on the first and evaluation on the second, the paper's plain
split. What the folds say is added up by `estimator.summarise`.
"""

import functools
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxicml import checks
from jaxicml.methods.sinkhorn_effect import estimator
from jaxicml.methods.sinkhorn_effect import influence as eif
from jaxicml.methods.sinkhorn_effect.estimator import AggResult, FoldTerms
from jaxicml.methods.sinkhorn_effect.grid import checked_grid
from jaxicml.methods.sinkhorn_effect.laws import ConditionalLaw
from jaxicml.methods.sinkhorn_effect.propensity import clip_propensity
from jaxicml.types import Key, Scalar

__all__ = ["cross_fit", "cross_fit_terms", "split_indices"]


def cross_fit(
    key: Key,
    x: Float[Array, "n p"],
    treatment: Float[Array, " n"],
    outcome: Float[Array, "n d"],
    *,
    propensity_fn: Callable,
    law_fn: Callable,
    epsilons: Float[Array, " e"],
    num_folds: int = 2,
    alpha: Scalar = 0.05,
    beta: Scalar | None = None,
    num_null: int = 2000,
    reference: str = "balanced",
    regime_tol: float | None = 0.1,
    clip: Scalar = 0.02,
    tol: float | None = None,
    max_iter: int = 2000,
) -> AggResult:
    """The whole analysis with nuisances fitted on the other folds.

    With one fold, the sample is split once in halves: nuisances on the first, evaluation on the
    second, the paper's plain split. Influence functions come in the order of the folds.

    Args:
        key: the split, the nuisances and the null.
        x: covariates.
        treatment: 0 or 1.
        outcome: outcomes.
        propensity_fn: `(key, x, treatment) -> f` with `f(x)` the probability of treatment.
        law_fn: `(key, x, treatment, outcome, x_eval) -> ConditionalLaw` at `x_eval`.
        epsilons: the grid in outcome units squared, no value twice.
        num_folds: K; 1 is the plain split.
        alpha: level of the tests and intervals.
        beta: level of the scaling quantiles, `alpha` by default.
        num_null: draws of the null law, at least 99.
        reference: law of the second-order kernel.
        regime_tol: guard of the quadratic regime, or None.
        clip: propensities are moved into [clip, 1 − clip].
        tol: marginal error of the potentials.
        max_iter: bound on Sinkhorn iterations.

    Raises:
        ValueError: shapes, values, grid or options are not as described, or an arm is empty in
            some fold.
    """
    checks.check_floats("outcome", outcome, (None, None))
    checks.check_floats("x", x, (None, None))
    checks.check_array("treatment", treatment, (None,))
    checks.check_same_length(x=x, treatment=treatment, outcome=outcome)
    checks.check_binary("treatment", treatment)
    checks.check_integer("num_folds", num_folds, low=1, high=max(1, x.shape[0] // 4))
    beta = alpha if beta is None else beta
    checks.check_key("key", key)
    estimator.check_test(num_null, clip, alpha=alpha, beta=beta)
    estimator.check_expansion(reference, regime_tol, tol, max_iter)
    for name, function in (("propensity_fn", propensity_fn), ("law_fn", law_fn)):
        checks.check_callable(name, function)
    x, treatment, outcome = map(jnp.asarray, (x, treatment, outcome))
    epsilons = checked_grid("epsilons", epsilons, outcome.dtype)

    options = {"num_null": num_null, "reference": reference, "tol": tol, "max_iter": max_iter}
    terms_fn = functools.partial(estimator.fold_terms, **options)
    folds, clipped = cross_fit_terms(
        key, x, treatment, outcome, propensity_fn, law_fn, terms_fn, epsilons, num_folds, clip
    )
    return estimator.summarise(folds, epsilons, clipped, alpha, beta, regime_tol)


def cross_fit_terms(
    key: Key,
    x: Float[Array, "n p"],
    treatment: Float[Array, " n"],
    outcome: Float[Array, "n d"],
    propensity_fn: Callable,
    law_fn: Callable,
    terms_fn: Callable[..., FoldTerms],
    epsilons: Float[Array, " e"],
    num_folds: int,
    clip: Scalar,
) -> tuple[list[FoldTerms], Float[Array, ""]]:
    """The terms of every fold and the fraction of clipped propensities, see `cross_fit`.

    Args:
        key: the split, the nuisances and the null.
        x: covariates.
        treatment: 0 or 1.
        outcome: outcomes.
        propensity_fn: see `cross_fit`.
        law_fn: see `cross_fit`.
        terms_fn: `(key, outcome, treatment, propensity, law, epsilons) -> FoldTerms`.
        epsilons: the grid.
        num_folds: K; 1 is the plain split.
        clip: propensities are moved into [clip, 1 − clip].

    Raises:
        ValueError: an arm is empty in some fold, or a nuisance is not as described.
    """
    split_key, fold_key = jax.random.split(key)
    splits = split_indices(split_key, x.shape[0], num_folds)
    if not checks.is_traced(treatment, splits):
        _check_arms(treatment, splits)

    def one_fold(inputs):
        key, train, evaluate = inputs
        propensity_key, law_key, null_key = jax.random.split(key, 3)
        fitted = propensity_fn(propensity_key, x[train], treatment[train])
        checks.check_callable("propensity_fn(key, x, treatment)", fitted)
        propensity = fitted(x[evaluate])
        checks.check_array("propensity_fn(key, x, treatment)(x)", propensity, evaluate.shape)
        law = law_fn(law_key, x[train], treatment[train], outcome[train], x[evaluate])
        checks.check_instance("law_fn(key, x, treatment, outcome, x_eval)", law, ConditionalLaw)
        # the checks of known values see nothing here: what is no probability ends as NaN
        propensity = jnp.where((propensity >= 0) & (propensity <= 1), propensity, jnp.nan)
        eif.check_sample(outcome[evaluate], treatment[evaluate], propensity, law)
        propensity, clipped = clip_propensity(propensity, clip)
        terms = terms_fn(
            null_key, outcome[evaluate], treatment[evaluate], propensity, law, epsilons
        )
        return terms, clipped

    folds, clipped = {}, {}
    for members, group, keys in _equal_sizes(splits, jax.random.split(fold_key, num_folds)):
        terms, fractions = jax.lax.map(one_fold, (keys, *group))
        for i, member in enumerate(members):
            folds[member] = jax.tree.map(lambda leaf, i=i: leaf[i], terms)
            clipped[member] = fractions[i]
    fractions = jnp.stack([clipped[k] for k in range(num_folds)])
    return [folds[k] for k in range(num_folds)], fractions.mean()


def split_indices(key: Key, n: int, num_folds: int) -> list[tuple[Array, Array]]:
    """Random (train, evaluate) index pairs; one fold means halves, first trained on."""
    order = jax.random.permutation(key, n)
    if num_folds == 1:
        return [(order[: n // 2], order[n // 2 :])]
    bounds = [round(k * n / num_folds) for k in range(num_folds + 1)]
    return [
        (jnp.concatenate([order[:low], order[high:]]), order[low:high])
        for low, high in itertools.pairwise(bounds)
    ]


def _equal_sizes(splits, keys):
    """Groups folds of equal size, so that each group is one `lax.map`."""
    sizes = [evaluate.shape[0] for _, evaluate in splits]
    for size in sorted(set(sizes)):
        members = [i for i, other in enumerate(sizes) if other == size]
        train, evaluate = zip(*(splits[i] for i in members), strict=True)
        yield members, (jnp.stack(train), jnp.stack(evaluate)), keys[jnp.array(members)]


def _check_arms(treatment, splits) -> None:
    for train, evaluate in splits:
        checks.check_binary("treatment (in a training fold)", treatment[train])
        checks.check_binary("treatment (in an evaluation fold)", treatment[evaluate])
