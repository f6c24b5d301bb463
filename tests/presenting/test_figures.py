"""Figures draw what they are given: looked up in the axes, not in pixels."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.text import Annotation

from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian
from fsvi_bench.presenting.figures import (
    BLUE,
    FAINT,
    FAMILY_STYLE,
    PALETTE,
    VERMILLION,
    Curve,
    Mark,
    curve,
    draw_band,
    draw_level,
    draw_marks,
    draw_outline,
    draw_posteriors,
    draw_training_data,
    new_figure,
    tidy,
    write_figure,
)
from fsvi_bench.presenting.summary import Estimate

CURVE = Curve(np.array([0.0, 1.0, 2.0]), np.array([1.0, -1.0, 0.5]), np.array([0.1, 0.2, 0.4]))


@pytest.fixture
def axes():
    return new_figure(1, 3, 2)[1][0]


def vertices(axes):
    return axes.collections[0].get_paths()[0].vertices


def spread_of(container):
    """Lower and upper end of an error bar."""
    return container.lines[2][0].get_segments()[0][:, 1]


def test_a_curve_is_the_mean_and_deviation_of_f(toy):
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(20, generator=generator, dtype=torch.float64)
    tril = torch.randn(20, 20, generator=generator, dtype=torch.float64).tril()
    tril.diagonal().abs_().add_(0.1)
    drawn = curve(toy, FullGaussian(mean, tril))
    assert (np.diff(drawn.x) > 0).all()
    for place in (0, 57, 199):  # one input at a time, from the definition of the features and a dense covariance
        centres = toy.frozen.inducing_points[:, 0]
        phi = torch.exp(-0.5 * ((drawn.x[place] - centres) / 0.2) ** 2)
        assert drawn.mean[place] == pytest.approx(float(phi @ mean), rel=1e-12, abs=1e-12)
        assert drawn.sd[place] ** 2 == pytest.approx(float(phi @ (tril @ tril.mT) @ phi), rel=1e-12)


def test_only_one_input_can_be_drawn(toy):
    q = FactorisedGaussian(torch.zeros(20, dtype=torch.float64), torch.ones(20, dtype=torch.float64))
    with pytest.raises(ValueError, match="inputs have 2 dimensions"):
        curve(replace(toy, X=toy.X.expand(-1, 2), X_test=toy.X_test.expand(-1, 2)), q)


def test_a_band_reaches_two_standard_deviations(axes):
    draw_band(axes, CURVE, BLUE, "q")
    low, high, mean = (line.get_ydata() for line in axes.lines)
    assert low.tolist() == (CURVE.mean - 2 * CURVE.sd).tolist()
    assert high.tolist() == (CURVE.mean + 2 * CURVE.sd).tolist()
    assert mean.tolist() == CURVE.mean.tolist()
    assert {tuple(point) for point in zip(CURVE.x, low, strict=True)} <= {tuple(p) for p in vertices(axes)}
    assert {tuple(point) for point in zip(CURVE.x, high, strict=True)} <= {tuple(p) for p in vertices(axes)}
    assert axes.lines[2].get_label() == "q"


def test_an_outline_is_not_filled(axes):
    draw_outline(axes, CURVE, BLUE, (0, (1, 1)))
    assert len(axes.lines) == 3
    assert not axes.collections


def test_posteriors_have_a_colour_each_and_the_data_are_points(axes, toy):
    q = FactorisedGaussian(torch.zeros(20, dtype=torch.float64), torch.ones(20, dtype=torch.float64))
    draw_posteriors(axes, toy, {"a": q, "b": q})
    by_label = {line.get_label(): line for line in axes.lines}
    assert [by_label[name].get_color() for name in "ab"] == list(PALETTE[:2])
    data = by_label["training data"]
    assert data.get_linestyle() == "None"
    assert sorted(data.get_xydata().tolist()) == sorted([x, y] for x, y in zip(toy.X[:, 0].tolist(), toy.y.tolist()))  # noqa: B905


def test_training_data_stand_alone(axes, toy):
    draw_training_data(axes, toy)
    assert len(axes.lines) == 1


def test_marks_stand_in_columns_with_their_errors(axes):
    marks = [
        Mark("A", "full", True, Estimate(2.0, 0.5)),
        Mark("A", "ffg", True, Estimate(3.0, None)),
        Mark("B", "full", True, Estimate(4.0, 1.0)),
        Mark("B", "full", False, Estimate(5.0, 1.5)),
    ]
    draw_marks(axes, marks)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["A", "B"]
    points = [container.lines[0] for container in axes.containers]
    assert [point.get_ydata()[0] for point in points] == [2.0, 3.0, 4.0, 5.0]
    assert [round(point.get_xdata()[0], 9) for point in points] == [-0.2, 0.2, 0.72, 0.88]
    assert [point.get_marker() for point in points] == ["o", "s", "o", "o"]
    assert [to_hex(point.get_markerfacecolor()).upper() for point in points] == [BLUE, VERMILLION, BLUE, "#FFFFFF"]
    assert spread_of(axes.containers[0]).tolist() == [1.5, 2.5]
    assert spread_of(axes.containers[3]).tolist() == [3.5, 6.5]
    assert not axes.texts


@pytest.mark.parametrize("rounding", [0.0, -1e-14, 3e-12])
def test_zero_is_said_where_a_logarithm_cannot_show_it(axes, rounding):
    draw_marks(
        axes,
        [Mark("EXACT", "full", True, Estimate(rounding, 1e-15)), Mark("X", "full", True, Estimate(30.0, 1.0))],
        logarithmic=True,
    )
    assert axes.get_yscale() == "log"
    assert axes.get_ylim()[0] > 1  # the axis is not stretched down to rounding errors
    arrow, words = axes.texts
    assert isinstance(arrow, Annotation)
    assert arrow.arrow_patch is not None
    assert (arrow.xy[1], arrow.get_position()[1]) == (0.0, 0.13)  # points down to the lower edge
    assert words.get_text() == "= 0"
    (mark,) = [
        line for line in axes.lines if line.get_transform() == axes.get_xaxis_transform() and line.get_marker() == "o"
    ]
    assert mark.get_xdata()[0] == -0.2


def test_zero_on_a_linear_axis_is_a_point_like_any_other(axes):
    draw_marks(axes, [Mark("EXACT", "full", True, Estimate(0.0, 0.0))])
    assert not axes.texts
    assert axes.containers[0].lines[0].get_ydata()[0] == 0.0


@pytest.mark.parametrize("logarithmic", [True, False])
def test_infinity_and_what_is_lacking_are_said(axes, logarithmic):
    marks = [
        Mark("A", "full", True, Estimate(math.inf, None), finished=4, cells=4),
        Mark("A", "ffg", True, None, finished=0, cells=4),
        Mark("B", "full", True, Estimate(7.0, 1.0), finished=3, cells=3, missing=1),
        Mark("B", "ffg", True, None, finished=0, cells=0, missing=4),
        Mark("C", "full", True, Estimate(8.0, 1.0), finished=4, cells=4),
    ]
    draw_marks(axes, marks, logarithmic)
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["= ∞"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["A\n0–4/4\n0–4 ✗", "B\n0–3/4", "C"]
    assert [container.lines[0].get_alpha() for container in axes.containers] == [FAINT, 1.0]


def test_nothing_stands_on_nothing(axes):
    draw_marks(axes, [Mark("A", family, True, None, finished=0, cells=0, missing=20) for family in ("full", "ffg")])
    assert not axes.texts
    assert list(axes.get_yticks()) == []
    assert [label.get_text() for label in axes.get_xticklabels()] == ["A\n0/20"]


def test_minor_labels_are_no_larger_than_major_ones(axes):
    axes.set_yscale("log")
    axes.set_ylim(20, 60)
    tidy(axes, 8.0)
    axes.figure.canvas.draw()
    sizes = {
        tick.label1.get_fontsize()
        for which in ("major", "minor")
        for tick in getattr(axes.yaxis, f"get_{which}_ticks")()
    }
    assert sizes == {8.0}


@pytest.mark.parametrize(
    ("values", "labels"), [([12.0, 90.0], {"10", "20", "50", "100"}), ([1.0, 1e5], {"$\\mathdefault{10^{2}}$"})]
)
def test_a_logarithmic_axis_has_several_labels(axes, values, labels):
    draw_marks(axes, [Mark(str(value), "full", True, Estimate(value, None)) for value in values], logarithmic=True)
    axes.figure.canvas.draw()
    assert labels <= {label.get_text() for label in axes.get_yticklabels()}


def test_a_level_has_its_familys_colour(axes):
    draw_level(axes, 3.0, "ffg")
    assert axes.lines[0].get_ydata()[0] == 3.0
    assert axes.lines[0].get_color() == FAMILY_STYLE["ffg"][0]


def test_families_can_be_told_apart_without_colour():
    assert len({marker for _, marker in FAMILY_STYLE.values()}) == len(FAMILY_STYLE)


def test_equal_figures_are_equal_files(tmp_path):
    from matplotlib._pylab_helpers import Gcf

    written = []
    for folder in ("a", "b"):
        figure, (axes,) = new_figure(1, 3, 2)
        draw_band(axes, CURVE, BLUE)
        written.append(write_figure(figure, tmp_path / folder / "name-1.0"))
    for first, second in zip(*written, strict=True):
        assert first.read_bytes() == second.read_bytes()
    assert [path.name for path in written[0]] == ["name-1.0.png", "name-1.0.svg"]
    assert written[0][0].read_bytes().startswith(b"\x89PNG")
    assert Gcf.get_all_fig_managers() == []
