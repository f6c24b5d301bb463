"""What the reproductions of Hron, Matthews and Ghahramani (2018) share: the look of a panel, steps of a sequence."""

from __future__ import annotations

from matplotlib.axes import Axes
from torch import Tensor

from fsvi_bench.presenting.figures import LARGE, NORMAL, SMALL, tidy


def dress(axes: Axes, title: str, x: str, y: str, legend: bool = True) -> None:
    """Title and axis labels; the legend, where there is one, without a frame."""
    tidy(axes, SMALL)
    axes.set_title(title, loc="left", fontsize=LARGE)
    axes.set_xlabel(x, fontsize=NORMAL)
    axes.set_ylabel(y, fontsize=NORMAL)
    if legend and axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=SMALL, handlelength=1.6)


def least_step(values: Tensor) -> float:
    """The smallest difference of successive values: positive iff they rise all along."""
    return float(values.diff().min())


def second_half(values: Tensor) -> Tensor:
    """Of a sequence whose limit is in question, the part to judge by."""
    return values[len(values) // 2 :]


def least_slope(values: Tensor, places: Tensor) -> float:
    """The smallest slope between successive points of the second half."""
    return float((second_half(values).diff() / second_half(places).diff()).min())
