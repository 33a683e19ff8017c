"""Did treatment change the distribution of an outcome? For people with a table.

    python -m jaxicml.methods.sinkhorn_effect
        two studies that ship with causaldata: quitting smoking and weight, job training and pay
    python -m jaxicml.methods.sinkhorn_effect FILE.csv --treatment T --outcome Y --covariates X ...
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

from jaxicml.data import tabular
from jaxicml.harness import files
from jaxicml.methods.sinkhorn_effect.analysis import LAWS, PROPENSITIES, EffectReport, estimate

FIGURE = "sinkhorn_effect.png"

NSW_MULTIPLES = (8, 16, 32, 64, 128)
"""Pay has a long right tail: below these multiples of the median cost ρ is nowhere near 1."""


def main(argv: list[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        _check_usage(options)
        begin = time.perf_counter()
        reports = _reports(options)
        spent = time.perf_counter() - begin
        if options.json:
            values = [report.to_dict() for report in reports]
            text = json.dumps(values[0] if options.file else values, indent=1, allow_nan=False)
            files.write_file(options.json, (text + "\n").encode())
        if options.figure:
            _save_figure(reports, options.figure)
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"\n{spent:.0f} s; figure: {options.figure or 'none'}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jaxicml.methods.sinkhorn_effect",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("file", nargs="?", metavar="FILE.csv", help="first line: names of the columns")
    add("--treatment", metavar="T", help="column of zeros and ones")
    add("--outcome", nargs="+", metavar="Y", help="one or several columns")
    add("--covariates", nargs="*", metavar="X", help="none for a randomised trial")
    add("--json", type=Path, metavar="FILE", help="write every number of the report")
    add("--figure", type=Path, default=Path(FIGURE), metavar="FILE", help=f"default: {FIGURE}")
    add("--no-figure", dest="figure", action="store_const", const=None)
    add("--seed", type=int, default=0, help="of the split, the nuisances and the null law")
    add("--folds", type=int, default=2, help="of the cross-fitting")
    add("--alpha", type=float, default=0.05, help="level of the test and of the intervals")
    add("--null", type=int, default=2000, help="draws of the null law")
    add("--epsilons", type=float, nargs="+", metavar="E", help="in outcome units squared")
    add("--propensity", choices=sorted(PROPENSITIES), default="logistic")
    add("--law", choices=LAWS, default="kernel", help="of the outcome given the covariates")
    return parser


def _check_usage(options) -> None:
    columns = {name: getattr(options, name) for name in ("treatment", "outcome", "covariates")}
    for name, value in columns.items():
        if options.file and value is None:
            raise ValueError(f"--{name}: expected the names of columns of {options.file}, got none")
        if not options.file and value is not None:
            raise ValueError(f"--{name}: expected a FILE.csv before it, got none")


def _reports(options) -> list[EffectReport]:
    shared = {
        "num_folds": options.folds,
        "seed": options.seed,
        "alpha": options.alpha,
        "num_null": options.null,
        "propensity": options.propensity,
        "law": options.law,
        "epsilons": options.epsilons,
    }
    if options.file:
        columns = {name: getattr(options, name) for name in ("treatment", "outcome", "covariates")}
        jobs = [(options.file, columns)]
    else:
        jobs = _studies(options.epsilons)
    reports = []
    for table, own in jobs:
        reports.append(estimate(table, **(shared | own)))
        print(reports[-1], end="\n\n", flush=True)
    return reports
