"""The published figures and tables that can be made again, by name."""

from __future__ import annotations

from fsvi_bench.errors import unknown_name
from fsvi_bench.papers.base import Reproduction
from fsvi_bench.papers.burt2020.roots import BURT2020_ROOTS
from fsvi_bench.papers.burt2020.shrinkage import BURT2020_SHRINKAGE
from fsvi_bench.papers.burt2020.scores import BURT2020_FIG2, BURT2020_FIG3, BURT2020_FIG4
from fsvi_bench.papers.burt2020.study.reproduction import BURT2020_STUDY
from fsvi_bench.papers.burt2020.theory.experiment import BURT2020_THEORY
from fsvi_bench.papers.burt2020.toy import BURT2020_FIG1
from fsvi_bench.papers.gal2016.elbo import GAL2016_ELBO
from fsvi_bench.papers.gal2016.section_6_3 import GAL2016_63
from fsvi_bench.papers.gal2016.uncertainty import GAL2016_UNCERTAINTY
from fsvi_bench.papers.hron2018.fig1_3 import HRON2018_FIG1_3
from fsvi_bench.papers.hron2018.fig5 import HRON2018_FIG5
from fsvi_bench.papers.hron2018.limits import HRON2018_LIMITS
from fsvi_bench.papers.hron2018.moments import HRON2018_MOMENTS
from fsvi_bench.papers.ksw2015.fig1 import KSW2015_FIG1
from fsvi_bench.papers.ksw2015.fig2 import KSW2015_FIG2
from fsvi_bench.papers.ksw2015.variance import KSW2015_VARIANCE
from fsvi_bench.papers.validation.experiment import VALIDATION


_ALL: tuple[Reproduction, ...] = (
    BURT2020_FIG1,
    BURT2020_FIG2,
    BURT2020_FIG3,
    BURT2020_FIG4,
    BURT2020_STUDY,
    BURT2020_ROOTS,
    BURT2020_SHRINKAGE,
    BURT2020_THEORY,
    KSW2015_VARIANCE,
    KSW2015_FIG1,
    KSW2015_FIG2,
    GAL2016_63,
    HRON2018_FIG1_3,
    HRON2018_MOMENTS,
    HRON2018_LIMITS,
    HRON2018_FIG5,
    GAL2016_ELBO,
    GAL2016_UNCERTAINTY,
    VALIDATION,
)
REPRODUCTIONS = {reproduction.name: reproduction for reproduction in _ALL}


def find_reproduction(name: str) -> Reproduction:
    """A reproduction by name.

    Raises:
        InputError: there is none of that name.
    """
    if name not in REPRODUCTIONS:
        raise unknown_name("reproduction", name, REPRODUCTIONS)
    return REPRODUCTIONS[name]
