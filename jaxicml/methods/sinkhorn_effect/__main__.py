"""Did treatment change the distribution of an outcome? For people with a table.

python -m jaxicml.methods.sinkhorn_effect
    two studies that ship with causaldata: quitting smoking and weight, job training and pay
python -m jaxicml.methods.sinkhorn_effect FILE.csv --treatment T --outcome Y --covariates X ...
    your own
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxicml.data import tabular
from jaxicml.harness import files, text
from jaxicml.harness.threads import one_blas_thread
from jaxicml.methods.sinkhorn_effect.analysis import LAWS, PROPENSITIES, estimate
from jaxicml.methods.sinkhorn_effect.grid import DEFAULT_MULTIPLES
from jaxicml.methods.sinkhorn_effect.report import Distribution, EffectReport

FIGURE = "sinkhorn_effect.png"

COLUMNS = ("treatment", "outcome", "covariates")

MAX_PANELS = 3
"""Outcomes that the figure shows."""


def main(argv: list[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    options = _parser().parse_args(argv)
    try:
        begin = time.perf_counter()
        with one_blas_thread():
            reports = [_reported(*job, options) for job in _jobs(options)]
        print(f"{time.perf_counter() - begin:.0f} s")
        _write(reports, options)
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jaxicml.methods.sinkhorn_effect",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("file", nargs="?", metavar="FILE.csv", help="the first line names the columns")
    add("--treatment", metavar="T", help="a column of zeros and ones")
    add("--outcome", nargs="+", metavar="Y", help="one or several columns")
    add("--covariates", nargs="*", metavar="X", help="no name for a randomised trial")
    add("--json", type=Path, metavar="FILE", help="write every number of the report")
    add("--figure", type=Path, default=Path(FIGURE), metavar="FILE", help=f"default: {FIGURE}")
    add("--no-figure", dest="figure", action="store_const", const=None)
    add("--seed", type=int, default=0, help="of the split, the nuisances and the null law")
    add("--folds", type=int, default=2, help="of the cross-fitting")
    add("--alpha", type=float, default=0.05, help="level of the test and of the intervals")
    add("--null", type=int, default=2000, help="draws of the null law")
    add(
        "--multiples",
        type=float,
        nargs="+",
        metavar="M",
        help="the grid of ε in units of the median cost of two rows",
    )
    add("--propensity", choices=sorted(PROPENSITIES), default="logistic")
    add("--law", choices=LAWS, default="kernel", help="of the outcome given the covariates")
    return parser


def _jobs(options) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Tables, each with the columns and the grid that are its own."""
    columns = {name: getattr(options, name) for name in COLUMNS}
    for name, given in columns.items():
        if options.file and given is None:
            raise ValueError(f"--{name}: expected names of columns of {options.file}, got none")
        if not options.file and given is not None:
            raise ValueError(f"FILE.csv: expected a table beside --{name}, got none")
    if options.file:
        yield options.file, columns | {"multiples": options.multiples or DEFAULT_MULTIPLES}
        return
    yield _study(tabular.load_nhefs(), "qsmk", options.multiples or DEFAULT_MULTIPLES)
    training = tabular.load_nsw(transform="thousands")
    yield _study(training, "treat", options.multiples or DEFAULT_MULTIPLES)


def _study(study: tabular.Study, treatment: str, multiples) -> tuple[Any, dict[str, Any]]:
    names = (*study.covariate_names, *study.outcome_names)
    table = dict(zip(names, np.hstack([study.covariates, study.outcome]).T, strict=True))
    return table | {treatment: study.treatment}, {
        "treatment": treatment,
        "outcome": study.outcome_names,
        "covariates": study.covariate_names,
        "multiples": multiples,
    }


def _reported(table, own: dict[str, Any], options) -> EffectReport:
    with _progress() as progress:
        report = estimate(
            table,
            **own,
            num_folds=options.folds,
            seed=options.seed,
            alpha=options.alpha,
            num_null=options.null,
            propensity=options.propensity,
            law=options.law,
            progress=progress,
        )
    print(report, end="\n\n", flush=True)
    return report


def _progress() -> contextlib.AbstractContextManager[Any]:
    """The harness's bar; without its packages, silence."""
    try:
        from jaxicml.harness.progress import for_terminal
    except ImportError:
        return contextlib.nullcontext()
    return for_terminal()


def _write(reports: list[EffectReport], options) -> None:
    if options.json:
        values = [report.to_dict() for report in reports]
        files.write_file(options.json, text.dumps(values[0] if options.file else values).encode())
        print(f"numbers: {options.json}")
    if options.figure:
        _save_figure(reports, options.figure)
        print(f"figure: {options.figure}")


def _save_figure(reports: list[EffectReport], path: Path) -> None:
    """One row a report: its first outcomes in both arms, then the effect at each ε."""
    try:
        from jaxicml.harness import plots
    except ImportError as error:
        hint = 'pip install "jaxicml[experiments]", or --no-figure'
        raise ImportError(f"{error.name} is not installed: {hint}") from error
    shown = min(MAX_PANELS, len(reports[0].outcomes))
    columns, count = shown + 1, (shown + 1) * len(reports)
    figure, axes = plots.panels(count, columns=columns, width=5.4, height=3.7)
    for row, report in enumerate(reports):
        *left, right = axes[row * columns : (row + 1) * columns]
        for ax, distribution in zip(left, report.distributions, strict=False):
            _draw_distribution(plots, ax, report, distribution)
        _draw_effect(plots, right, report)
    plots.save(figure, path)


def _draw_distribution(plots, ax, report: EffectReport, shown: Distribution) -> None:
    arms = (
        (shown.cdf1, "if treated", plots.PALETTE[1]),
        (shown.cdf0, "if untreated", plots.PALETTE[0]),
    )
    ax.fill_between(shown.grid, shown.cdf1, shown.cdf0, color="#BBBBBB", alpha=0.35, linewidth=0)
    for cdf, _, color in arms:
        plots.line(ax, shown.grid, cdf, color=color, marked=False)
    inside = (shown.cdf1 + shown.cdf0 > 0.01) & (shown.cdf1 + shown.cdf0 < 1.99)
    low, high = shown.grid[inside][[0, -1]] if inside.sum() > 1 else shown.grid[[0, -1]]
    place = _widest_gap(shown, low, high)
    higher, lower = sorted(arms, key=lambda arm: -arm[0][place])
    for (cdf, label, color), shift, align in ((higher, -8, "right"), (lower, 8, "left")):
        ax.annotate(
            label,
            (shown.grid[place], cdf[place]),
            xytext=(shift, -shift / 2),
            textcoords="offset points",
            ha=align,
            va="center",
            color=color,
        )
    ax.set(xlim=(low, high), ylim=(-0.02, 1.02), xlabel=shown.outcome, ylabel="share at or below")
    ax.set_title(f"{shown.outcome} by {report.treatment}: {_short_verdict(report)}", loc="left")


def _widest_gap(shown: Distribution, low: float, high: float) -> int:
    """Where the curves are furthest apart, with room for labels on both sides."""
    position = (shown.grid - low) / max(high - low, 1e-300)
    room = (position > 0.3) & (position < 0.7)
    return int(np.where(room, np.abs(shown.cdf1 - shown.cdf0), -1).argmax())


def _short_verdict(report: EffectReport) -> str:
    if np.isnan(report.p_value):
        return "no test"
    what = "distributions differ" if report.reject else "no evidence of a difference"
    return f"{what}, {report.p_words}" + ("" if report.quadratic else ", unreliable")


def _draw_effect(plots, ax, report: EffectReport) -> None:
    table, color = report.by_epsilon, plots.PALETTE[2]
    order = np.argsort(table.epsilon)
    epsilon, onestep = table.epsilon[order], table.onestep[order]
    low, high = table.ci_low[order], table.ci_high[order]
    plots.line(ax, epsilon, onestep, low, high, color=color, marked=False)
    plots.reference(ax, 0)
    for i in order:
        face = color if table.kept[i] else "white"
        point = table.epsilon[i], table.onestep[i]
        ax.plot(*point, "o", color=color, markerfacecolor=face, markersize=6)
        if not np.isnan(table.p_value[i]):
            ax.annotate(
                f"p = {table.p_value[i]:.2g}",
                point,
                xytext=(0, 9),
                textcoords="offset points",
                ha="center",
                fontsize=plots.FONT - 1.5,
                color="#333333" if table.kept[i] else plots.GREY,
            )
    plots.log_axis(ax, "x", [float(f"{value:.3g}") for value in epsilon])
    ax.margins(x=0.12)
    ax.set(xlabel="ε (filled: takes part in the test)", ylabel=f"STE, {report.unit} squared")
    (low, high), level = report.distance_interval, f"{100 * (1 - report.alpha):g} % interval"
    title = f"As far apart as a shift of {report.distance:.2g}, {level} [{low:.2g}, {high:.2g}]"
    ax.set_title(title, loc="left")


if __name__ == "__main__":
    sys.exit(main())
