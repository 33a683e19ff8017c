"""The README's table and gallery, made from the result files; and the check that they agree.

A block of the README stands between `<!-- generated: NAME -->` and `<!-- end: NAME -->`.
Verdicts are computed again from the stored numbers, never read.
"""

import difflib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from jaxicml.harness import files, text
from jaxicml.harness.catalogue import METHODS
from jaxicml.harness.claims import Claim

__all__ = ["Flags", "Result", "faults", "read", "read_all", "rewritten", "run_report"]


class Result(NamedTuple):
    """What the committed files say about one method."""

    name: str
    folder: Path
    """Where result.json and the figures lie."""
    record: dict[str, Any]
    """Content of result.json; empty without one."""
    claims: list[Claim]
    bench: dict[str, Any]
    """Content of bench.json; empty without one."""

    @property
    def figures(self) -> list[Path]:
        """The figures by name, the one of the gallery first."""
        names = sorted(self.record.get("figures", []), key=lambda name: (name != "figure", name))
        return [self.folder / f"{name}.png" for name in names]


def read(root: Path, name: str) -> Result:
    """The result of scale cpu and the benchmark of one method, empty where there is none.

    Raises:
        ValueError: a file is no valid result; it is named.
    """
    folder = root / "results" / name / "cpu"
    record = _json(folder / "result.json")
    bench = _json(folder.parent / "bench.json")
    try:
        claims = [Claim.from_json(claim) for claim in record.get("claims", [])]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / 'result.json'}: expected valid claims, got {error}") from None
    return Result(name, folder, record, claims, bench)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON, got {error}") from None
    if not isinstance(record, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(record).__name__}")
    return record


def read_all(root: Path) -> list[Result]:
    """The results of all methods, in the order of the catalogue."""
    return [read(root, name) for name in METHODS]


def summary(claims: list[Claim]) -> str:
    """How many claims hold, and the names of those that do not.

    >>> from jaxicml.harness import claims
    >>> ones = [Claim("a", "A.", [claims.exact("x", 1, "above", 0)]),
    ...         Claim("b", "B.", [claims.exact("x", 1, "below", 0)])]
    >>> summary(ones)
    '1/2 hold; fails: b'
    """
    named: dict[str, list[str]] = {}
    for claim in claims:
        named.setdefault(claim.verdict, []).append(claim.id)
    held = len(named.pop("holds", []))
    only = len(named.pop("reported", []))
    parts = [f"{held}/{len(claims) - only} hold"] if len(claims) > only else []
    parts += [f"{only} reported"] if only else []
    parts += [f"{verdict}: {', '.join(ids)}" for verdict, ids in sorted(named.items())]
    return "; ".join(parts) or "-"


def origin(record: dict[str, Any]) -> str:
    """Scale, device and commit of a result in words."""
    commit = (record.get("commit") or "unknown")[:7]
    changed = " with uncommitted changes" if record.get("dirty") else ""
    return f"scale {record.get('scale')}, {record.get('device')}, commit {commit}{changed}"


def headline(result: Result) -> str:
    """The first condition of the first claim, and where it was measured."""
    conditions = [c for claim in result.claims for c in claim.conditions]
    first = f"{conditions[0].name}: {conditions[0].measured}; " if conditions else ""
    return first + origin(result.record)


def methods_block(root: Path, results: list[Result]) -> str:
    """The table of all methods."""
    columns = ("method", "what it does", "claims", "measured", "files")
    return text.markdown_table(columns, [_row(root, result) for result in results])


def _row(root: Path, result: Result) -> tuple[str, ...]:
    name, subject = result.name, METHODS[result.name]
    driver = f"[driver]({root.name}/{name}.py)"
    if not (root / f"{name}.py").is_file():
        return (f"`{name}`", subject, "planned", "", "")
    if not result.record:
        return (f"`{name}`", subject, "no result yet", "", driver)
    links = f"{driver}, [results]({root.name}/results/{name}/cpu/table.md)"
    return (f"`{name}`", subject, summary(result.claims), headline(result), links)


def gallery_block(root: Path, results: list[Result]) -> str:
    """The main figure of every method that has one."""
    shown = [r for r in results if "figure" in r.record.get("figures", [])]
    if not shown:
        return "No figures yet."
    picture = "**{0}**: {1}\n\n![{1}]({2}/results/{0}/cpu/figure.png)"
    return "\n\n".join(picture.format(r.name, METHODS[r.name], root.name) for r in shown)


BLOCKS: dict[str, Callable[[Path, list[Result]], str]] = {
    "methods": methods_block,
    "gallery": gallery_block,
}


def rewritten(readme: str, root: Path, results: list[Result]) -> str:
    """The README with its generated blocks as the results say.

    Raises:
        ValueError: the markers of a block are not there, once each and in order.
    """
    for name, block in BLOCKS.items():
        start, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
        before, found, rest = readme.partition(start)
        _, closed, after = rest.partition(end)
        if not found or not closed or start in after or end in before + after:
            raise ValueError(f"README.md: expected one block from {start!r} to {end!r}")
        readme = f"{before}{start}\n{block(root, results)}\n{end}{after}"
    return readme


def faults(root: Path) -> list[str]:
    """Everything in which README and result files do not agree; empty when all is well."""
    found, results = [], []
    for name in METHODS:
        try:
            result = read(root, name)
        except ValueError as error:
            found.append(str(error))
            continue
        results.append(result)
        found.extend(_result_faults(result))
    if len(results) < len(METHODS):
        return found
    path = root.parent / "README.md"
    try:
        have = path.read_text(encoding="utf-8")
        want = rewritten(have, root, results)
    except (OSError, ValueError) as error:
        return [*found, str(error)]
    return found + [f"README.md: {line}" for line in _differing(have, want)]


def _result_faults(result: Result) -> list[str]:
    found = []
    stored = [claim["verdict"] for claim in result.record.get("claims", [])]
    for claim, verdict in zip(result.claims, stored, strict=True):
        where = f"{result.name}: claim {claim.id!r}"
        if claim.verdict != verdict:
            found.append(f"{where} is stored as {verdict!r}, its numbers say {claim.verdict!r}")
        if claim.verdict == "not run":
            found.append(f"{where} was not run, which a committed result never holds")
    found += [f"{result.name}: no {path.name}" for path in result.figures if not path.is_file()]
    return found


def _differing(have: str, want: str) -> list[str]:
    lines = difflib.unified_diff(have.splitlines(), want.splitlines(), n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


@dataclass(frozen=True)
class Flags:
    """Flags of the report."""

    check: bool = False
    """Write nothing; end with status 1 and name what differs."""
    html: Path | None = None
    """Also write one page that holds everything, figures included."""


def run_report(flags: Flags, *, root: Path) -> int:
    """Rewrites the README's blocks, or checks them, and writes the page when asked.

    Args:
        flags: what to do.
        root: the package folder of the experiments; the README lies beside it.

    Returns:
        Exit status: 1 when the check finds a fault.

    Raises:
        ValueError: a result file or the README cannot be used.
    """
    if flags.check:
        found = faults(root)
        print("\n".join(found) or "README and results agree")
        if found:
            return 1
    else:
        path = root.parent / "README.md"
        new = rewritten(path.read_text(encoding="utf-8"), root, read_all(root))
        files.write_file(path, new.encode())
        print(f"written: {path}")
    if flags.html is not None:
        from jaxicml.harness import page

        files.write_file(flags.html, page.html(read_all(root)).encode())
        print(f"written: {flags.html}")
    return 0
