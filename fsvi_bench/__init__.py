"""fsvi-bench: how close does an inference method get to the exact Bayesian posterior in function space?

The names in `__all__` are the public API. Each is imported on first use, so `import fsvi_bench` is fast.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fsvi_bench.api.fit import fit
    from fsvi_bench.api.results import results
    from fsvi_bench.api.run import run
    from fsvi_bench.api.score import score
    from fsvi_bench.errors import Diverged, InputError, TaskRefused
    from fsvi_bench.methods.base import AdamOptions, Method, MethodOptions
    from fsvi_bench.methods.bernoulli_dropout import BernoulliDropout
    from fsvi_bench.methods.concrete_dropout import ConcreteDropout
    from fsvi_bench.methods.data import TaskData
    from fsvi_bench.methods.ensemble import Ensemble
    from fsvi_bench.methods.exact import Exact
    from fsvi_bench.methods.f_svgd import FSvgd
    from fsvi_bench.methods.fbnn import Fbnn
    from fsvi_bench.methods.fixed_a import FixedA
    from fsvi_bench.methods.fsp_laplace import FspLaplace
    from fsvi_bench.methods.functional import MeasurementOptions
    from fsvi_bench.methods.gaussian_dropout import GaussianDropout
    from fsvi_bench.methods.gfsvi import Gfsvi
    from fsvi_bench.methods.gwi import Gwi
    from fsvi_bench.methods.hmc import Hmc
    from fsvi_bench.methods.ivon import Ivon
    from fsvi_bench.methods.laplace import Laplace
    from fsvi_bench.methods.low_rank_vi import LowRankVI
    from fsvi_bench.methods.mean_field_vi import MeanFieldVI
    from fsvi_bench.methods.rand_a import RandA
    from fsvi_bench.methods.rand_a_ngd import RandANgd
    from fsvi_bench.methods.sample_then_optimise import SampleThenOptimise
    from fsvi_bench.methods.sghmc import Sghmc
    from fsvi_bench.methods.sgld import Sgld
    from fsvi_bench.methods.sparse_variational_dropout import SparseVariationalDropout
    from fsvi_bench.methods.spike_and_slab import SpikeAndSlab
    from fsvi_bench.methods.ssge import Ssge
    from fsvi_bench.methods.svgd import Svgd
    from fsvi_bench.methods.swag import Swag
    from fsvi_bench.methods.variational_dropout import VariationalDropout
    from fsvi_bench.methods.vip import Vip
    from fsvi_bench.networks.official import load_network
    from fsvi_bench.posteriors.base import Posterior
    from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior, SpikeSlabPosterior
    from fsvi_bench.posteriors.functions import FunctionSamplesPosterior
    from fsvi_bench.posteriors.gaussian import FactorGaussian, FactorisedGaussian, FullGaussian
    from fsvi_bench.posteriors.particles import ParticlesPosterior
    from fsvi_bench.posteriors.samples import SamplesPosterior
    from fsvi_bench.tasks.official import list_tasks, load_task
    from fsvi_bench.tasks.own import make_task
    from fsvi_bench.tasks.task import Task
    from fsvi_bench.training.callbacks import Scores

    __version__: str

#: Public name -> the module of this package that defines it.
HOMES = {
    "AdamOptions": "methods.base",
    "BernoulliDropout": "methods.bernoulli_dropout",
    "BernoulliDropoutPosterior": "posteriors.dropout",
    "ConcreteDropout": "methods.concrete_dropout",
    "Diverged": "errors",
    "Ensemble": "methods.ensemble",
    "Exact": "methods.exact",
    "FSvgd": "methods.f_svgd",
    "FactorGaussian": "posteriors.gaussian",
    "FactorisedGaussian": "posteriors.gaussian",
    "Fbnn": "methods.fbnn",
    "FixedA": "methods.fixed_a",
    "FspLaplace": "methods.fsp_laplace",
    "FullGaussian": "posteriors.gaussian",
    "FunctionSamplesPosterior": "posteriors.functions",
    "GaussianDropout": "methods.gaussian_dropout",
    "Gfsvi": "methods.gfsvi",
    "Gwi": "methods.gwi",
    "Hmc": "methods.hmc",
    "InputError": "errors",
    "Ivon": "methods.ivon",
    "Laplace": "methods.laplace",
    "LowRankVI": "methods.low_rank_vi",
    "MeanFieldVI": "methods.mean_field_vi",
    "MeasurementOptions": "methods.functional",
    "Method": "methods.base",
    "MethodOptions": "methods.base",
    "ParticlesPosterior": "posteriors.particles",
    "Posterior": "posteriors.base",
    "RandA": "methods.rand_a",
    "RandANgd": "methods.rand_a_ngd",
    "SampleThenOptimise": "methods.sample_then_optimise",
    "SamplesPosterior": "posteriors.samples",
    "Scores": "training.callbacks",
    "Sghmc": "methods.sghmc",
    "Sgld": "methods.sgld",
    "SparseVariationalDropout": "methods.sparse_variational_dropout",
    "SpikeAndSlab": "methods.spike_and_slab",
    "SpikeSlabPosterior": "posteriors.dropout",
    "Ssge": "methods.ssge",
    "Svgd": "methods.svgd",
    "Swag": "methods.swag",
    "Task": "tasks.task",
    "TaskData": "methods.data",
    "TaskRefused": "errors",
    "VariationalDropout": "methods.variational_dropout",
    "Vip": "methods.vip",
    "fit": "api.fit",
    "list_tasks": "tasks.official",
    "load_network": "networks.official",
    "load_task": "tasks.official",
    "make_task": "tasks.own",
    "results": "api.results",
    "run": "api.run",
    "score": "api.score",
}

__all__ = [
    "AdamOptions", "BernoulliDropout", "BernoulliDropoutPosterior", "ConcreteDropout", "Diverged", "Ensemble", "Exact",
    "FSvgd", "FactorGaussian", "FactorisedGaussian", "Fbnn", "FixedA", "FspLaplace", "FullGaussian",
    "FunctionSamplesPosterior", "GaussianDropout", "Gfsvi", "Gwi", "Hmc", "InputError", "Ivon", "Laplace", "LowRankVI",
    "MeanFieldVI", "MeasurementOptions", "Method", "MethodOptions", "ParticlesPosterior", "Posterior", "RandA",
    "RandANgd", "SampleThenOptimise", "SamplesPosterior", "Scores", "Sghmc", "Sgld", "SparseVariationalDropout",
    "SpikeAndSlab", "SpikeSlabPosterior", "Ssge", "Svgd", "Swag", "Task", "TaskData", "TaskRefused",
    "VariationalDropout", "Vip", "__version__", "fit", "list_tasks", "load_network", "load_task", "make_task",
    "results", "run", "score",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        value: object = version("fsvi-bench")
    elif name in HOMES:
        value = getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
