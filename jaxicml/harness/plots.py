"""One style for every figure.

Colours that colour-blind readers tell apart, labels at the ends of lines instead of legends,
bands for intervals, a light grid, no box. Figures are made without pyplot: nothing global
changes, no window opens, and equal numbers give equal bytes.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from jaxicml import checks
from jaxicml.harness import files, text

__all__ = [
    "GREY",
    "PALETTE",
    "bars",
    "direct_labels",
    "histogram",
    "line",
    "log_axis",
    "panels",
    "png",
    "reference",
    "save",
]

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#333333")
"""Okabe and Ito's colours without the yellow, which vanishes on white."""

GREY = "#777777"
"""For references and what is not a result."""

Number = float | int

FONT = 9.5
DPI = 150

STYLE = {
    "font.size": FONT,
    "axes.titlesize": FONT + 1,
    "axes.titlelocation": "left",
    "axes.titlepad": 8.0,
    "axes.labelcolor": "#333333",
    "axes.edgecolor": "#999999",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.8,
    "xtick.color": "#999999",
    "ytick.color": "#999999",
    "xtick.labelcolor": "#333333",
    "ytick.labelcolor": "#333333",
    "figure.dpi": DPI,
    "savefig.dpi": "figure",
}


def _style():
    return matplotlib.style.context(["default", STYLE])


def panels(
    titles: Sequence[str] | int,
    *,
    columns: int | None = None,
    width: Number = 4.0,
    height: Number = 3.1,
) -> tuple[Figure, list[Axes]]:
    """A figure with one panel a title.

    Args:
        titles: one a panel, or how many panels without titles.
        columns: panels in a row; at most three by default.
        width: of one panel, in inches.
        height: of one panel, in inches.

    Returns:
        The figure and its axes, row by row.

    Raises:
        ValueError: no panel.

    >>> figure, axes = panels(["left", "right"])
    >>> len(axes)
    2
    """
    names = [""] * titles if isinstance(titles, int) else list(titles)
    checks.check_integer("number of panels", len(names), low=1)
    columns = min(columns or 3, len(names))
    rows = -(-len(names) // columns)
    with _style():
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for ax, name in zip(grid, names, strict=False):
            ax.set_title(name)
            ax.set_prop_cycle(color=PALETTE)
        for ax in grid[len(names) :]:
            ax.remove()
    return figure, list(grid[: len(names)])


def line(
    ax: Axes,
    x: Any,
    y: Any,
    low: Any = None,
    high: Any = None,
    *,
    label: str = "",
    color: str | None = None,
    dashed: bool = False,
    marked: bool | None = None,
) -> None:
    """A line with the band of its interval.

    Args:
        ax: panel.
        x: positions.
        y: values.
        low: lower ends of the intervals.
        high: upper ends.
        label: what `direct_labels` writes at its end.
        color: the next of `PALETTE` by default.
        dashed: for theory, limits and what was not measured.
        marked: whether points are marked; by default where there are few.

    Raises:
        ValueError: lengths differ.
    """
    x, y = np.asarray(x), np.asarray(y, float)
    checks.check_same_length(x=x, y=y)
    marked = len(x) <= 12 and not dashed if marked is None else marked
    (drawn,) = ax.plot(
        x,
        y,
        color=color,
        label=label or "_",
        linewidth=1.8,
        linestyle="--" if dashed else "-",
        marker="o" if marked else None,
        markersize=4,
    )
    if low is not None and high is not None:
        low, high = np.asarray(low, float), np.asarray(high, float)
        checks.check_same_length(x=x, low=low, high=high)
        ax.fill_between(x, low, high, color=drawn.get_color(), alpha=0.16, linewidth=0)


def reference(ax: Axes, y: Number, label: str = "") -> None:
    """A thin dashed horizontal line: a level, a target, a chance rate; `direct_labels` names it."""
    style = {"color": GREY, "linewidth": 1, "linestyle": (0, (4, 3)), "zorder": 1}
    ax.axhline(y, label=label or "_", **style)


def log_axis(ax: Axes, which: str, ticks: Any = None) -> None:
    """Makes an axis logarithmic.

    Args:
        ax: panel.
        which: "x" or "y".
        ticks: the only values that are marked, as plain numbers; for example the sizes.

    Raises:
        ValueError: another name of an axis.
    """
    checks.check_choice("which", which, ("x", "y"))
    ax.set(**{f"{which}scale": "log"})
    if ticks is not None:
        axis = ax.xaxis if which == "x" else ax.yaxis
        axis.set_ticks(list(ticks), [text.number(tick) for tick in text.plain(ticks)])
        axis.set_minor_locator(NullLocator())


def direct_labels(ax: Axes, *, gap: Number = 1.25) -> None:
    """Writes the label of each line beside its last point, in its colour, none over another.

    Call it last: it reads the limits of the axes.

    Args:
        ax: panel.
        gap: least distance of two labels, in heights of the font.
    """
    ends = []
    for drawn in ax.get_lines():
        x, y = drawn.get_xdata(), np.asarray(drawn.get_ydata(), float)
        seen = np.flatnonzero(np.isfinite(y))
        if len(seen) and not str(drawn.get_label()).startswith("_"):
            ends.append((drawn, np.asarray(x)[seen[-1]], y[seen[-1]]))
    if not ends:
        return
    ax.figure.draw_without_rendering()  # pyright: ignore[reportAttributeAccessIssue]
    points = 72 / ax.figure.dpi
    places = [drawn.get_transform().transform((x, y)) for drawn, x, y in ends]
    heights = np.array(places)[:, 1] * points
    bottom, top = ax.bbox.y0 * points, ax.bbox.y1 * points
    shifts = spread(heights, gap * FONT, bottom, top) - heights
    for (drawn, x, y), shift in zip(ends, shifts, strict=True):
        ax.annotate(
            str(drawn.get_label()),
            (x, y),
            xycoords=drawn.get_transform(),
            xytext=(6, shift),
            textcoords="offset points",
            va="center",
            color=drawn.get_color(),
            fontsize=FONT,
            annotation_clip=False,
        )


def spread(
    positions: np.ndarray, gap: float, low: float = -np.inf, high: float = np.inf
) -> np.ndarray:
    """The nearest positions, in least squares, of the same order and at least `gap` apart.

    Shifted by their ranks this is a monotone regression: pool what violates the order, then clip.

    Args:
        positions: where labels would like to be.
        gap: least distance.
        low: no position below, as far as there is room.
        high: no position above.

    Returns:
        The new positions, in the order of the old.

    >>> spread(np.array([0.0, 0.0, 10.0]), 2.0)
    array([-1., 1., 10.])
    """
    order = np.argsort(positions, kind="stable")
    steps = gap * np.arange(len(positions))
    pools: list[list[float]] = []
    for value in positions[order] - steps:
        pools.append([float(value)])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    free = np.concatenate([np.full(len(pool), np.mean(pool)) for pool in pools])
    moved = np.empty(len(positions))
    moved[order] = np.clip(free, low, high - steps[-1]) + steps
    return moved


def bars(
    ax: Axes,
    names: Sequence[str],
    values: Any,
    low: Any = None,
    high: Any = None,
    *,
    color: str | Sequence[str] = PALETTE[0],
) -> None:
    """Horizontal bars from top to bottom with intervals and their numbers.

    Args:
        ax: panel.
        names: one a bar.
        values: lengths.
        low: lower ends of the intervals.
        high: upper ends.
        color: of all bars or one a bar.

    Raises:
        ValueError: lengths differ.
    """
    values = np.asarray(values, float)
    low = values if low is None else np.asarray(low, float)
    high = values if high is None else np.asarray(high, float)
    checks.check_same_length(names=names, values=values, low=low, high=high)
    rows = np.arange(len(names))
    ax.barh(rows, values, height=0.62, color=color, alpha=0.85)
    errors = np.stack([values - low, high - values])
    if errors.any():
        style = {"color": "#333333", "elinewidth": 1.1, "capsize": 2.5, "fmt": "none"}
        ax.errorbar(values, rows, xerr=np.maximum(errors, 0), **style)
    for row, value, end in zip(rows, values, np.maximum(high, values), strict=True):
        ax.annotate(
            text.number(text.rounded(value, 3)),
            (max(end, 0), row),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=FONT - 1,
            annotation_clip=False,
        )
    ax.set_yticks(rows, names)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    ax.invert_yaxis()


def histogram(
    ax: Axes,
    values: Any,
    *,
    label: str = "",
    bins: Any = 30,
    color: str | None = None,
) -> None:
    """An outlined density; labels stand below each other in the upper right.

    Args:
        ax: panel.
        values: the sample; values that are not finite are left out.
        label: of the sample.
        bins: how many, or their edges (give edges to compare samples).
        color: the next of `PALETTE` by default.
    """
    values = np.ravel(np.asarray(values, float))
    density, edges = np.histogram(values[np.isfinite(values)], bins=bins, density=True)
    drawn = sum(not patch.get_fill() for patch in ax.patches)  # outlines that are there already
    color = color or PALETTE[drawn % len(PALETTE)]
    ax.stairs(density, edges, linewidth=1.6, color=color)
    ax.stairs(density, edges, fill=True, alpha=0.18, color=color)
    if label:
        ax.annotate(
            label,
            (1, 1),
            xycoords="axes fraction",
            xytext=(-2, -2 - 1.35 * FONT * drawn),
            textcoords="offset points",
            ha="right",
            va="top",
            color=color,
            fontsize=FONT,
        )


def png(figure: Figure) -> bytes:
    """The figure as PNG: the same figure gives the same bytes."""
    stream = io.BytesIO()
    with _style():
        figure.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()


def save(figure: Figure, path: Path) -> None:
    """Writes the figure as PNG, in one step."""
    files.write_file(Path(path), png(figure))
