"""Files of figures."""

from __future__ import annotations

import pandas as pd

from fsvi_bench.presenting.looks import write_figure
from fsvi_bench.presenting.plots import FigureSpec, Layer, Panel


def test_equal_figures_are_equal_files(tmp_path):
    from matplotlib._pylab_helpers import Gcf

    written = []
    frames = {"points": pd.DataFrame({"x": [1.0, 2.0], "y": [3.0, 4.0]})}
    for folder in ("a", "b"):
        spec = FigureSpec(height=2.0, panels=(Panel(layers=(Layer(kind="linepoints", frame="points"),)),))
        written.append(write_figure(spec.of(frames), tmp_path / folder / "name-1.0"))
    for first, second in zip(*written, strict=True):
        assert first.read_bytes() == second.read_bytes()
    assert [path.name for path in written[0]] == ["name-1.0.png", "name-1.0.svg"]
    assert written[0][0].read_bytes().startswith(b"\x89PNG")
    assert Gcf.get_all_fig_managers() == []
