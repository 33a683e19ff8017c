"""What a person sees: claims, tables and benchmarks as text."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from jaxicml.harness import claims, text

__all__ = ["console", "show_bench", "show_report", "show_table", "usage_errors"]

COLOURS = {
    "holds": "green",
    "fails": "bold red",
    "inconclusive": "yellow",
    "not run": "yellow",
    "reported": "cyan",
}

PAPER_WIDTH = 120
"""Columns of text that goes to a file or a pipe."""


def console() -> Console:
    """Standard output, wide enough for a table when it is no terminal."""
    return Console() if sys.stdout.isatty() else Console(width=PAPER_WIDTH, highlight=False)


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turns a `ValueError` about what was typed into one line and exit status 2."""
    try:
        yield
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def show_table(out: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence]) -> None:
    """Prints one table; verdicts are coloured."""
    grid = Grid(title=Text(title), title_justify="left", header_style="bold")
    for column in columns:
        grid.add_column(Text(column))
    for row in rows:
        cells = [text.number(cell) for cell in row]
        grid.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in cells))
    out.print(grid)


def show_report(report: claims.Report, *, seconds: Mapping[str, float], folder: Path) -> None:
    """Prints claims with their verdicts, the tables, and where the files are."""
    out = console()
    if report.claims:
        rows = claims.claim_rows(report.claims)
        show_table(out, "Claims", claims.CLAIM_COLUMNS, rows)
        rows = claims.condition_rows(report.claims)
        show_table(out, "Conditions", claims.CONDITION_COLUMNS, rows)
    for table in report.tables:
        show_table(out, table.title, table.columns, table.rows)
        if table.note:
            out.print(Text(table.note, style="dim"))
    spent = ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())
    out.print(Text(f"{spent}; written to {folder}"), soft_wrap=True)


def show_bench(name: str, entries: Iterable[Any], missing: Iterable[str], folder: Path) -> None:
    """Prints benchmark entries (`bench.Entry`) and the peers that are not here."""
    out = console()
    columns = ("id", "peer", "ours", "theirs", "unit", "ratio", "interval", "target", "met", "note")
    rows = []
    for e in entries:
        interval = None if e.interval is None else " to ".join(map(text.number, e.interval))
        met = None if e.target is None else e.ratio >= e.target
        row = (e.id, e.peer, e.ours, e.theirs, e.unit, e.ratio, interval, e.target, met, e.note)
        rows.append(row)
    show_table(out, f"Benchmark {name} (ratio above 1: ours is better)", columns, rows)
    for peer in missing:
        out.print(Text(f"missing peer: {peer}", style="yellow"))
    out.print(Text(f"written to {folder}"), soft_wrap=True)
