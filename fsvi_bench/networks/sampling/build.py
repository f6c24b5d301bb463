"""Builds references: samples a task's posterior in pieces, each kept once it is finished, and certifies the result."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any, Literal

import jax
import numpy as np
import torch
from safetensors.numpy import load_file, save

from fsvi_bench.errors import InputError
from fsvi_bench.files import sha256_of_json, write_atomically
from fsvi_bench.maths.networks import LinearModel
from fsvi_bench.networks.plan import Sampling
from fsvi_bench.networks.reference import (
    DRAWS,
    KEPT,
    Agreement,
    Bidirectional,
    Certificate,
    Estimate,
    Functions,
    Quadrature,
    packed,
)
from fsvi_bench.networks.sampling import evidence, simulated
from fsvi_bench.networks.sampling.agreement import MMD_DRAWS, agreement, monte_carlo_errors
from fsvi_bench.networks.sampling.models import LogitTarget, Model, Target, function_draws
from fsvi_bench.networks.sampling.nuts import Chain, sample_chain, thin
from fsvi_bench.networks.sampling.quadrature import quadrature
from fsvi_bench.networks.sampling.smc import Schedule, pool, smc_run
from fsvi_bench.networks.task import PLACES, POINTS, NetworkTask, Training
from fsvi_bench.seeds import derive_seed, derived_generator
from fsvi_bench.tensorfile import identity

Kind = Literal["chain", "particles", "ladder", "bounds", "ranks"]
Arrays = dict[str, Any]  #: by name
GROUPS: dict[str, slice] = {place: slice(POINTS * i, POINTS * (i + 1)) for i, place in enumerate(PLACES)}
VERSIONS = {name: importlib.metadata.version(name) for name in ("jax", "numpyro", "blackjax", "arviz")}
PILOT = 128  #: particles of the run that gives a data set's schedule


@dataclass(frozen=True)
class Piece:
    """One independent part of the work: a chain, a particle run, a ladder, or a simulated data set."""

    task: NetworkTask
    training: Training
    sampling: Sampling
    folder: Path
    kind: Kind
    index: int

    @property
    def path(self) -> Path:
        """Its file; the name covers everything that decides the result, apart from this package's code."""
        lengths = self.sampling.model_dump(mode="json", include=set(FIELDS[self.kind]))
        settings = [lengths, self.kind, self.index, VERSIONS, *SCHEMES.get(self.kind, ())]
        return self.folder / f"{self.task.sha256[:16]}-{sha256_of_json(settings)[:16]}.safetensors"

    @property
    def key(self) -> Any:
        """The piece's random key."""
        return jax.random.key(derive_seed("network reference", self.task.sha256, self.kind, self.index) % 2**63)

    def read(self) -> Arrays:
        """The finished piece."""
        return load_file(self.path)


FIELDS: dict[Kind, tuple[str, ...]] = {
    "chain": ("warmup", "draws"),
    "particles": ("particles", "moves"),
    "ladder": ("particles", "moves", "ladder_warmup", "ladder_draws"),
    "bounds": ("moves", "temperatures", "annealed"),
    "ranks": ("rank_warmup", "rank_draws"),
}
SCHEMES: dict[Kind, tuple[str, ...]] = {
    "bounds": ("one chain backwards", "own schedule")
}  #: change with the way of computing


def compute(piece: Piece) -> None:
    """Computes and keeps one piece. Seconds are of the processor."""
    started = process_time()
    arrays = _COMPUTE[piece.kind](piece, target_of(piece.task, piece.training), piece.key)
    content = {name: np.array(array, order="C") for name, array in arrays.items()}
    write_atomically(piece.path, save(content | {"seconds": np.array(process_time() - started)}))


def target_of(task: NetworkTask, training: Training) -> Model:
    """The posterior to sample, with the frozen inputs one place after the other."""
    (X, y), x_new = training, torch.cat([task.inputs[place] for place in PLACES])
    if isinstance(model := task.network, LinearModel):
        return LogitTarget(model.features(X).numpy(), y.numpy(), model.features(x_new).numpy())
    return Target(X.numpy(), y.numpy(), np.float64(task.noise_variance), model, x_new.numpy())


def _chain(piece: Piece, target: Model, key: Any) -> Arrays:
    of_chain, of_f = jax.random.split(key)
    chain = sample_chain(target, of_chain, piece.sampling.warmup, piece.sampling.draws)
    f = function_draws(target, of_f, chain.u)
    return {name: np.asarray(part) for name, part in chain._asdict().items() if name != "u"} | {"f": f}


def _particles(piece: Piece, target: Model, key: Any) -> Arrays:
    of_run, of_f = jax.random.split(key)
    run = smc_run(target, of_run, piece.sampling.particles, moves=piece.sampling.moves)
    f = function_draws(target, of_f, run.u)
    return run.schedule._asdict() | {"f": f, "log_evidence": np.array(run.log_evidence)}


def _ladder(piece: Piece, target: Model, key: Any) -> Arrays:
    betas = _schedule(piece).betas
    run = evidence.ladder_run(target, key, betas, piece.sampling.ladder_warmup, piece.sampling.ladder_draws)
    return {name: np.asarray(part) for name, part in run._asdict().items()}


def _bounds(piece: Piece, target: Model, key: Any) -> Arrays:
    """Bounds for the task's own targets first, then for others, whose paths from the prior may be far steeper."""
    of_data, of_pilot, of_chains = jax.random.split(key, 3)
    true = piece.task.true_weights[: target.dim].numpy()
    of, u = (target, true) if piece.index == 0 else target.simulate(of_data)[:2]
    pilot = smc_run(of, of_pilot, PILOT, moves=piece.sampling.moves)
    schedule = pilot.schedule.refine(piece.sampling.temperatures)
    found = simulated.bidirectional(of, u, of_chains, schedule, piece.sampling.annealed)
    return {"lower": np.array(found.lower), "upper": np.array(found.upper)}


def _ranks(piece: Piece, target: Model, key: Any) -> Arrays:
    of_data, of_chain = jax.random.split(key)
    drawn, sampling = target.simulate(of_data), piece.sampling
    ranks = simulated.calibration_ranks(
        drawn.target, drawn.f, of_chain, sampling.rank_warmup, sampling.rank_draws, KEPT
    )
    return {"ranks": ranks[: 2 * POINTS]}  # at training and test inputs


_COMPUTE: dict[Kind, Callable[[Piece, Model, Any], Arrays]] = {
    "chain": _chain,
    "particles": _particles,
    "ladder": _ladder,
    "bounds": _bounds,
    "ranks": _ranks,
}


def _schedule(piece: Piece) -> Schedule:
    """The temperatures of the first particle run."""
    first = Piece(piece.task, piece.training, piece.sampling, piece.folder, "particles", 0).read()
    return Schedule(**{name: first[name] for name in Schedule._fields})


Run = Callable[[Callable[[Piece], None], Iterable[Piece]], Iterator[tuple[Piece, Exception | None]]]


def build_reference(
    task: NetworkTask, training: Training, sampling: Sampling, folder: Path, run: Run, each: Callable[[str], None]
) -> tuple[Functions, Certificate]:
    """The reference of a task and its certificate, whose limits are not checked here.

    Args:
        folder: where finished pieces are kept.
        run: calls a function for every piece, in any order or in parallel, as `Executor.map`.
        each: called with a line for every finished piece.

    Raises:
        InputError: a piece failed; the others are kept.
    """

    def pieces(kind: Kind, count: int) -> list[Piece]:
        return [Piece(task, training, sampling, folder, kind, index) for index in range(count)]

    first = {"chain": pieces("chain", sampling.chains), "particles": pieces("particles", sampling.runs)}
    then = {"ladder": pieces("ladder", sampling.ladders)}
    if task.level == "C1":
        then |= {"bounds": pieces("bounds", sampling.bounds), "ranks": pieces("ranks", sampling.ranks)}
    for stage in (first, then):
        missing = [piece for of_kind in stage.values() for piece in of_kind if not piece.path.is_file()]
        for piece, failure in run(compute, missing):
            if isinstance(failure, Exception):
                raise InputError(f"{task.name}: {piece.kind} {piece.index} failed: {failure}; run the command again")
            each(f"{task.name}: {piece.kind} {piece.index}")
    found = {kind: [piece.read() for piece in of_kind] for kind, of_kind in (first | then).items()}
    return _reference(task, target_of(task, training), sampling, found)


def _reference(
    task: NetworkTask, target: Model, sampling: Sampling, found: dict[str, list[Arrays]]
) -> tuple[Functions, Certificate]:
    f = np.stack([chain["f"] for chain in found["chain"]])
    thinned = thin(f.reshape(-1, f.shape[-1]), DRAWS)
    reference = Functions(*(torch.from_numpy(thinned[:, group].copy()) for group in GROUPS.values()))
    two = _agreement(task, found, f)
    level, grid = task.level, None
    log_z = two.log_z_smc
    if level == "C0" and isinstance(target, Target):
        grid, log_z = _quadrature(target, f)
    certificate = Certificate(
        task=task.name,
        task_sha256=task.sha256,
        reference_sha256=identity({}, packed(reference)),
        level=level,
        log_z=log_z,
        quadrature=grid,
        bidirectional=_bidirectional(found) if level == "C1" else None,
        agreement=two,
        settings=sampling.model_dump(),
        versions=VERSIONS,
        seconds=sum(piece["seconds"].item() for pieces in found.values() for piece in pieces),
    )
    return reference, certificate


def _agreement(task: NetworkTask, found: dict[str, list[Arrays]], f: np.ndarray) -> Agreement:
    chains = [Chain(np.empty(0), **{name: piece[name] for name in Chain._fields[1:]}) for piece in found["chain"]]
    particles = [piece["f"] for piece in found["particles"]]
    log_evidences = [piece["log_evidence"].item() for piece in found["particles"]]
    ladders = [
        evidence.LadderRun(**{name: piece[name] for name in evidence.LadderRun._fields}) for piece in found["ladder"]
    ]
    generator = derived_generator("network reference", task.sha256, "agreement")
    return agreement(
        chains,
        f,
        pool(particles, log_evidences, MMD_DRAWS, generator),
        evidence.ladder_evidence(ladders),
        evidence.smc_evidence(log_evidences),
        GROUPS,
        generator,
    )


def _bidirectional(found: dict[str, list[Arrays]]) -> Bidirectional:
    bounds = [simulated.Bounds(each["lower"].item(), each["upper"].item()) for each in found["bounds"]]
    gap = simulated.mean_gap(bounds)
    p = simulated.calibration_p_values(np.stack([each["ranks"] for each in found["ranks"]]), KEPT)
    error = float(np.std([each.gap for each in bounds], ddof=1) / len(bounds) ** 0.5)
    return Bidirectional(
        data_sets=len(bounds),
        gap=Estimate(value=gap.mean, error=error),
        gap_upper=gap.upper,
        lower=bounds[0].lower,
        upper=bounds[0].upper,
        calibration_data_sets=len(found["ranks"]),
        calibration_p=float(p.min()),
    )


def _quadrature(target: Target, f: np.ndarray) -> tuple[Quadrature, Estimate]:
    """The integrals, and how far the chains' moments of f are from them, in units of each one's Monte Carlo error."""
    exact = quadrature(target)
    offset = f - exact.mean
    mean_z, variance_z = (largest_z(each) for each in (offset, np.square(offset) - exact.variance))
    grid = Quadrature(change=exact.change, mean_z=mean_z, variance_z=variance_z)
    return grid, Estimate(value=exact.log_evidence, error=exact.change)


def largest_z(errors: np.ndarray) -> float:
    """The largest over the inputs of |mean| over its Monte Carlo error, for chains of errors [chains, draws, P]."""
    return float((np.abs(errors.mean((0, 1))) / monte_carlo_errors(errors)).max())
