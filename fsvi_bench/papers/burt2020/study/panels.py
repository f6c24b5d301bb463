"""Small panels of the study's figures, one per data set, and what each says of how many splits it shows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fsvi_bench.presenting.figures import FAINT, NORMAL, PAGE_WIDTH, SMALL, span, tidy

ACROSS = 4  #: panels in a row
MEDIANS = "medians over splits; n/N: lines are over n of N planned splits (0: none yet), faint below N"


def small_panels(count: int, height: float, shared: bool = False) -> tuple[Figure, list[Axes]]:
    """Panels of that height (inches) in rows of four."""
    across, down = min(ACROSS, count), math.ceil(count / ACROSS)
    figure = Figure(figsize=(PAGE_WIDTH, height * down + 0.8), layout="constrained")
    panels = list(figure.subplots(down, across, squeeze=False, sharex=shared, sharey=shared).flat)
    for spare in panels[count:]:
        spare.set_visible(False)
    for lowest in panels[max(count - across, 0) : count]:  # shared axes are labelled beneath the last row alone
        lowest.tick_params(labelbottom=True)
    return figure, panels


def finish(axes: Axes, dataset: str, counts: Sequence[tuple[int, int]]) -> None:
    """A panel's titles: its data set, and of how many planned splits its lines are (pairs). No frame, few labels."""
    tidy(axes, SMALL)
    axes.tick_params(which="minor", labelbottom=False, labelleft=False)
    axes.set_title(dataset, fontsize=NORMAL, loc="left")
    if counts:
        words = f"{span([found for found, _ in counts])}/{span([planned for _, planned in counts])}"
        axes.set_title(words, loc="right", fontsize=SMALL, style="italic")


def opacity(found: int, planned: int) -> float:
    """Faint unless every planned split is there."""
    return 1.0 if found >= planned else FAINT
