"""The published figures and tables that can be made again, by name."""

from __future__ import annotations

from fsvi_bench.errors import unknown_name
from fsvi_bench.papers.base import Reproduction
from fsvi_bench.papers.burt2020.roots import BURT2020_ROOTS
from fsvi_bench.papers.burt2020.shrinkage import BURT2020_SHRINKAGE
from fsvi_bench.papers.burt2020.sizes import draw_sizes
from fsvi_bench.papers.burt2020.study.reproduction import BURT2020_STUDY
from fsvi_bench.papers.burt2020.theory.experiment import BURT2020_THEORY
from fsvi_bench.papers.burt2020.toy_and_scores import draw_figure_1, draw_figure_2
from fsvi_bench.papers.from_records import FromRecords
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


def _sizes(name: str, datasets: tuple[str, ...]) -> Reproduction:
    summary = f"Burt et al. (2020), figure {name[-1]}: {', '.join(datasets)} by size of A, from a study's records"
    quick = {"max_steps": 300, "splits": "0-1"}
    return FromRecords(name, quick, draw_sizes(name), "burt2020", {"datasets": datasets}, summary, takes_days=True)


_ALL: tuple[Reproduction, ...] = (
    FromRecords("burt2020-fig1", {"max_steps": 500}, draw_figure_1),
    FromRecords("burt2020-fig2", {"max_steps": 1000, "splits": "0-1"}, draw_figure_2),
    _sizes("burt2020-fig3", ("boston", "concrete", "energy", "kin8nm")),
    _sizes("burt2020-fig4", ("naval", "power", "wine", "yacht")),
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
