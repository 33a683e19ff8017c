"""Claims of an experiment: numbers with intervals, and verdicts that are computed.

A condition compares a number with a threshold that was fixed before the run. With interval
[l, h], value v and threshold t:

    op            holds                    fails     else
    above         l > t                    h < t     inconclusive
    below         h < t                    l > t     inconclusive
    not_above     otherwise                l > t
    not_below     otherwise                h < t
    point_above   v >= t                   v < t
    point_below   v <= t                   v > t
    none          never judged: reported

An exact number has no interval: it is above (below) or it is not, and equality is neither, so
`above` fails there and `not_above` holds. NaN in a judged number fails. A claim takes the worst
verdict of its conditions.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsFloat

from jaxicml.harness import text

__all__ = [
    "Claim",
    "Condition",
    "Report",
    "Table",
    "exact",
    "paired",
    "rate",
    "worst",
]

WORST_FIRST = ("fails", "inconclusive", "not run", "holds", "reported")

RULES = {
    "above": "> {}",
    "below": "< {}",
    "not_above": "not above {}",
    "not_below": "not below {}",
    "point_above": "point >= {}",
    "point_below": "point <= {}",
}
"""Every op, and how it reads in a table."""


@dataclass(frozen=True, init=False)
class Condition:
    """One number, its uncertainty and what it must satisfy."""

    name: str
    value: float
    interval: tuple[float, float] | None
    exact: bool
    op: str | None
    threshold: float | None
    unit: str

    def __init__(
        self,
        name: str,
        value: SupportsFloat,
        interval: Sequence[SupportsFloat] | None = None,
        exact: bool = False,
        op: str | None = None,
        threshold: SupportsFloat | None = None,
        unit: str = "",
    ):
        """Checks and keeps the numbers, rounded as the files keep them.

        Args:
            name: what was measured.
            value: the point estimate, or the number itself when `exact`.
            interval: its confidence interval (low, high).
            exact: the number carries no sampling error, so it has no interval.
            op: one of `RULES`, or None for a number that is only reported.
            threshold: what `op` compares with.
            unit: in words, empty for a pure number.

        Raises:
            ValueError: neither or both of `interval` and `exact`, an interval that is no pair
                (low, high), an unknown op, an op without threshold or a threshold without op.
        """
        if (interval is None) != exact:
            came = "neither" if interval is None else "both"
            raise ValueError(f"condition {name!r}: expected an interval or exact=True, got {came}")
        if (op is None) != (threshold is None):
            raise ValueError(
                f"condition {name!r}: expected op and threshold together, "
                f"got op={op!r} and threshold={threshold!r}"
            )
        if op is not None and op not in RULES:
            raise ValueError(f"condition {name!r}: expected an op of {[*RULES]}, got {op!r}")
        keep = lambda x: text.rounded(float(x))
        values = {
            "name": name,
            "value": keep(value),
            "interval": None if interval is None else tuple(map(keep, interval)),
            "exact": exact,
            "op": op,
            "threshold": None if threshold is None else keep(threshold),
            "unit": unit,
        }
        ends = values["interval"]
        if ends is not None and (len(ends) != 2 or ends[0] > ends[1]):
            raise ValueError(f"condition {name!r}: expected an interval (low, high), got {ends}")
        if threshold is not None and not math.isfinite(float(threshold)):
            raise ValueError(f"condition {name!r}: expected a finite threshold, got {threshold}")
        for attribute, kept in values.items():
            object.__setattr__(self, attribute, kept)

    @property
    def verdict(self) -> str:
        """`holds`, `fails`, `inconclusive`, or `reported` without a threshold.

        >>> Condition("size", 0.04, (0.02, 0.08), op="not_above", threshold=0.05).verdict
        'holds'
        >>> Condition("size", 0.04, (0.02, 0.08), op="below", threshold=0.05).verdict
        'inconclusive'
        """
        if self.op is None or self.threshold is None:
            return "reported"
        sign = -1 if self.op.endswith("below") else 1
        beyond = lambda x: sign * (x - self.threshold)  # how far past the threshold, op's way
        low, high = sorted(map(beyond, self.interval or (self.value, self.value)))
        if any(map(math.isnan, (self.value, low, high))):
            return "fails"
        if self.op.startswith("point"):
            return "holds" if beyond(self.value) >= 0 else "fails"
        if self.op.startswith("not"):
            return "fails" if low > 0 else "holds"
        if low > 0:
            return "holds"
        return "fails" if self.exact or high < 0 else "inconclusive"

    @property
    def rule(self) -> str:
        """What is demanded, in words; empty when nothing is."""
        return RULES[self.op].format(text.number(self.threshold)) if self.op else ""

    @property
    def measured(self) -> str:
        """Value, unit and interval in words.

        >>> Condition("error", 0.5, (0.25, 1), unit="kg").measured
        '0.5 kg [0.25, 1]'
        """
        short = lambda x: text.number(text.rounded(x, 3) if abs(x) < 100 else x)
        value = f"{short(self.value)} {self.unit}".strip()
        if self.interval is None:
            return f"{value} (exact)"
        return f"{value} [{', '.join(map(short, self.interval))}]"

    def to_json(self) -> dict[str, Any]:
        """As `result.json` holds it."""
        names = ("name", "value", "interval", "exact", "op", "threshold", "unit", "verdict")
        return {name: text.plain(getattr(self, name)) for name in names}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Condition":
        """Reads `to_json`; the verdict is computed again, not read."""
        names = ("name", "value", "interval", "exact", "op", "threshold", "unit")
        return cls(**{name: record[name] for name in names})


def worst(verdicts: Iterable[str]) -> str:
    """The worst of several verdicts, `reported` when there are none.

    >>> worst(["reported", "holds", "inconclusive"])
    'inconclusive'
    """
    return min(verdicts, key=WORST_FIRST.index, default="reported")


@dataclass(frozen=True)
class Claim:
    """A sentence that the run supports or not.

    Attributes:
        id: short name, unique in a report.
        sentence: what is claimed.
        conditions: what decides it.
        paper: the paper's number, where known.
        reason: why it was not run; then there are no conditions.
    """

    id: str
    sentence: str
    conditions: Sequence[Condition] = ()
    paper: Any = None
    reason: str = ""

    def __post_init__(self):
        object.__setattr__(self, "conditions", tuple(self.conditions))
        if bool(self.conditions) == bool(self.reason):
            raise ValueError(
                f"claim {self.id!r}: expected conditions, or a reason why it was not run, "
                f"got {'both' if self.reason else 'neither'}"
            )

    @classmethod
    def not_run(cls, id: str, sentence: str, reason: str) -> "Claim":
        """A claim that could not be examined, e.g. because its data are not here."""
        return cls(id, sentence, (), reason=reason)

    @property
    def verdict(self) -> str:
        """The worst verdict of the conditions; `not run` without any.

        >>> Claim.not_run("real", "It works on real data.", "the data were not fetched").verdict
        'not run'
        """
        return "not run" if self.reason else worst(c.verdict for c in self.conditions)

    def to_json(self) -> dict[str, Any]:
        """As `result.json` holds it."""
        return {
            "id": self.id,
            "sentence": self.sentence,
            "paper": text.plain(self.paper),
            "reason": self.reason,
            "verdict": self.verdict,
            "conditions": [condition.to_json() for condition in self.conditions],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Claim":
        """Reads `to_json`; verdicts are computed again."""
        conditions = tuple(map(Condition.from_json, record["conditions"]))
        return cls(record["id"], record["sentence"], conditions, record["paper"], record["reason"])


@dataclass(frozen=True)
class Table:
    """Numbers under a title; floats are shown to four digits and kept to six."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""

    def __post_init__(self):
        plain = text.plain(self.rows, 6)
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "rows", tuple(map(tuple, plain)))
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"table {self.title!r}: expected {len(self.columns)} cells in every row, "
                    f"got {len(row)}"
                )

    def to_json(self) -> dict[str, Any]:
        """As `result.json` holds it."""
        return text.plain(self)

    def markdown(self) -> str:
        """Title, table and note."""
        note = f"\n\n{self.note}" if self.note else ""
        return f"### {self.title}\n\n{text.markdown_table(self.columns, self.rows)}{note}"


@dataclass(frozen=True)
class Report:
    """What a driver returns.

    Attributes:
        claims: in the order they are shown; the first condition of the first claim is the
            headline.
        tables: further numbers.
        figures: matplotlib figures by file name; "figure" is the one in the gallery.
    """

    claims: Sequence[Claim]
    tables: Sequence[Table] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        ids = [claim.id for claim in self.claims]
        twice = sorted({id for id in ids if ids.count(id) > 1})
        if twice:
            raise ValueError(f"claims: expected different ids, got {twice} more than once")
        for name in self.figures:
            if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
                raise ValueError(f"figures: expected letters, digits, _ and -, got {name!r}")

    @property
    def verdict(self) -> str:
        """The worst verdict of the claims."""
        return worst(claim.verdict for claim in self.claims)

    def markdown(self, title: str) -> str:
        """Claims, their conditions and the tables, as `table.md` holds them."""
        parts = [f"# {title}"]
        if self.claims:
            parts.append(text.markdown_table(CLAIM_COLUMNS, claim_rows(self.claims)))
            parts.append(text.markdown_table(CONDITION_COLUMNS, condition_rows(self.claims)))
        parts.extend(table.markdown() for table in self.tables)
        return "\n\n".join(parts) + "\n"


CLAIM_COLUMNS = ("claim", "sentence", "paper", "verdict")
CONDITION_COLUMNS = ("claim", "condition", "measured", "must be", "verdict")


def claim_rows(claims: Iterable[Claim]) -> list[tuple]:
    """One row a claim, under `CLAIM_COLUMNS`."""
    return [
        (c.id, c.sentence, c.paper, f"not run: {c.reason}" if c.reason else c.verdict)
        for c in claims
    ]


def condition_rows(claims: Iterable[Claim]) -> list[tuple]:
    """One row a condition, under `CONDITION_COLUMNS`."""
    return [
        (claim.id, c.name, c.measured, c.rule, c.verdict)
        for claim in claims
        for c in claim.conditions
    ]


def rate(
    name: str,
    successes: SupportsFloat,
    trials: int,
    op: str | None = None,
    threshold: SupportsFloat | None = None,
) -> Condition:
    """A proportion with its Wilson interval.

    Args:
        name: what was counted.
        successes: how often it happened.
        trials: how often it could have.
        op: what is demanded, see `Condition`.
        threshold: compared with.

    Returns:
        The condition.

    Raises:
        ValueError: no trials, or more successes than trials.

    >>> rate("rejections", 8, 200, "not_above", 0.05).measured
    '0.04 [0.0204, 0.0769]'
    """
    from jaxicml.stats import intervals

    low, high = intervals.wilson_interval(float(successes), trials)
    return Condition(name, float(successes) / trials, (low, high), False, op, threshold)


def paired(
    name: str,
    values: Any,
    op: str | None = None,
    threshold: SupportsFloat | None = None,
    *,
    key: Any = None,
    unit: str = "",
) -> Condition:
    """The mean over replications (of differences, say) with its bootstrap interval.

    Args:
        name: what was measured.
        values: one number a replication, in the order of the replications.
        op: what is demanded, see `Condition`.
        threshold: compared with.
        key: random key of the bootstrap; a fixed one by default.
        unit: of the values.

    Returns:
        The condition.

    Raises:
        ValueError: no values.

    >>> paired("gain", [0.2, 0.3, 0.1, 0.4], "above", 0).verdict
    'holds'
    """
    import jax
    import jax.numpy as jnp

    from jaxicml.stats import intervals

    values = jnp.asarray(values, float)
    key = jax.random.key(0) if key is None else key
    low, high = intervals.bootstrap_interval(key, values)
    return Condition(name, values.mean(), (low, high), False, op, threshold, unit)


def exact(
    name: str,
    value: SupportsFloat,
    op: str | None = None,
    threshold: SupportsFloat | None = None,
    unit: str = "",
) -> Condition:
    """A number without sampling error: a closed form, a count, a deterministic run.

    >>> exact("exponent", 2, "point_below", 2.1).verdict
    'holds'
    """
    return Condition(name, value, None, True, op, threshold, unit)
