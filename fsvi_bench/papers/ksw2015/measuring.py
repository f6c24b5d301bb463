"""Measurements of KSW's networks: variances of gradients (tables 1 and 2) and of log likelihoods (eq. 5), and times.

# Gradients, by estimator

The gradient is that of the minibatch estimate (N/M) Σ log p(y_i | x_i, w) of the expected log likelihood (their eq. 3);
the KL is deterministic and adds no variance. A table's entry is the variance of one parameter's gradient, averaged over
the parameters of a layer. The paper says gradients "for the weights", but its argument (appendix D) concerns the
variance parameters, so both are measured: `theta`, and `log_alpha` if α is learnt. The scale of the gradient is not
stated either: only ratios between estimators are comparable, not absolute numbers.

The points of a minibatch that shares its noise have dependent gradients, so the variance with one weight sample per
minibatch of M is that with a sample per point plus (1 − 1/M) times the variance of the gradient of all training data
with one sample (eq. 5, for gradients). It is measured as this sum, because the second part is often smaller than the
error of the first: the difference of two variances measured separately would be noise.

A weight matrix per point takes a hundred times as long as the other estimators. Two of its variances need none:

 * Noise on the inputs: the local estimator is a sample per point, so it is measured once.
 * Noise on the weights, top layer: given its inputs, a point's outputs b of a layer have the same distribution under
   both estimators, so the top layer's inputs and hence its gradients do too. The layers below use local noise. The
   bottom layer's gradient also passes through the weights above it, where the estimators differ.

# The log likelihood, by minibatch size M

All values are per training point: the estimate is (1/M) Σ log p(y_i | x_i, w) over a minibatch, and L_i one summand.

 * With replacement (Kingma, Salimans and Welling 2015, eq. 5): Var = V/M + (1 − 1/M) C, where V is the variance of one
   L_i over data and noise, and C the covariance of two. C = 0 if every point has separate noise. If the minibatch
   shares its noise, C = Var_ε[mean_n L_n(ε)] ≥ 0, including pairs that draw the same point twice.
 * Without replacement (appendix F), exactly, with l_n = E_ε L_n and v_n = Var_ε L_n:
   Var = (1/M) ((N − M)/(N − 1) Var_n[l_n] + mean v_n) + (1 − 1/M) mean_{i≠j} Cov_ε[L_i, L_j].
   This follows from Var = Var_S[E_ε] + E_S[Var_ε], with Var_S that of a mean of M out of N.

The paper's bound (48) has (mean_n l_n)² instead of Var_n[l_n], and the latter may be larger: a trained network is
certain of most images and very wrong about a few. The bound is valid with mean_n l_n², which follows from
(N²/M²) Σ Var[s_i] l_i² ≤ (N/M) Σ l_i². `corrected_bound` is this bound, `printed_bound` the printed one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from pydantic import Field, NonNegativeInt, PositiveInt
from scipy.stats import kurtosis
from torch import Tensor
from torch.utils.benchmark import Timer

from fsvi_bench.errors import InputError
from fsvi_bench.papers.ksw2015.data import Images, ImageSource
from fsvi_bench.papers.ksw2015.networks import (
    ESTIMATORS,
    Classifier,
    Estimator,
    Kind,
    NoiseSettings,
    TrainSettings,
    adam,
    cross_entropies,
    errors,
    step,
    train,
)
from fsvi_bench.papers.parts import Row
from fsvi_bench.papers.side_by_side import Streams, streams, without_denormals
from fsvi_bench.papers.streams import stream
from fsvi_bench.seeds import derive_seed
from fsvi_bench.strict import Plain
from fsvi_bench.threads import use_one_thread

Rows = list[dict[Any, Any]]
Sampling = Literal["with-replacement", "without-replacement"]
Sizes = Any  #: a minibatch size M, or an array of sizes, and corresponding values
PART = 1000  #: images at a time, where a gradient is of all of them


def draw_rows(N: int, M: int, sampling: Sampling, generators: Streams) -> Int[Tensor, "B M"]:
    """Row indices of a minibatch of M out of N for each network."""
    if sampling == "with-replacement":
        return torch.stack([torch.randint(N, (M,), generator=each) for each in generators])
    if M > N:
        raise InputError(f"got minibatches of {M} from {N} images without replacement, expected at most {N}; reduce M")
    return torch.stack([torch.randperm(N, generator=each)[:M] for each in generators])


def mean_variance(draws: Float[Tensor, "R P"]) -> tuple[float, float]:
    """Mean over columns of the unbiased variance over the R rows, with its jackknife standard error.

    With d_r the squared distance of row r from the mean row, leaving row r out reduces Σ d_r by d_r·R/(R − 1), so the
    jackknife is linear in d. Rows are whole gradients, so the dependence between columns is accounted for.
    """
    R, P = draws.shape
    distances = (draws - draws.mean(0)).square().sum(-1)
    return float(distances.sum() / (P * (R - 1))), float(R**0.5 * distances.std() / (P * (R - 2)))


# --- Gradients --------------------------------------------------------------------------------------------------------


class VarianceSettings(Plain):
    """Settings of the measurements after given numbers of epochs (`checkpoints`), the last of which ends training.

    At most `coordinates` randomly chosen parameters per layer are used. `repetitions` is the number of gradients.
    `long_repetitions`, if given, replaces it for the slowest ones: of all data, and with a weight matrix per point in
    every layer.
    """

    checkpoints: tuple[NonNegativeInt, ...] = Field(min_length=1)
    minibatch: PositiveInt
    repetitions: int = Field(ge=3)
    long_repetitions: int | None = Field(default=None, ge=3)
    coordinates: PositiveInt


def gradient_variances(
    network: Classifier, images: Images, settings: VarianceSettings, epochs: int
) -> Iterator[dict[str, Any]]:
    """Fixed networks' entries of a table, with standard errors; `network` is the place in the stack. Each estimator has
    its own random streams.

    "no-noise" is the variance from the choice of the minibatch alone.
    """
    measured: dict[str, dict[tuple[str, str], Float[Any, "B 2"]]] = {}
    for estimator in (*ESTIMATORS, "no-noise"):
        if estimator == "per-point" and not network.layers[0].is_on_weights:
            measured[estimator] = measured["local"]
            continue
        draws = gradient_draws(network, images, settings, estimator, ("gradient variance", epochs, estimator))
        measured[estimator] = {group: np.array([*map(mean_variance, stack)]) for group, stack in draws.items()}
    for group, of_all in measured["per-minibatch"].items():
        parts = np.stack([measured["per-point"][group], (1 - 1 / settings.minibatch) * of_all])
        measured["per-minibatch"][group] = np.stack([parts[..., 0].sum(0), np.hypot(*parts[..., 1])], axis=1)
    for name, groups in measured.items():
        for (layer, parameter), stack in groups.items():
            for place, (variance, error) in enumerate(stack.tolist()):
                of = {
                    "network": place,
                    "epochs": epochs,
                    "layer": layer,
                    "parameter": parameter,
                    "estimator": name,
                }
                yield {**of, "variance": variance, "error": error}


def gradient_draws(
    network: Classifier,
    images: Images,
    settings: VarianceSettings,
    estimator: Estimator,
    purpose: tuple[str | int, ...],
) -> dict[tuple[str, str], Float[Tensor, "B R P"]]:
    """R gradients for each network, at P coordinates of each watched parameter, in float64: of (N/M) Σ log p over a
    minibatch, or for "per-minibatch" of Σ log p over all training data with one weight sample.

    The coordinates do not depend on `purpose`, so estimators are compared at the same coordinates.
    """
    R, long = settings.repetitions, settings.long_repetitions or settings.repetitions
    watched = watched_parameters(network, estimator)
    if estimator != "per-point" or not network.layers[0].is_on_weights:
        count = long if estimator == "per-minibatch" else R
        return _draws(network, images, settings, watched, purpose, count, estimator)
    bottom, top = ({group: p for group, p in watched.items() if group[0] == layer} for layer in ("bottom", "top"))
    below = _draws(network, images, settings, bottom, (*purpose, "bottom"), long, estimator)
    return below | _draws(network, images, settings, top, (*purpose, "top"), R, estimator, hidden="local")


def _draws(
    network: Classifier,
    images: Images,
    settings: VarianceSettings,
    watched: dict[tuple[str, str], Tensor],
    purpose: tuple[str | int, ...],
    R: int,
    estimator: Estimator,
    hidden: Estimator | None = None,
) -> dict[tuple[str, str], Float[Tensor, "B R P"]]:
    x, y, M = images.x_train, images.y_train, settings.minibatch
    noise = streams(x.device, *purpose, "noise", seeds=network.seeds)
    choices = streams("cpu", *purpose, "rows", seeds=network.seeds)
    chosen = {group: _coordinates(p[0], settings.coordinates, group).to(x.device) for group, p in watched.items()}

    def gradients(rows: Tensor) -> list[Tensor]:
        likelihood = -cross_entropies(network(x[rows], noise, estimator, hidden), y[rows]).sum()
        found = torch.autograd.grad(likelihood, list(watched.values()))
        return [each.flatten(1)[:, at].double().cpu() for each, at in zip(found, chosen.values(), strict=True)]

    def of_a_minibatch() -> list[Tensor]:
        rows = draw_rows(len(x), M, "with-replacement", choices).to(x.device)
        return [len(x) / M * each for each in gradients(rows)]

    def of_everything() -> list[Tensor]:
        states, parts = [each.get_state() for each in noise], []
        for rows in torch.arange(len(x), device=x.device).split(PART):  # type: ignore[no-untyped-call]
            for generator, state in zip(noise, states, strict=True):  # every part has the same weights
                generator.set_state(state)
            parts.append(gradients(rows))
        return [sum(each) for each in zip(*parts, strict=True)]  # type: ignore[misc]

    one = of_everything if estimator == "per-minibatch" else of_a_minibatch
    draws = {group: torch.empty(len(noise), R, len(at), dtype=torch.float64) for group, at in chosen.items()}
    for repetition in range(R):
        for kept, gradient in zip(draws.values(), one(), strict=True):
            kept[:, repetition] = gradient
    return draws


def watched_parameters(network: Classifier, estimator: Estimator) -> dict[tuple[str, str], Tensor]:
    """Parameters of the bottom and top layers by (layer, parameter); log α if it is learnt and there is noise."""
    bottom, *_, top = network.layers
    learnt = bottom.noise[0].is_variational and estimator != "no-noise"
    names = ("theta", "log_alpha") if learnt else ("theta",)
    layers = {"bottom": bottom, "top": top}
    return {(place, name): getattr(layer, name) for place, layer in layers.items() for name in names}


def _coordinates(parameter: Tensor, most: int, group: tuple[str, str]) -> Tensor:
    choice = stream("cpu", "gradient variance", "coordinates", *group)
    return torch.randperm(parameter.numel(), generator=choice)[:most].sort().values


# --- The log likelihood -----------------------------------------------------------------------------------------------


class MinibatchLawSettings(Plain):
    """`repetitions` minibatches per size, and `passes` over all training data for the prediction."""

    sizes: tuple[PositiveInt, ...] = Field(min_length=2)
    repetitions: int = Field(ge=3)
    passes: int = Field(ge=3)


class Law(NamedTuple):
    """The components of one estimator's variance, from passes over all training data; see the module's docstring."""

    N: int
    mean_log_likelihood: float  # mean_n l_n
    second_moment: float  # mean_n l_n²
    variance_of_means: float  # Var_n[l_n], dividing by N
    mean_variance: float  # mean_n v_n
    shared: float  # Var_ε[mean_n L_n], 0 if no noise is shared
    excess_kurtosis: float  # of one L_i over data and noise

    @property
    def V(self) -> float:
        return self.variance_of_means + self.mean_variance

    @property
    def covariance_of_pairs(self) -> float:
        """The mean over i ≠ j of Cov_ε[L_i, L_j]."""
        return (self.N * self.shared - self.mean_variance) / (self.N - 1) if self.shared else 0.0

    def predicted(self, M: Sizes, sampling: Sampling) -> Sizes:
        """The predicted variance of the mean of M log likelihoods."""
        if sampling == "with-replacement":
            return self.V / M + (1 - 1 / M) * self.shared
        between = (self.N - M) / (self.N - 1) * self.variance_of_means
        return (between + self.mean_variance) / M + (1 - 1 / M) * self.covariance_of_pairs

    def error_of_a_variance(self, M: Sizes, R: int, sampling: Sampling) -> Sizes:
        """The expected standard error of the variance of R estimates: too large where much of it is shared, since the
        whole mean is taken to have the tails of its independent part."""
        return self.predicted(M, sampling) * np.sqrt(2 / (R - 1) + max(self.excess_kurtosis, 0.0) / (M * R))

    def bound(self, of_the_data: float, M: Sizes) -> Sizes:
        """Appendix F's bound: as printed with (mean_n l_n)² for `of_the_data`, corrected with mean_n l_n²."""
        return (of_the_data + self.mean_variance) / M + (1 - 1 / self.N) * self.covariance_of_pairs


def measure_laws(network: Classifier, images: Images, settings: MinibatchLawSettings) -> pd.DataFrame:
    """Fixed networks' variances at each minibatch size M, for each estimator and way of drawing minibatches, and the
    prediction from passes over all data; `network` is the place in the stack.

    Each size, estimator and pass has its own random streams; both ways of drawing have the same ones.
    """
    N, device = len(images.x_train), images.x_train.device

    def means(M: int, sampling: Sampling, estimator: Estimator) -> Float[Tensor, "B R"]:
        purpose = ("minibatch law", estimator, M)
        noise = streams(device, *purpose, "noise", seeds=network.seeds)
        choices = streams("cpu", *purpose, "rows", seeds=network.seeds)
        drawn = (draw_rows(N, M, sampling, choices).to(device) for _ in range(settings.repetitions))
        found = [log_likelihoods(network, images, rows, noise, estimator).mean(1) for rows in drawn]
        return torch.stack(found, dim=1).cpu()

    def passes(estimator: Estimator) -> Float[Tensor, "B R N"]:
        noise = streams(device, "minibatch law", estimator, "passes", seeds=network.seeds)
        everything = torch.arange(N, device=device)
        drawn = (log_likelihoods(network, images, everything, noise, estimator) for _ in range(settings.passes))
        return torch.stack([each.cpu() for each in drawn], dim=1)

    found: list[pd.DataFrame] = []
    estimators: tuple[Estimator, ...] = ("local", "per-minibatch")
    for estimator in estimators:
        laws = [law_of(each, shares_noise=estimator == "per-minibatch") for each in passes(estimator)]
        for sampling in get_args(Sampling):
            by_size = [means(M, sampling, estimator) for M in settings.sizes]
            for place, law in enumerate(laws):
                sizes = pd.DataFrame({"M": settings.sizes})
                sizes[["variance", "error"]] = [mean_variance(of_all[place, :, None]) for of_all in by_size]
                sizes = sizes.assign(
                    network=place,
                    sampling=sampling,
                    estimator=estimator,
                    expected_error=law.error_of_a_variance(sizes["M"], settings.repetitions, sampling),
                    predicted=law.predicted(sizes["M"], sampling),
                    printed_bound=law.bound(law.mean_log_likelihood**2, sizes["M"]),
                    corrected_bound=law.bound(law.second_moment, sizes["M"]),
                    V_of_passes=law.V,
                    **law._asdict(),
                )
                found.append(sizes)
    return pd.concat(found).sort_values("network", kind="stable")


@torch.no_grad()
def log_likelihoods(
    network: Classifier, images: Images, rows: Int[Tensor, "*B M"], noise: Streams, estimator: Estimator
) -> Float[Tensor, "B M"]:
    """log p(y_i | x_i, w) of each row under each network with one draw of the noise, in float64."""
    logits = network(images.x_train[rows], noise, estimator)
    return -cross_entropies(logits.double(), images.y_train[rows])


def law_of(passes: Float[Tensor, "R N"], shares_noise: bool) -> Law:
    """The components from R draws of all N log likelihoods, corrected for the bias of R draws."""
    R, N = passes.shape
    means, mean_variance = passes.mean(0), float(passes.var(0).mean())
    shared = float(passes.mean(1).var()) if shares_noise else 0.0
    # The noise of a mean over R passes adds v_n / R to its square, and to its variance over n that minus the part
    # shared by all n.
    excess = mean_variance / R
    own = excess - (shared / R if shares_noise else excess / N)
    return Law(
        N=N,
        mean_log_likelihood=float(means.mean()),
        second_moment=float(means.square().mean()) - excess,
        variance_of_means=float(means.var(correction=0)) - own,
        mean_variance=mean_variance,
        shared=shared,
        excess_kurtosis=float(kurtosis(passes.numpy(), axis=None)),
    )


def fit_law(M: Sizes, variances: Sizes, errors: Sizes) -> dict[str, float]:
    """V and C of eq. 5, V/M + (1 − 1/M) C, by weighted least squares, with their errors.

    The errors must not be estimated from the same draws as the variances: heavy tails raise both together, so the
    weights would favour variances that are too low by chance.
    """
    design = (np.array([1 / M, 1 - 1 / M]) / errors).T
    (V, C), *_ = np.linalg.lstsq(design, variances / errors)
    V_error, C_error = np.sqrt(np.diag(np.linalg.inv(design.T @ design)))
    return {"V": V, "V_error": V_error, "C": C, "C_error": C_error}


# --- Training and measuring networks ----------------------------------------------------------------------------------


NOISES = {  # one α per weight, or per input
    "table 1": NoiseSettings(kind="variational-b", granularity="weight"),
    "table 2": NoiseSettings(kind="variational-a", granularity="unit"),
}


@without_denormals()
def train_and_measure(
    table: str,
    networks: Sequence[int],
    images: ImageSource,
    width: int,
    training: TrainSettings,
    variance: VarianceSettings,
    law: MinibatchLawSettings,
) -> Row:
    """Trains networks side by side with the local estimator, and measures all estimators at each checkpoint with the
    averaged weights.

    `test_errors` are the final error rates; `sizes` are the results by minibatch size of the trained networks, for
    table 1.
    """
    use_one_thread()
    loaded, seeds = images.load(), [derive_seed("ksw2015-variance", network) % 2**31 for network in networks]
    training = training.model_copy(update={"epochs": max(variance.checkpoints)})
    classifier = Classifier(loaded, [NOISES[table]] * len(networks), width, seeds)
    variances: Rows = []
    for epochs, trained in enumerate(train(classifier, loaded, training)):
        if epochs in variance.checkpoints:
            variances.extend(gradient_variances(trained, loaded, variance, epochs))
    sizes: Rows = measure_laws(trained, loaded, law).to_dict("records") if table == "table 1" else []
    return {
        "variances": [{**row, "network": networks[row["network"]]} for row in variances],
        "sizes": [{**row, "network": networks[row["network"]]} for row in sizes],
        "test_errors": errors(trained, loaded.x_test, loaded.y_test).tolist(),
    }


# --- Speed (KSW, section 5: 1,635 s per epoch with a sample per point, 7.4 s local) -----------------------------------

#: With one α per layer, as in figure 1a. One per weight, as in table 1, would slow the local estimator most.
TIMED: dict[str, tuple[Kind, Estimator]] = {
    "no-dropout": ("none", "local"),
    **{estimator: ("variational-b", estimator) for estimator in ESTIMATORS},
}


class TimingSettings(Plain):
    """Every repeat gives a ratio: the median over rounds, each of which times every estimator in turn, so that a busy
    machine slows all of them equally."""

    width: PositiveInt
    minibatch: PositiveInt
    rounds: PositiveInt
    repeats: PositiveInt


def time_steps(settings: TimingSettings, images: ImageSource) -> Row:
    """Times forward pass, backward pass and Adam's update of one minibatch, including the KL, on one thread after a
    warm-up.

    `rounds` are seconds by estimator, with the round's `repeat`.
    """
    loaded = images.load()
    timers = {name: _timer(name, settings, loaded) for name in TIMED}
    return {
        "rounds": [
            {"repeat": repeat, **{name: timer.timeit(1).mean for name, timer in timers.items()}}
            for repeat, _ in product(range(settings.repeats), range(settings.rounds))
        ]
    }


def _timer(name: str, settings: TimingSettings, images: Images) -> Timer:
    (kind, estimator), M = TIMED[name], settings.minibatch
    network, device = Classifier(images, [NoiseSettings(kind=kind)], settings.width, [0]), images.x_train.device
    optimizer, draws = adam(network, lr=1e-3), [stream(device, "step times", 0, name)]
    scale = torch.tensor([1 / len(images.x_train)], device=device)
    one = partial(step, network, optimizer, images.x_train[:M], images.y_train[:M], draws, scale, estimator)
    return Timer("step()", globals={"step": one})
