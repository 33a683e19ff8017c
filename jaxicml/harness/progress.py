"""Progress of long computations: a bar when a person watches, silence otherwise."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["Bars", "Silent", "for_terminal"]

Item = TypeVar("Item")


class Silent:
    """Reports nothing."""

    def __enter__(self) -> "Silent":
        return self

    def __exit__(self, *error) -> None:
        return None

    def track(
        self, items: Iterable[Item], description: str, total: int | None = None
    ) -> Iterator[Item]:
        """Yields `items`.

        >>> list(Silent().track(range(3), "three steps"))
        [0, 1, 2]
        """
        yield from items

    def note(self, message: str) -> None:
        """Drops the line."""


class Bars:
    """One bar for each `track`, nested ones below each other; a context manager."""

    def __init__(self, console: Console):
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )

    def __enter__(self) -> "Bars":
        self._bars.start()
        return self

    def __exit__(self, *error) -> None:
        self._bars.stop()

    def track(
        self, items: Iterable[Item], description: str, total: int | None = None
    ) -> Iterator[Item]:
        """Yields `items`, advancing a bar by one after each; the bar leaves at the end."""
        if total is None and hasattr(items, "__len__"):
            total = len(items)  # pyright: ignore[reportArgumentType]
        bar = self._bars.add_task(description, total=total)
        try:
            for item in items:
                yield item
                self._bars.advance(bar)
        finally:
            self._bars.remove_task(bar)

    def note(self, message: str) -> None:
        """Prints one line above the bars."""
        self._bars.console.print(message, markup=False, highlight=False)


def for_terminal(stream=None) -> Bars | Silent:
    """Bars when the stream (standard error by default) is a terminal, silence otherwise.

    >>> import io
    >>> type(for_terminal(io.StringIO())).__name__
    'Silent'
    """
    stream = sys.stderr if stream is None else stream
    return Bars(Console(file=stream)) if stream.isatty() else Silent()
