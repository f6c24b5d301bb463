"""Reproductions of published figures and tables, by name."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from fsvi_bench.errors import unknown_name
from fsvi_bench.papers import linear_vs_network, numerics
from fsvi_bench.papers.atlas import experiment as atlas
from fsvi_bench.papers.burt2020 import roots, scores, shrinkage, toy
from fsvi_bench.papers.burt2020.study.reproduction import Study
from fsvi_bench.papers.burt2020.theory import experiment as theory
from fsvi_bench.papers.experiment import Experiment, Reproduction
from fsvi_bench.papers.gal2016 import elbo, section_6_3, uncertainty
from fsvi_bench.papers.hron2018 import fig1_3, fig5, limits, moments
from fsvi_bench.papers.ksw2015 import fig1, fig2, variance
from fsvi_bench.papers.tuning import experiment as tuning
from fsvi_bench.papers.validation import experiment as validation
from fsvi_bench.running.options import Request

_OF_CELLS: tuple[Reproduction[Any], ...] = (
    Experiment("burt2020-fig1", Request, toy.compare_curves),
    Experiment("burt2020-fig2", Request, scores.compare_scores),
    Experiment("burt2020-fig3", Request, scores.compare_scores, takes_days=True),
    Experiment("burt2020-fig4", Request, scores.compare_scores, takes_days=True),
    Study("burt2020-study", Request, takes_days=True),
    Experiment("linear-vs-network", Request, linear_vs_network.compare_tracks),
    Experiment("numerics", Request, numerics.compare_settings),
)
#: Modules with `Settings`, `investigate` and optionally a `page`.
_MODULES: dict[str, ModuleType] = {
    "burt2020-roots": roots,
    "burt2020-shrinkage": shrinkage,
    "burt2020-theory": theory,
    "ksw2015-variance": variance,
    "ksw2015-fig1": fig1,
    "ksw2015-fig2": fig2,
    "gal2016-6.3": section_6_3,
    "hron2018-fig1-3": fig1_3,
    "hron2018-moments": moments,
    "hron2018-limits": limits,
    "hron2018-fig5": fig5,
    "gal2016-elbo": elbo,
    "gal2016-uncertainty": uncertainty,
    "atlas": atlas,
    "tuning": tuning,
    "validation": validation,
}
REPRODUCTIONS: dict[str, Reproduction[Any]] = {each.name: each for each in _OF_CELLS} | {
    name: Experiment(name, module.Settings, module.investigate, getattr(module, "page", None))
    for name, module in _MODULES.items()
}


def find_reproduction(name: str) -> Reproduction[Any]:
    """A reproduction by name.

    Raises:
        InputError: there is no reproduction of that name.
    """
    if name not in REPRODUCTIONS:
        raise unknown_name("reproduction", name, REPRODUCTIONS)
    return REPRODUCTIONS[name]
