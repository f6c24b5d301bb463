"""Experiments on networks made tiny, so that they run from end to end in seconds."""

from fsvi_bench.papers import experiment
from fsvi_bench.papers.base import Workshop
from fsvi_bench.papers.registry import REPRODUCTIONS
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources


def shrink(monkeypatch, quick):
    """Other settings, by experiment, in place of the quick scale; everything else stays as its YAML has it."""
    read = experiment.read_yaml

    def read_tiny(path):
        content = read(path)
        return {**content, "quick": quick[path.stem]} if path.stem in quick else content

    monkeypatch.setattr(experiment, "read_yaml", read_tiny)


def require_two_runs_alike(name, folder):
    """Every file is written, with the same bytes by a run elsewhere; a second run there finds all parts."""
    first, second = (
        REPRODUCTIONS[name].make(Workshop(folder / each, True, Resources(), Silent())) for each in ("a", "b")
    )
    assert first.computed > 0
    assert [path.suffix for path in first.files] == [".png", ".svg", ".json", ".csv"]
    for one, other in zip(first.files, second.files, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.suffix
    again = REPRODUCTIONS[name].make(Workshop(folder / "a", True, Resources(), Silent()))
    assert (again.computed, again.reused) == (0, first.computed)
    assert again.claims == first.claims
