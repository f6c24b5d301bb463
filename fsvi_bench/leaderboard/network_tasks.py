"""The ranked tasks of an edition of networks: those of the official plan, with targets simulated from its secret.

A ranked task has the rows, inputs, priors and noise of an official one. Its targets come from weights drawn from the
prior, so the model is exactly right for them, and nobody without the secret can sample the posterior. The maintainer
does so with `fsvi-bench networks build --edition`, which certifies each at level C1 (C0 for the toy).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fsvi_bench.errors import InputError, unknown_name
from fsvi_bench.leaderboard.edition import Edition, Place, Secret
from fsvi_bench.networks.official import CertifiedNetwork, differing, load_network, official_path
from fsvi_bench.networks.plan import Model, Planned, planned_models
from fsvi_bench.networks.task import Targets, build, task_name

TASKS = 2  #: per network: its splits 0 and 1
TRIAL = Place("official", "toy-collapsed-2", 0)  #: of `submit`


def model_of(dataset: str) -> Model:
    """What the official plan says of one of an edition's networks, such as `yacht-collapsed-10`.

    Raises:
        InputError: it is not in the plan.
    """
    planned = {f"{each.dataset}-{each.model}": each for each in planned_models()}
    if dataset not in planned:
        raise unknown_name("network", dataset, list(planned))
    return planned[dataset]


def runs(edition: Edition) -> Iterator[tuple[Place, int]]:
    """All runs of an entry: ranked tasks with each seed."""
    for dataset in edition.datasets:
        model_of(dataset)
        yield from edition.ranked_runs(dataset, TASKS)


def ranked_networks(edition: Edition, secret: Secret) -> Iterator[tuple[Planned, int]]:
    """The ranked tasks of an edition, with the seeds of their targets.

    Raises:
        InputError: the edition has no networks.
    """
    if not edition.is_networks:
        raise InputError(
            f"edition {edition.name} is not an edition of networks; create one with, for example, `fsvi-bench "
            "leaderboard init --network yacht-collapsed-10`"
        )
    for dataset in edition.datasets:
        for number in range(TASKS):
            yield Planned(model_of(dataset), number, "simulated"), targets_seed(dataset, number, edition, secret)


def targets_seed(dataset: str, number: int, edition: Edition, secret: Secret) -> int:
    """The seed of a ranked task's targets."""
    return secret.seed("network", edition.name, dataset, number)


def make_network(
    place: Place, edition: Edition, secret: Secret | None, folder: Path, data_dir: Path | None = None
) -> CertifiedNetwork:
    """A task of an edition with its reference.

    Args:
        folder: with the references of the ranked tasks.

    Raises:
        InputError: the reference is missing or of another task, or the raw data cannot be loaded.
        TaskRefused: its certificate exceeds this version's limits.
    """
    if place.kind == "official":
        model = model_of(place.dataset)
        return load_network(task_name(model.dataset, place.number, model.model, "simulated"))
    assert secret is not None
    model, seed = model_of(place.dataset), targets_seed(place.dataset, place.number, edition, secret)
    own: tuple[str, int, str, Targets] = model.dataset, place.number, model.model, "simulated"
    task, path = build(*own, model.noise_scale, data_dir, seed), official_path(*own, folder)
    sample = "sample its posterior with `fsvi-bench networks build --edition`, and name the folder with --networks"
    if not path.is_file():
        raise InputError(f"{place.name} of edition {edition.name} has no reference in {folder}; {sample}")
    network = load_network(path)
    if network.task.metadata != task.metadata or differing(network.task, task):
        raise InputError(f"{path} is not {place.name} of edition {edition.name}: its targets differ; {sample}")
    return network
