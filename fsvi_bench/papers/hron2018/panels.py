"""The look of a panel, until every figure is specified in YAML."""

from __future__ import annotations

from matplotlib.axes import Axes

from fsvi_bench.presenting import plots
from fsvi_bench.presenting.figures import SMALL


def dress(axes: Axes, title: str, x: str, y: str, legend: bool = True) -> None:
    """Title and axis labels; the legend, where there is one, without a frame."""
    plots.dress(axes, title, x, y)
    if legend and axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=SMALL, handlelength=1.6)
