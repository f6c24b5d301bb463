"""The published figures and tables that can be made again, by name."""

from __future__ import annotations

from typing import Any

from fsvi_bench.errors import unknown_name
from fsvi_bench.papers.burt2020 import roots, scores, shrinkage, toy
from fsvi_bench.papers.burt2020.study.reproduction import BURT2020_STUDY
from fsvi_bench.papers.burt2020.theory.experiment import BURT2020_THEORY
from fsvi_bench.papers.experiment import Reproduction
from fsvi_bench.papers.gal2016 import elbo, section_6_3, uncertainty
from fsvi_bench.papers.hron2018 import fig1_3, fig5, limits, moments
from fsvi_bench.papers.ksw2015 import fig1, fig2, variance
from fsvi_bench.papers.validation.experiment import VALIDATION

_ALL: tuple[Reproduction[Any], ...] = (
    toy.BURT2020_FIG1,
    scores.BURT2020_FIG2,
    scores.BURT2020_FIG3,
    scores.BURT2020_FIG4,
    BURT2020_STUDY,
    roots.BURT2020_ROOTS,
    shrinkage.BURT2020_SHRINKAGE,
    BURT2020_THEORY,
    variance.KSW2015_VARIANCE,
    fig1.KSW2015_FIG1,
    fig2.KSW2015_FIG2,
    section_6_3.GAL2016_63,
    fig1_3.HRON2018_FIG1_3,
    moments.HRON2018_MOMENTS,
    limits.HRON2018_LIMITS,
    fig5.HRON2018_FIG5,
    elbo.GAL2016_ELBO,
    uncertainty.GAL2016_UNCERTAINTY,
    VALIDATION,
)
REPRODUCTIONS = {reproduction.name: reproduction for reproduction in _ALL}


def find_reproduction(name: str) -> Reproduction[Any]:
    """A reproduction by name.

    Raises:
        InputError: there is none of that name.
    """
    if name not in REPRODUCTIONS:
        raise unknown_name("reproduction", name, REPRODUCTIONS)
    return REPRODUCTIONS[name]
