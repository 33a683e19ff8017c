"""One page with every claim, table, figure and benchmark; it needs no other file."""

import base64
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from jaxicml.harness import claims, text
from jaxicml.harness.catalogue import METHODS
from jaxicml.harness.report import Result, origin, summary

__all__ = ["html"]

CSS = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 72rem; margin: 2rem auto;
       padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 3rem; border-top: 1px solid #ddd;
       padding-top: 1.5rem; }
table { border-collapse: collapse; margin: 1rem 0; font-size: .9rem; display: block;
       overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0;
       border-bottom: 1px solid #e5e5e5; }
img { max-width: 100%; height: auto; } .note { color: #666; font-size: .9rem; }
.holds { color: #00704f; } .fails { color: #b03a00; font-weight: bold; }
.inconclusive, .not-run { color: #8a6100; } .reported { color: #0072b2; }
"""

BENCH_COLUMNS = ("id", "peer", "ours", "theirs", "unit", "ratio", "interval", "target", "note")


def html(results: Sequence[Result]) -> str:
    """The page.

    Args:
        results: of all methods; those without files are listed as such.

    Returns:
        HTML with inline style and embedded figures.

    >>> html([]).startswith("<!doctype html>")
    True
    """
    shown = [result for result in results if result.record or result.bench]
    overview = [(r.name, METHODS.get(r.name, ""), _state(r)) for r in results]
    body = [
        "<h1>jaxicml: results</h1>",
        _table(("method", "what it does", "claims"), overview),
        *(_section(result) for result in shown),
    ]
    head = f'<meta charset="utf-8"><title>jaxicml: results</title><style>{CSS}</style>'
    page = "\n".join(body)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{page}\n</body></html>\n'


def _state(result: Result) -> str:
    return summary(result.claims) if result.record else "no result"


def _section(result: Result) -> str:
    parts = [f"<h2>{escape(result.name)}: {escape(METHODS.get(result.name, ''))}</h2>"]
    if result.record:
        seconds = result.record.get("seconds", {})
        spent = ", ".join(f"{name} {text.number(value)} s" for name, value in seconds.items())
        parts.append(_note(f"{origin(result.record)}; {spent}"))
    parts += [_figure(path.stem, path.read_bytes()) for path in result.figures if path.is_file()]
    if result.claims:
        parts.append("<h3>Claims</h3>")
        parts.append(_table(claims.CLAIM_COLUMNS, claims.claim_rows(result.claims)))
        parts.append(_table(claims.CONDITION_COLUMNS, claims.condition_rows(result.claims)))
    for table in result.record.get("tables", []):
        parts.append(f"<h3>{escape(table['title'])}</h3>")
        parts.append(_table(table["columns"], table["rows"]))
        parts.append(_note(table.get("note", "")))
    if result.bench:
        parts.append(_bench(result.bench))
    return "\n".join(part for part in parts if part)


def _bench(bench: dict[str, Any]) -> str:
    entries = bench.get("entries", [])
    rows = [[_cell_text(entry.get(column)) for column in BENCH_COLUMNS] for entry in entries]
    missing = "; ".join(bench.get("missing", []))
    size = f"size {bench.get('size')}, " if bench.get("size") else ""
    where = f"{size}{bench.get('device')}, commit {(bench.get('commit') or 'unknown')[:7]}"
    return "\n".join(
        [
            "<h3>Speed (ratio above 1: ours is better)</h3>",
            _table(BENCH_COLUMNS, rows),
            _note(where + (f"; missing peers: {missing}" if missing else "")),
        ]
    )


def _cell_text(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(text.number, value)) + "]"
    return text.number(value)


def _note(words: str) -> str:
    return f'<p class="note">{escape(words)}</p>' if words else ""


def _figure(name: str, data: bytes) -> str:
    encoded = base64.b64encode(data).decode()
    return f'<img alt="{escape(name)}" src="data:image/png;base64,{encoded}">'


def _table(columns: Iterable[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "\n".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def _cell(value: Any) -> str:
    words = text.number(value)
    kind = words.replace(" ", "-") if words in claims.WORST_FIRST else ""
    marked = f' class="{kind}"' if kind else ""
    return f"<td{marked}>{escape(words)}</td>"
