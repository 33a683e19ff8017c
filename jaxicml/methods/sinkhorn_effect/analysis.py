"""The front door: a table or arrays in, a report in words and numbers out.

Both nuisances, the propensity and the conditional law of the outcome, are fitted on the other
folds; the estimate, the interval and the test come from the fold itself (`estimator`). The
counterfactual distribution functions are doubly robust,

    F̂_a(t) = mean_i { Ŵ_a[i, t_a ≤ t] + 1{a_i = a}/ê_a(x_i) · (1{y_i ≤ t} − Ŵ_a[i, t_a ≤ t]) },

clipped to [0, 1] and sorted, which never moves them away from the truth.

References:
    Chernozhukov, Fernández-Val, Galichon, "Quantile and probability curves without crossing", 2010.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxicml import checks
from jaxicml.methods.sinkhorn_effect import estimator, flow, folds
from jaxicml.methods.sinkhorn_effect import influence as eif
from jaxicml.methods.sinkhorn_effect.baselines import ate_aipw
from jaxicml.methods.sinkhorn_effect.grid import DEFAULT_MULTIPLES, checked_grid, median_cost
from jaxicml.methods.sinkhorn_effect.laws import ConditionalLaw, kernel_law, select_bandwidth
from jaxicml.methods.sinkhorn_effect.propensity import (
    clip_propensity,
    logistic_propensity,
    mlp_propensity,
)
from jaxicml.methods.sinkhorn_effect.reading import NamedSample, read_sample
from jaxicml.methods.sinkhorn_effect.report import (
    AverageEffect,
    Distribution,
    EffectReport,
    EpsilonTable,
    Overlap,
)
from jaxicml.types import Progress, Scalar

__all__ = ["EffectReport", "estimate"]

BANDWIDTHS = np.geomspace(0.5, 4, 7)
"""Candidates for the kernel law, in standard deviations of the covariates."""

PROPENSITIES = {"logistic": lambda key, x, a: logistic_propensity(x, a), "mlp": mlp_propensity}

LAWS = ("kernel", "flow")

MIN_ROWS_PER_FOLD = 5
"""Fewer rows of an arm in a fold are no ground for a statement about its law."""

FEW_ROWS_PER_FOLD = 30
"""Below this the report warns."""

MAX_ITER = 2000
"""Bound on the iterations of the potentials."""


class _Setting(NamedTuple):
    """The options that every fold shares."""

    num_folds: int
    seed: int
    alpha: Scalar
    num_null: int
    reference: str
    regime_tol: float | None
    clip: Scalar


class _Grid(NamedTuple):
    """The regularisations, the cost of a typical pair of outcomes, and what to say about it."""

    epsilons: Float[np.ndarray, " e"]
    cost: float
    notes: tuple[str, ...]


class _Fold(NamedTuple):
    """One evaluation sample with nuisances from the other rows."""

    rows: np.ndarray
    propensity: np.ndarray
    """Before clipping."""
    law: ConditionalLaw
    bandwidth: float | None
    terms: estimator.FoldTerms


def estimate(
    table: Any = None,
    *,
    treatment: Any,
    outcome: Any,
    covariates: Any,
    num_folds: int = 2,
    seed: int = 0,
    epsilons: Any = None,
    multiples: Any = DEFAULT_MULTIPLES,
    alpha: Scalar = 0.05,
    num_null: int = 2000,
    bandwidth: Scalar | None = None,
    standardise_outcome: bool | None = None,
    propensity: Any = "logistic",
    law: str | Callable = "kernel",
    reference: str = "balanced",
    regime_tol: float | None = 0.1,
    clip: Scalar = 0.02,
    progress: Progress | None = None,
) -> EffectReport:
    """Did treatment change the distribution of the outcome, and by how much?

    Computes in float64. Memory: about six matrices of (rows of a fold + rows outside)² numbers.

    Args:
        table: a pandas DataFrame, a dict of arrays, a structured array or the path of a CSV file;
            `treatment`, `outcome` and `covariates` are then names of its columns. Without a table
            they are the arrays themselves.
        treatment: 0 or 1.
        outcome: one or several numbers a row.
        covariates: what was known before treatment and may drive it; none, `()`, for a
            randomised trial. They are standardised.
        num_folds: K of the cross-fitting; 1 fits on one half and evaluates on the other.
        seed: of the split, the nuisances and the null law.
        epsilons: grid of regularisations in outcome units squared (after standardising).
        multiples: the grid in units of the median cost ½‖y − y'‖² of two rows; where `epsilons`
            is None.
        alpha: level of the test and of the intervals.
        num_null: draws of the null law, at least 99.
        bandwidth: of the kernel law in standard deviations of the covariates; by default the best
            in leave-one-out prediction, for each fold.
        standardise_outcome: divide each outcome by its standard deviation; by default where there
            are several.
        propensity: "logistic" (ridge), "mlp", an array of known probabilities, one a row, or
            `(key, x, treatment) -> f` with `f(x)` the probability of treatment. That runs outside
            any trace and may use any package.
        law: "kernel", "flow", or `(key, x, treatment, outcome, x_eval) -> ConditionalLaw`.
        reference: law of the second-order kernel, "balanced", "pooled" or "arm1".
        regime_tol: guard of the quadratic regime; None is the paper's plain maximum.
        clip: propensities are moved into [clip, 1 − clip].
        progress: told of each fold.

    Returns:
        The report.

    Raises:
        ValueError: an unknown column (the nearest name is suggested), missing values or text (the
            column and rows are named), a treatment that is not 0 and 1, an outcome that does not
            vary, too few rows in an arm, or an option that is not as described.
        FileNotFoundError: there is no such file.

    >>> rng = np.random.default_rng(0)
    >>> age, school = rng.normal(50, 10, 200), rng.normal(12, 2, 200)
    >>> trained = (rng.random(200) < 0.5).astype(int)
    >>> wage = 20 + 0.2 * age + school + 8 * trained + rng.normal(0, 3, 200)
    >>> table = {"age": age, "school": school, "trained": trained, "wage": wage}
    >>> columns = {"treatment": "trained", "outcome": "wage", "covariates": ["age", "school"]}
    >>> report = estimate(table, **columns, num_null=199)
    >>> print(report.verdict)
    The distribution of wage differs between treated and untreated (p ≤ 0.005).
    >>> low, high = report.distance_interval
    >>> bool(low < 8 < high)  # wages rose by 8
    True
    """
    setting = _Setting(num_folds, seed, alpha, num_null, reference, regime_tol, clip)
    _check_setting(setting)
    checks.check_choice("standardise_outcome", standardise_outcome, (None, True, False))
    if progress is not None:
        checks.check_instance("progress", progress, Progress)
    fit_propensity, fit_law = _nuisances(propensity, law, bandwidth)
    data = read_sample(table, treatment, outcome, covariates)
    _check_sample(data, num_folds)
    if isinstance(fit_propensity, np.ndarray):
        checks.check_shape("propensity", fit_propensity, data.a.shape)
    standardise = data.y.shape[1] > 1 if standardise_outcome is None else standardise_outcome
    scale = data.y.std(0) if standardise else np.ones(data.y.shape[1])
    scaled = data._replace(x=_standardised(data.x), y=data.y / scale)
    with jax.enable_x64(True):
        grid = _grid(scaled.y, epsilons, multiples)
        fitted = _folds(scaled, grid, fit_propensity, fit_law, setting, progress)
        return _report(scaled, scale, grid, fitted, setting)


def _check_setting(setting: _Setting) -> None:
    checks.check_integer("seed", setting.seed, low=0, high=2**63 - 1)
    estimator.check_test(setting.num_null, setting.clip, alpha=setting.alpha)
    estimator.check_expansion(setting.reference, setting.regime_tol, None, MAX_ITER)


def _nuisances(propensity, law, bandwidth):
    """The two functions that fit a fold; that of the law also returns the bandwidth it took."""
    if not callable(propensity) and not isinstance(propensity, str):
        propensity = checks.as_numbers("propensity", propensity).astype(np.float64)
        checks.check_open_unit("propensity", propensity)
    elif not callable(propensity):
        checks.check_choice("propensity", propensity, PROPENSITIES)
        propensity = PROPENSITIES[propensity]
    if bandwidth is not None:
        checks.check_scalar("bandwidth", bandwidth)
        checks.check_positive("bandwidth", bandwidth)
        checks.check_choice("law (beside a bandwidth)", law, ["kernel"])
    if callable(law):
        return propensity, lambda *sample: (law(*sample), None)
    checks.check_instance("law", law, str)
    checks.check_choice("law", law, LAWS)
    return propensity, _flow_law if law == "flow" else partial(_kernel_law, bandwidth=bandwidth)


def _kernel_law(key, x, a, y, x_eval, *, bandwidth):
    if bandwidth is None:
        bandwidth = select_bandwidth(x, a, y, jnp.asarray(BANDWIDTHS)).bandwidth
    return kernel_law(x, a, y, x_eval, bandwidth=bandwidth), float(bandwidth)


def _flow_law(key, x, a, y, x_eval):
    flow1, flow0 = (
        flow.fit_flow(arm_key, x, y, mask=a == arm).flow
        for arm_key, arm in zip(jax.random.split(key), (1, 0), strict=True)
    )
    return flow.flow_law(flow1, flow0, x, a, y, x_eval), None


def _check_sample(data: NamedSample, num_folds: int) -> None:
    checks.check_integer("num_folds", num_folds, low=1, high=max(1, len(data.a) // 4))
    for arm in (1, 0):
        label = f"rows with {data.treatment} = {arm} (for {num_folds} folds)"
        least = MIN_ROWS_PER_FOLD * max(num_folds, 2)
        checks.check_min_rows(label, np.flatnonzero(data.a == arm), least)
    for name, column in zip(data.outcomes, data.y.T, strict=True):
        spread = column.std()
        # rounding alone gives a constant column a standard deviation
        varies = spread > 1e-12 * np.abs(column).max()
        checks.check_positive(f"standard deviation of column {name!r}", spread if varies else 0.0)


def _standardised(x: np.ndarray) -> np.ndarray:
    """Columns of mean 0 and standard deviation 1; a constant one becomes 0."""
    largest = np.abs(x).max(0)
    # scaled first: squares of huge or tiny numbers leave the range of floats
    x = x / np.where(largest > 0, largest, 1)
    centred, deviation = x - x.mean(0), x.std(0)
    varies = deviation > 1e-12
    return np.where(varies, centred / np.where(varies, deviation, 1), 0)


def _grid(outcome: np.ndarray, epsilons, multiples) -> _Grid:
    cost, notes = float(_median_cost(jnp.asarray(outcome))), ()
    mean_cost = float(outcome.var(0, ddof=1).sum())
    if cost < 1e-9 * mean_cost:
        cost, notes = mean_cost, ("most pairs of outcomes are equal: ε is scaled by mean cost",)
    if epsilons is None:
        grid = cost * np.asarray(checked_grid("multiples", multiples, float))
    else:
        grid = np.asarray(checked_grid("epsilons", epsilons, float))
    return _Grid(grid, cost, notes)


def _folds(data: NamedSample, grid, fit_propensity, fit_law, setting: _Setting, progress):
    """Every fold in turn, with the keys of `folds.cross_fit`: equal seeds, equal numbers."""
    split_key, fold_key = jax.random.split(jax.random.key(setting.seed))
    splits = folds.split_indices(split_key, len(data.a), setting.num_folds)
    splits = [tuple(map(np.asarray, split)) for split in splits]
    _check_splits(data, splits)
    jobs = list(zip(jax.random.split(fold_key, setting.num_folds), splits, strict=True))
    return [
        _fold(key, data, *split, grid, fit_propensity, fit_law, setting)
        for key, split in (progress.track(jobs, "folds") if progress else jobs)
    ]


def _check_splits(data: NamedSample, splits) -> None:
    for k, (train, evaluate) in enumerate(splits):
        for arm in (1, 0):
            for part, rows, least in (("training", train, 2), ("evaluation", evaluate, 1)):
                label = f"{part} rows of fold {k + 1} with {data.treatment} = {arm}"
                checks.check_min_rows(label, rows[data.a[rows] == arm], least)


def _fold(key, data: NamedSample, train, evaluate, grid, fit_propensity, fit_law, setting) -> _Fold:
    propensity_key, law_key, null_key = jax.random.split(key, 3)
    x, a, y = (jnp.asarray(values[train]) for values in data[:3])
    x_eval, a_eval, y_eval = (jnp.asarray(values[evaluate]) for values in data[:3])
    if isinstance(fit_propensity, np.ndarray):
        raw = fit_propensity[evaluate]
    else:
        raw = _predicted(fit_propensity(propensity_key, x, a), x_eval)
    propensity = jnp.asarray(raw, float)
    clipped, _ = clip_propensity(propensity, setting.clip)
    law, bandwidth = fit_law(law_key, x, a, y, x_eval)
    eif.check_sample(y_eval, a_eval, clipped, law)
    terms = _fold_terms(
        null_key,
        y_eval,
        a_eval,
        clipped,
        law,
        jnp.asarray(grid.epsilons),
        num_null=setting.num_null,
        reference=setting.reference,
        tol=None,
        max_iter=MAX_ITER,
    )
    return _Fold(evaluate, np.asarray(propensity), law, bandwidth, terms)


def _predicted(fitted, x) -> np.ndarray:
    """Probabilities from a user's function; `clip_propensity` looks at their range."""
    checks.check_callable("propensity(key, x, treatment)", fitted)
    name = "propensity(key, x, treatment)(x)"
    probabilities = checks.as_numbers(name, fitted(x))
    checks.check_shape(name, probabilities, (x.shape[0],))
    return probabilities


_median_cost = jax.jit(median_cost)
_fold_terms = jax.jit(
    estimator.fold_terms, static_argnames=("num_null", "reference", "tol", "max_iter")
)
_summarise = jax.jit(estimator.summarise, static_argnames="regime_tol")


def _report(data: NamedSample, scale, grid: _Grid, folds: list[_Fold], setting: _Setting):
    raw = np.concatenate([fold.propensity for fold in folds])
    clipped, fraction = clip_propensity(jnp.asarray(raw), setting.clip)
    level = jnp.asarray(setting.alpha, float)
    terms = [fold.terms for fold in folds]
    result = _summarise(
        terms, jnp.asarray(grid.epsilons), fraction, level, level, regime_tol=setting.regime_tol
    )
    rows = np.concatenate([fold.rows for fold in folds])
    a, y = data.a[rows], data.y[rows]
    by_epsilon = _by_epsilon(result)
    overlap = _overlap(a, raw, np.asarray(clipped))
    arms = int(data.a.sum()), int((1 - data.a).sum())
    quadratic = _in_regime(by_epsilon, setting.regime_tol)
    notes = _warnings(
        by_epsilon, overlap, min(arms) / max(setting.num_folds, 2), quadratic, setting
    )
    return EffectReport(
        treatment=data.treatment,
        outcomes=data.outcomes,
        covariates=data.covariates,
        n=len(data.a),
        n_treated=arms[0],
        n_control=arms[1],
        num_folds=setting.num_folds,
        seed=int(setting.seed),
        alpha=float(setting.alpha),
        num_null=setting.num_null,
        p_value=float(result.p_value),
        reject=bool(result.reject),
        statistic=float(result.statistic),
        quadratic=quadratic,
        by_epsilon=by_epsilon,
        headline=int(np.abs(np.log(grid.epsilons / grid.cost)).argmin()),
        average=_average(folds, a, y, clipped, scale, setting),
        overlap=overlap,
        distributions=_distributions(folds, a, y, np.asarray(clipped), data.outcomes, scale),
        outcome_scale=tuple(scale.tolist()),
        bandwidths=tuple(fold.bandwidth for fold in folds if fold.bandwidth is not None),
        warnings=(*grid.notes, *notes),
    )


def _by_epsilon(result: estimator.AggResult) -> EpsilonTable:
    own = {
        "epsilon": result.epsilons,
        "regime_ratio": result.regime_ratio,
        "kept": result.kept,
    }
    names = [field.name for field in dataclasses.fields(EpsilonTable) if field.name not in own]
    values = own | {name: getattr(result.per_eps, name) for name in names}
    return EpsilonTable(**{name: np.asarray(value) for name, value in values.items()})


def _average(folds, a, y, propensity, scale, setting) -> AverageEffect:
    # the regression of a row is the mean of its law: as a point mass it serves all folds at once
    mean1 = jnp.concatenate([fold.law.weights1 @ fold.law.atoms1 for fold in folds])
    mean0 = jnp.concatenate([fold.law.weights0 @ fold.law.atoms0 for fold in folds])
    own = jnp.eye(len(a))
    means = ConditionalLaw(mean1, mean0, own, own)
    ate = ate_aipw(
        jnp.asarray(y),
        jnp.asarray(a),
        propensity,
        means,
        alpha=setting.alpha,
        clip=setting.clip,
    )
    effect, se, low, high = (np.asarray(value) * scale for value in ate[:4])
    return AverageEffect(effect, se, low, high, float(ate.p_value))


def _distributions(folds, a, y, propensity, names, scale) -> tuple[Distribution, ...]:
    found = []
    for column, (name, unit) in enumerate(zip(names, scale, strict=True)):
        values = y[:, column]
        grid = np.unique(np.quantile(values, np.linspace(0, 1, 201), method="inverted_cdf"))
        below = values[:, None] <= grid
        share = lambda w, t, c=column, g=grid: np.asarray(w) @ (np.asarray(t)[:, c, None] <= g)
        laws = [fold.law for fold in folds]
        share1 = np.concatenate([share(law.weights1, law.atoms1) for law in laws])
        share0 = np.concatenate([share(law.weights0, law.atoms0) for law in laws])
        cdf1 = _doubly_robust(share1, below, a / propensity)
        cdf0 = _doubly_robust(share0, below, (1 - a) / (1 - propensity))
        found.append(Distribution(name, grid * unit, cdf1, cdf0))
    return tuple(found)


def _doubly_robust(share, below, weight) -> np.ndarray:
    raw = (share + weight[:, None] * (below - share)).mean(0)
    return np.sort(np.clip(raw, 0, 1))


def _overlap(a, raw, propensity) -> Overlap:
    effective = lambda w: float(w.sum() ** 2 / (w**2).sum())
    return Overlap(
        propensity_low=float(raw.min()),
        propensity_high=float(raw.max()),
        clipped=float((raw != propensity).mean()),
        effective_treated=effective(a / propensity),
        effective_control=effective((1 - a) / (1 - propensity)),
    )


def _in_regime(table: EpsilonTable, regime_tol: float | None) -> bool:
    """Whether the largest ε, which takes part whatever its ρ, passes the guard."""
    off = abs(table.regime_ratio[table.epsilon.argmax()] - 1)
    return regime_tol is None or bool(off <= regime_tol)


def _warnings(table: EpsilonTable, overlap: Overlap, per_fold, quadratic, setting) -> list[str]:
    """What a careful reader would object to."""
    notes = []
    if overlap.clipped > 0.05:
        notes.append(
            f"{overlap.clipped:.0%} of the propensities were clipped at {setting.clip:g}: some "
            "people are almost never, or almost always, treated"
        )
    if per_fold < FEW_ROWS_PER_FOLD:
        notes.append(f"the smaller arm has {per_fold:.0f} rows in a fold: expect little power")
    for arm in ("treated", "control"):
        effective = getattr(overlap, f"effective_{arm}")
        if effective < FEW_ROWS_PER_FOLD:
            notes.append(f"the weights leave {effective:.0f} effective rows in the {arm} arm")
    if not table.converged.all():
        failed = ", ".join(f"{epsilon:.3g}" for epsilon in table.epsilon[~table.converged])
        notes.append(f"the potentials did not converge at ε = {failed}: no p-value there")
    if not quadratic:
        notes.append(
            "no ε is large enough for the expansion behind the test (ρ should be near 1 at the "
            "largest), often because of a few extreme outcomes: take larger multiples of the "
            "median cost, or transform the outcome"
        )
    elif len(table.kept) > 1 and table.kept.sum() == 1:
        notes.append("only the largest ε takes part: the test sees little detail")
    return notes
