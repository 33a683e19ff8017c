"""What a person reads after an analysis: effect, test, overlap, and what to mistrust."""

import dataclasses
import math
import textwrap
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

__all__ = ["AverageEffect", "Distribution", "EffectReport", "EpsilonTable", "Overlap"]

Vector = Float[np.ndarray, " e"]

MAX_ROWS = 8
"""Lines that a list in the text may take."""

WIDTH = 96
"""Columns of the text."""


@dataclasses.dataclass(frozen=True, eq=False)
class EpsilonTable:
    """The Sinkhorn treatment effect at each ε of the grid, in outcome units squared.

    Attributes:
        epsilon: regularisation.
        plugin: divergence of the two estimated laws, biased.
        onestep: the debiased estimate.
        second_order: with the second-order correction, the centre of the test.
        se: standard error of `onestep`.
        ci_low: lower end of its Wald interval.
        ci_high: upper end.
        p_value: of the test at this ε alone; NaN without convergence.
        regime_ratio: ρ_ε, one where the divergence is quadratic.
        kept: whether this ε takes part in the aggregated test.
        converged: whether the potentials met their tolerance.
    """

    epsilon: Vector
    plugin: Vector
    onestep: Vector
    second_order: Vector
    se: Vector
    ci_low: Vector
    ci_high: Vector
    p_value: Vector
    regime_ratio: Vector
    kept: Bool[np.ndarray, " e"]
    converged: Bool[np.ndarray, " e"]


@dataclasses.dataclass(frozen=True, eq=False)
class AverageEffect:
    """Average treatment effect of each outcome (AIPW on the same nuisances), in its units.

    Attributes:
        effect: estimates.
        se: their standard errors.
        ci_low: lower ends of the Wald intervals.
        ci_high: upper ends.
        p_value: of no effect on any average.
    """

    effect: Float[np.ndarray, " d"]
    se: Float[np.ndarray, " d"]
    ci_low: Float[np.ndarray, " d"]
    ci_high: Float[np.ndarray, " d"]
    p_value: float


@dataclasses.dataclass(frozen=True)
class Overlap:
    """How comparable the arms are.

    Attributes:
        propensity_low: smallest estimated probability of treatment, before clipping.
        propensity_high: largest.
        clipped: fraction of the propensities that were clipped.
        effective_treated: (Σw)²/Σw² of the inverse-probability weights of the treated.
        effective_control: the same of the untreated.
    """

    propensity_low: float
    propensity_high: float
    clipped: float
    effective_treated: float
    effective_control: float


@dataclasses.dataclass(frozen=True, eq=False)
class Distribution:
    """One outcome if everybody, and if nobody, were treated.

    Attributes:
        outcome: its name.
        grid: values of the outcome, increasing, in its units.
        cdf1: share of people at or below each value if treated; doubly robust, made monotone.
        cdf0: the same if untreated.
    """

    outcome: str
    grid: Float[np.ndarray, " g"]
    cdf1: Float[np.ndarray, " g"]
    cdf0: Float[np.ndarray, " g"]


@dataclasses.dataclass(frozen=True, eq=False)
class EffectReport:
    """The analysis of one table; `print` it.

    Attributes:
        treatment: name of the treatment.
        outcomes: names of the outcomes.
        covariates: names of the covariates.
        n: rows.
        n_treated: rows with treatment 1.
        n_control: rows with treatment 0.
        num_folds: K of the cross-fitting; 1 is one split in halves.
        seed: of the split, the nuisances and the null.
        alpha: level of the test; intervals have level 1 − alpha.
        num_null: draws of the null law; no p-value is below 1/(num_null + 1).
        p_value: of the aggregated test that treatment leaves the distribution as it is.
        reject: p_value ≤ alpha.
        statistic: max over kept ε of T_ε in units of its null quantile.
        quadratic: whether the divergence is quadratic, as the test supposes, at the largest ε;
            where it is not, the p-value is not to be relied upon.
        by_epsilon: estimates and tests at each ε.
        headline: index of the ε nearest to the median cost, the one that is quoted.
        average: the average treatment effect, for comparison.
        overlap: propensities and effective sample sizes.
        distributions: both counterfactual distributions of each outcome.
        outcome_scale: what each outcome was divided by; 1 where units are kept.
        bandwidths: of the kernel law in each fold, in standard deviations of the covariates;
            empty for another law.
        warnings: what to mistrust, in words.
    """

    treatment: str
    outcomes: tuple[str, ...]
    covariates: tuple[str, ...]
    n: int
    n_treated: int
    n_control: int
    num_folds: int
    seed: int
    alpha: float
    num_null: int
    p_value: float
    reject: bool
    statistic: float
    quadratic: bool
    by_epsilon: EpsilonTable
    headline: int
    average: AverageEffect
    overlap: Overlap
    distributions: tuple[Distribution, ...]
    outcome_scale: tuple[float, ...]
    bandwidths: tuple[float, ...]
    warnings: tuple[str, ...]

    @property
    def ste(self) -> float:
        """One-step Sinkhorn treatment effect at the headline ε, in outcome units squared."""
        return float(self.by_epsilon.onestep[self.headline])

    @property
    def ste_interval(self) -> tuple[float, float]:
        """Wald interval of `ste`: valid where there is an effect, no test of whether there is."""
        table, i = self.by_epsilon, self.headline
        return float(table.ci_low[i]), float(table.ci_high[i])

    @property
    def distance(self) -> float:
        """√(2 STE), the shift in outcome units that alone would give this effect."""
        return _shift(self.ste)

    @property
    def distance_interval(self) -> tuple[float, float]:
        """The interval of `distance`."""
        low, high = self.ste_interval
        return _shift(low), _shift(high)

    @property
    def converged(self) -> bool:
        """Whether the potentials converged at every ε."""
        return bool(self.by_epsilon.converged.all())

    @property
    def unit(self) -> str:
        """The unit of `distance`, in words."""
        if any(scale != 1 for scale in self.outcome_scale):
            return "standard deviations"
        return f"units of {self.outcomes[0]}" if len(self.outcomes) == 1 else "outcome units"

    @property
    def p_words(self) -> str:
        """The p-value of the aggregated test, as "p = 0.21"."""
        return _p_words(self.p_value, 1 / (self.num_null + 1))

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        what = f"distribution of {_listed(self.outcomes)}"
        if math.isnan(self.p_value):
            return f"No test of whether the {what} differs: see the warnings."
        p = self.p_words + ("" if self.quadratic else ", unreliable: see the warnings")
        if self.reject:
            return f"The {what} differs between treated and untreated ({p})."
        return f"No evidence that the {what} differs between treated and untreated ({p})."

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists and numbers that JSON holds; NaN becomes None."""
        derived = ("ste", "ste_interval", "distance", "distance_interval", "unit", "verdict")
        values = dataclasses.asdict(self) | {name: getattr(self, name) for name in derived}
        return _plain(values)

    def __str__(self) -> str:
        sections = (
            self._sample_lines(),
            [self.verdict],
            [*self._distance_lines(), *self._average_lines()],
            self._epsilon_lines(),
            self._method_lines(),
            [f"Warning: {text}." for text in self.warnings],
        )
        return "\n\n".join("\n".join(map(_wrapped, lines)) for lines in sections if lines)

    def _sample_lines(self):
        adjusted = _listed(self.covariates) if self.covariates else "nothing (randomised)"
        return [
            f"Sinkhorn treatment effect of {self.treatment} on {_listed(self.outcomes)}",
            f"{self.n} rows, {self.n_treated} treated and {self.n_control} untreated; "
            f"adjusted for {adjusted}",
        ]

    def _distance_lines(self):
        epsilon = self.by_epsilon.epsilon[self.headline]
        return [
            f"Distance of the two distributions: {self.distance:.3g} {self.unit}, "
            f"{self._level} interval {_interval(*self.distance_interval)}",
            f"    (√(2 STE): a pure shift of that size has this effect; "
            f"STE = {self.ste:.3g}, {_interval(*self.ste_interval)}, ε = {epsilon:.3g})",
        ]

    def _average_lines(self):
        average = self.average
        rows = list(
            zip(self.outcomes, average.effect, average.ci_low, average.ci_high, strict=True)
        )
        lines = [
            f"Average effect on {name}: {effect:.3g}, {self._level} interval {_interval(low, high)}"
            for name, effect, low, high in rows[:MAX_ROWS]
        ]
        lines[-1] += "" if len(rows) <= MAX_ROWS else f" (and {len(rows) - MAX_ROWS} more)"
        p = _p_words(average.p_value, 1e-15)
        return [*lines, f"    (difference of means by AIPW; no effect on {self._any_average}: {p})"]

    def _epsilon_lines(self):
        table = self.by_epsilon
        shown = np.unique(np.linspace(0, len(table.epsilon) - 1, MAX_ROWS).round().astype(int))
        if len(table.epsilon) <= MAX_ROWS:
            shown = np.arange(len(table.epsilon))
        level = f"{self._level} interval"
        header = f"{'ε':>9} {'plug-in':>9} {'one-step':>9} {level:>20} {'p':>7} {'ρ':>6}"
        lines = [f"{header}  in the test"]
        for i in shown:
            interval = _interval(table.ci_low[i], table.ci_high[i])
            lines.append(
                f"{table.epsilon[i]:>9.3g} {table.plugin[i]:>9.3g} {table.onestep[i]:>9.3g} "
                f"{interval:>20} {_p_number(table.p_value[i]):>7} {table.regime_ratio[i]:>6.3f}"
                f"  {'yes' if table.kept[i] else 'no'}"
            )
        return lines

    def _method_lines(self):
        overlap = self.overlap
        folds = f"{self.num_folds} folds" if self.num_folds > 1 else "one split in halves"
        bandwidths = ", ".join(f"{width:.3g}" for width in self.bandwidths[:MAX_ROWS])
        law = f"kernel law, bandwidth {bandwidths} sd" if bandwidths else "conditional law as given"
        return [
            f"Propensities from {overlap.propensity_low:.2g} to {overlap.propensity_high:.2g}, "
            f"{overlap.clipped:.1%} clipped; effective sample {overlap.effective_treated:.0f} "
            f"treated, {overlap.effective_control:.0f} untreated",
            f"{folds}, seed {self.seed}, {self.num_null} null draws; {law}",
            f"The p-value is the test (level {self.alpha:g}, all ε marked yes together). Intervals "
            "assume an effect; where there is none they are too narrow: 0 outside an interval is "
            "no test. All of it takes treatment as random among people with equal covariates.",
        ]

    @property
    def _level(self):
        return f"{100 * (1 - self.alpha):g} %"

    @property
    def _any_average(self):
        return "the average" if len(self.outcomes) == 1 else "any average"


def _shift(divergence: float) -> float:
    """The shift whose divergence this is: ½‖shift‖²; NaN stays NaN."""
    return float(np.sqrt(2 * np.maximum(divergence, 0)))


def _interval(low: float, high: float) -> str:
    return f"[{low:.3g}, {high:.3g}]"


def _p_number(p: float) -> str:
    if math.isnan(p):
        return "-"
    return f"{p:.2g}"


def _p_words(p: float, floor: float) -> str:
    """A p-value at the least that the method can give is only a bound."""
    if math.isnan(p):
        return "p unknown"
    bound = p <= floor * (1 + 1e-9)
    return f"p ≤ {_p_number(floor)}" if bound else f"p = {_p_number(p)}"


def _listed(names: tuple[str, ...]) -> str:
    if len(names) == 1:
        return names[0]
    more = len(names) - MAX_ROWS - 1
    if more > 0:
        return ", ".join(names[:MAX_ROWS]) + f" and {more + 1} more"
    return ", ".join(names[:-1]) + f" and {names[-1]}"


def _wrapped(line: str) -> str:
    return textwrap.fill(line, WIDTH, subsequent_indent="    ") if len(line) > WIDTH else line


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
