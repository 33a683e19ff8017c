import itertools

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import isotonic_regression

from jaxicml.harness import plots


def boxes(ax):
    renderer = ax.figure.canvas.get_renderer()
    return {text.get_text(): text.get_window_extent(renderer) for text in ax.texts}


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=8), st.integers(1, 20))
def test_spread_is_the_least_squares_solution(positions, gap):
    positions = np.array(positions, float)
    order, steps = np.argsort(positions, kind="stable"), gap * np.arange(len(positions))
    moved = plots.spread(positions, float(gap))
    want = isotonic_regression(positions[order] - steps) + steps
    np.testing.assert_allclose(moved[order], want, atol=1e-9)
    assert (np.diff(moved[order]) >= gap - 1e-9).all()
    inside = plots.spread(positions, float(gap), -100.0, 100.0)
    want = isotonic_regression(positions[order] - steps, y_min=-100, y_max=100 - steps[-1]) + steps
    np.testing.assert_allclose(inside[order], want, atol=1e-9)


@pytest.mark.parametrize("ends", [(0.5, 0.5, 0.5, 0.5), (0.0, 0.01, 0.99, 1.0), (1, 1, 1, 0)])
def test_labels_stand_beside_their_lines_and_never_overlap(ends):
    figure, (ax,) = plots.panels(1)
    for k, end in enumerate(ends):
        plots.line(ax, [0, 1, 2], [0, end, end], label=f"method {k}")
    plots.line(ax, [0, 1, 2], [0, 0, 1])
    plots.reference(ax, 0.05, "level")
    plots.direct_labels(ax)
    plots.png(figure)
    found = boxes(ax)
    assert set(found) == {"method 0", "method 1", "method 2", "method 3", "level"}
    for (_, a), (_, b) in itertools.combinations(found.items(), 2):
        assert not a.overlaps(b)
    for box in found.values():
        assert box.x1 <= figure.bbox.x1
    colours = [line.get_color() for line in ax.get_lines()[:4]]
    assert colours == list(plots.PALETTE[:4])
    assert [text.get_color() for text in ax.texts[:4]] == colours


def test_labels_follow_the_last_finite_point_and_log_axes():
    figure, (ax,) = plots.panels(["growth"])
    plots.line(ax, [250, 500, 1000], [1.0, 10.0, np.nan], label="stops early")
    plots.line(ax, [250, 500, 1000], [np.nan] * 3, label="nothing")
    plots.log_axis(ax, "x", [250, 500, 1000])
    plots.log_axis(ax, "y")
    plots.direct_labels(ax)
    plots.png(figure)
    assert [text.get_text() for text in ax.texts] == ["stops early"]
    assert ax.texts[0].xy == (500, 10.0)
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["250", "500", "1000"]


def everything():
    figure, axes = plots.panels(["a", "b", "c", "d"], columns=2)
    y = np.array([0.1, 0.5, 0.9])
    plots.line(axes[0], [0, 1, 2], y, y - 0.1, y + 0.1, label="ours")
    plots.line(axes[0], [0, 1, 2], 1 - y, dashed=True, label="theory")
    plots.direct_labels(axes[0])
    plots.bars(axes[1], ["one", "two"], [1.0, -2.0], [0.5, -2.5], [1.5, -1.0])
    plots.bars(axes[2], ["one", "two"], [1, 2], color=plots.PALETTE[:2])
    plots.histogram(axes[3], [*np.linspace(0, 1, 50), np.nan], label="draws", bins=5)
    plots.histogram(axes[3], np.linspace(0, 2, 50), label="others", bins=5)
    return figure, axes


def test_equal_figures_give_equal_bytes_and_nothing_global_changes():
    before = dict(matplotlib.rcParams)
    first = plots.png(everything()[0])
    assert first == plots.png(everything()[0])
    with matplotlib.rc_context({"font.size": 30, "axes.grid": False}):
        assert plots.png(everything()[0]) == first
    assert dict(matplotlib.rcParams) == before
    assert b"Software" not in first
    assert b"tIME" not in first


def test_bars_bands_and_histograms_hold_the_numbers():
    _, axes = everything()
    band = axes[0].collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((0.0, 1.0))
    assert [patch.get_width() for patch in axes[1].patches] == [1.0, -2.0]
    assert [text.get_text() for text in axes[1].texts] == ["1", "-2"]
    assert [label.get_text() for label in axes[1].get_yticklabels()] == ["one", "two"]
    values, edges, _ = axes[3].patches[0].get_data()
    assert (values * np.diff(edges)).sum() == pytest.approx(1)
    assert axes[3].patches[0].get_edgecolor() != axes[3].patches[2].get_edgecolor()


def test_panels_make_as_many_axes_as_titles(tmp_path):
    figure, axes = plots.panels(["a", "b", "c", "d"])
    assert [ax.get_title(loc="left") for ax in axes] == ["a", "b", "c", "d"]
    assert len(figure.axes) == 4
    plots.save(figure, tmp_path / "deep" / "figure.png")
    assert (tmp_path / "deep" / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_wrong_panels_and_lengths(as_user):
    with pytest.raises(ValueError, match=r"number of panels: .* got 0"):
        plots.panels([])
    _, (ax,) = plots.panels(1)
    with pytest.raises(ValueError, match="expected equal numbers of rows, got x has 2, y has 3"):
        plots.line(ax, [1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="low has 1"):
        plots.line(ax, [1, 2], [1, 2], [1], [1, 2])
    with pytest.raises(ValueError, match="names has 1, values has 2"):
        plots.bars(ax, ["a"], [1, 2])
    with pytest.raises(ValueError, match=r"which: expected one of \['x', 'y'\], got 'z'"):
        plots.log_axis(ax, "z")
