"""The reference of a network task: functions drawn from its posterior, and the certificate that vouches for them.

Every reference comes from chains that mix and agree with a sampler of another kind. That alone is level C2, which is
empirical: nothing rules out a mode that both have missed. C0 adds quadrature over the hidden weights. C1, for simulated
targets, adds what simulated data sets at the same inputs show: how close annealed importance sampling from both sides
comes to log Z, and whether NUTS is calibrated. A task without a certificate within the limits is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from pydantic import AfterValidator, ValidationError
from torch import Tensor

from fsvi_bench.errors import InputError, TaskRefused, invalid_field, quoted
from fsvi_bench.files import read_bounded, replace_together
from fsvi_bench.networks.task import PLACES, POINTS, Level, NetworkTask, Place
from fsvi_bench.posteriors.io import FORMAT as POSTERIOR_FORMAT
from fsvi_bench.strict import Plain
from fsvi_bench.tensorfile import TensorFile, identity, read_tensor_file, tensor_file

FORMAT = "fsvi-network-reference/1"
DRAWS = 4000  #: of a reference
KEPT = 19  #: draws among which calibration ranks the true function
LEVELS = 255  #: steps between the least and the largest stored value at an input
FEWEST_OF_REFERENCE, MOST_IN_NOISE = 100, 1e4  #: draws, and values in units of the noise, if there is any
FEWEST = 3  #: functions that can be scored: errors leave one out
MAX_CERTIFICATE_BYTES = 2**20


@dataclass(frozen=True, eq=False)
class Functions:
    """S functions by their values, without noise, at a task's frozen inputs, for standardised targets, or logits."""

    f_train: Float[Tensor, "S 20"]
    f_test: Float[Tensor, "S 20"]
    f_box: Float[Tensor, "S 20"]

    def at(self, place: Place) -> Float[Tensor, "S 20"]:
        """The values at one place, in float64."""
        values: Tensor = getattr(self, f"f_{place}")
        return values.double()

    def __getitem__(self, draws: slice | Int[Tensor, " S"]) -> Functions:
        return Functions(*(self.tensors[name][draws] for name in self.tensors))

    def __len__(self) -> int:
        return len(self.f_train)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The values by their names in files."""
        return {f"f_{place}": getattr(self, f"f_{place}") for place in PLACES}


def _not_negative(error: float) -> float:
    if error < 0:
        raise ValueError("expected a standard error of at least 0")
    return error


class Estimate(Plain):
    """A number and its standard error, which is NaN if it is unknown."""

    value: float
    error: Annotated[float, AfterValidator(_not_negative)]


class Quadrature(Plain):
    """C0: the last change of log Z, E f and Var f as the grid was refined, and the chains' distance from it.

    Distances are the largest over the inputs, of the mean and the variance of f, in Monte Carlo standard errors.
    """

    change: float
    mean_z: float
    variance_z: float


class Bidirectional(Plain):
    """C1: gaps between upper and lower bounds of log Z over simulated data sets, and calibration of f.

    The first data set is the task's own. Its bounds hold in expectation: each is wrong by more than log(1/p) nats with
    a probability of at most p (Markov's inequality).
    """

    data_sets: int
    gap: Estimate  #: mean, in nats
    gap_upper: float  #: upper end of its 95% interval
    lower: float  #: bound of the task's log Z
    upper: float
    calibration_data_sets: int
    calibration_p: float  #: smallest over training and test inputs, after Holm's correction


class Agreement(Plain):
    """NUTS against tempered sequential Monte Carlo. R̂ and ESS are the worst of f (for ESS also f²) and log p."""

    log_z_nuts: Estimate
    log_z_smc: Estimate
    log_z_p: float  #: of Welch's test that both estimate one number
    r_hat: float
    ess_bulk: float
    ess_tail: float
    e_bfmi: float
    divergences: int
    mmd_p: float  #: of a permutation test on f, after Holm's correction


class Certificate(Plain):
    """`fsvi-network-certificate/1`."""

    format: Literal["fsvi-network-certificate/1"] = "fsvi-network-certificate/1"
    task: str
    task_sha256: str
    reference_sha256: str  #: of the tensors in the file
    level: Level
    log_z: Estimate  #: log p(y), in nats for standardised targets, or those of 0 and 1
    agreement: Agreement
    quadrature: Quadrature | None = None  #: at C0
    bidirectional: Bidirectional | None = None  #: at C1
    settings: dict[str, float | int | str]
    versions: dict[str, str]
    seconds: float

    def failures(self) -> list[str]:
        """The limits that the evidence exceeds, as clauses; a NaN exceeds every limit."""
        return [
            f"{what} is {value:.4g}, expected {sense} {limit:g}"
            for what, value, sense, limit in self._checks()
            if not (value <= limit if sense == "at most" else value >= limit)
        ]

    def _checks(self) -> list[tuple[str, float, str, float]]:
        found: list[tuple[str, float, str, float]] = [("the error of log Z", self.log_z.error, "at most", 0.5)]
        needed = {"C0": self.quadrature, "C1": self.bidirectional, "C2": self.agreement}[self.level]
        if needed is None:
            return [*found, ("the evidence of its level", math.nan, "at least", 1.0)]
        if (grid := self.quadrature) is not None:
            smc = self.agreement.log_z_smc
            off = abs(self.log_z.value - smc.value) / (math.hypot(self.log_z.error, smc.error) or math.nan)
            found += [
                ("the difference of log Z from that by SMC, in standard errors,", off, "at most", 4.0),
                ("the last change of the integrals", grid.change, "at most", 1e-6),
                ("the largest error of E f, in standard errors,", grid.mean_z, "at most", 4.0),
                ("the largest error of Var f, in standard errors,", grid.variance_z, "at most", 4.0),
            ]
        if (both := self.bidirectional) is not None:
            found += [
                ("the number of data sets with both bounds", float(both.data_sets), "at least", 20.0),
                ("the upper 95% end of the mean gap", both.gap_upper, "at most", 0.5),
                ("the lower bound minus log Z", both.lower - self.log_z.value, "at most", math.log(100)),
                ("log Z minus the upper bound", self.log_z.value - both.upper, "at most", math.log(100)),
                ("the number of data sets for calibration", float(both.calibration_data_sets), "at least", 100.0),
                ("the smallest p-value of calibration", both.calibration_p, "at least", 0.01),
            ]
        return found + _checks_of_agreement(self.agreement)

    def require_limits(self) -> None:
        """Raises TaskRefused if a limit of this version is exceeded."""
        if failures := self.failures():
            raise TaskRefused(f"task {self.task} is refused: {failures[0]}; sample its posterior for longer")


def _checks_of_agreement(two: Agreement) -> list[tuple[str, float, str, float]]:
    return [
        ("the error of log Z by NUTS", two.log_z_nuts.error, "at most", 0.5),
        ("the error of log Z by SMC", two.log_z_smc.error, "at most", 0.5),
        ("the p-value of equal log Z", two.log_z_p, "at least", 0.01),
        ("the largest R̂", two.r_hat, "at most", 1.01),
        ("the smallest bulk ESS", two.ess_bulk, "at least", 4000.0),
        ("the smallest tail ESS", two.ess_tail, "at least", 4000.0),
        ("E-BFMI", two.e_bfmi, "at least", 0.2),
        ("the p-value of the MMD test", two.mmd_p, "at least", 0.01),
    ]


def reference_path(task: Path) -> Path:
    """`0-real.safetensors` → `0-real.reference.safetensors`."""
    return task.with_suffix(".reference.safetensors")


def certificate_path(task: Path) -> Path:
    """`0-real.safetensors` → `0-real.certificate.json`."""
    return task.with_suffix(".certificate.json")


def packed(functions: Functions) -> dict[str, Tensor]:
    """The tensors of a reference's file, in a quarter of float32's bytes: values in steps of a 255th of their range.

    For 4,000 draws a step is 0.02 to 0.06 standard deviations. Rounding moves variance ranks by
    up to 0.4 of their standard errors, and all other scores and floors by up to 0.2, on four tasks. Certificates are of
    draws before rounding.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in functions.tensors.items():
        values = tensor.double()
        low = values.amin(0)
        step = (values.amax(0) - low) / LEVELS
        codes = ((values - low) / torch.where(step > 0, step, 1.0)).round()
        found |= {name: codes.to(torch.uint8), f"{name}_low": low, f"{name}_step": step}
    return found


def _unpacked(file: TensorFile) -> Functions:
    names = [f"f_{place}" for place in PLACES]
    file.require_names({*names, *(f"{name}_{part}" for name in names for part in ("low", "step"))})
    values: dict[str, Tensor] = {}
    for name in names:
        file.require_dtype(name, torch.uint8)
        file.require_shape(name, (*file.tensors[name].shape[:1], POINTS))
        for part in ("low", "step"):
            file.require_dtype(f"{name}_{part}", torch.float64)
            file.require_shape(f"{name}_{part}", (POINTS,))
        values[name] = file.tensors[f"{name}_low"] + file.tensors[f"{name}_step"] * file.tensors[name]
    return _functions(TensorFile(file.path, values, file.metadata), torch.float64)


def write_reference(task_path: Path, functions: Functions, certificate: Certificate) -> None:
    """Writes a task's reference, `packed`, and its certificate next to it.

    Raises:
        InputError: the folder is not writable.
    """
    metadata = {"format": FORMAT, "task_sha256": certificate.task_sha256}
    others = {reference_path(task_path).name: tensor_file(packed(functions), metadata)}
    text = f"{certificate.model_dump_json(indent=2)}\n".encode()
    replace_together(task_path.parent, others, certificate_path(task_path).name, text)


def read_reference(task_path: Path, task: NetworkTask) -> tuple[Functions, Certificate]:
    """A task's reference and certificate; the certificate's limits are not checked here.

    Raises:
        InputError: one is missing or not valid, or belongs to another task.
    """
    where = certificate_path(task_path)
    try:
        certificate = Certificate.model_validate_json(read_bounded(where, MAX_CERTIFICATE_BYTES, follow=True))
    except ValidationError as error:
        raise InputError(f"{where} is not a valid certificate: {invalid_field(error)}; build the task again") from error
    file = read_tensor_file(reference_path(task_path), FORMAT, ("task_sha256",))
    functions = _unpacked(file)
    unit = "" if task.noise_scale is None else "σ"
    values = functions.tensors.values() if len(functions) else ()
    reach = max((float(tensor.abs().max()) for tensor in values), default=0.0) / (task.noise_scale or 1.0)
    if not (len(functions) >= FEWEST_OF_REFERENCE and reach <= MOST_IN_NOISE):
        raise file.error(
            f"it has {len(functions)} functions with values up to {reach:.3g}{unit}, expected at least "
            f"{FEWEST_OF_REFERENCE} below {MOST_IN_NOISE:g}{unit}; build the task again"
        )
    if (certificate.task, certificate.level) != (task.name, task.level):
        raise InputError(
            f"{where} is of {quoted(certificate.task)} at level {certificate.level}, expected {task.name} at "
            f"{task.level}; build the task again"
        )
    smc = certificate.agreement.log_z_smc
    if task.level != "C0" and (certificate.quadrature is not None or certificate.log_z != smc):
        raise InputError(
            f"{where} has log Z = {certificate.log_z.value:.6g}, expected {smc.value:.6g}, the estimate by SMC, and "
            "no quadrature; restore the certificate or build the task again"
        )
    for of, what, got, expected in (
        (where, "task", certificate.task_sha256, task.sha256),
        (file.path, "task", file.metadata["task_sha256"], task.sha256),
        (where, "the reference", certificate.reference_sha256, identity({}, file.tensors)),
    ):
        if got != expected:
            raise InputError(f"{of} belongs to {what} {got[:12]}..., expected {expected[:12]}...; build the task again")
    return functions, certificate


def read_functions(path: Path, task: NetworkTask) -> Functions:
    """A posterior file of the kind `function-samples` with values at the task's inputs, [S, 20] at each place.

    Raises:
        InputError: it is another kind of file, has values at other inputs or too few functions, or names another task.
    """
    file = read_tensor_file(path, POSTERIOR_FORMAT, ("format", "kind"))
    if (kind := file.metadata["kind"]) != "function-samples":
        raise file.error(f"kind is {quoted(kind)}, but a network task compares functions; save it as function-samples")
    if (named := file.metadata.get("task_sha256")) not in (None, task.sha256):
        raise file.error(
            f"it belongs to task {quoted(str(named)[:12])}, expected {task.sha256[:12]}, which is {task.name}; "
            "compute it on that task's data"
        )
    return _enough(file)


def functions_file(functions: Functions, task_sha256: str | None) -> bytes:
    """The bytes of a posterior file that `read_functions` reads."""
    named = {} if task_sha256 is None else {"task_sha256": task_sha256}
    return tensor_file(functions.tensors, {"format": POSTERIOR_FORMAT, "kind": "function-samples"} | named)


def functions_of(tensors: Mapping[str, Tensor]) -> Functions:
    """Functions given by the tensors `f_train`, `f_test` and `f_box`, [S, 20] each.

    Raises:
        InputError: these are other tensors, or too few functions.
    """
    return _enough(TensorFile(Path("the functions"), dict(tensors), {}))


def _enough(file: TensorFile) -> Functions:
    functions = _functions(file, torch.float64)
    if len(functions) < FEWEST:
        counted = "1 function" if len(functions) == 1 else f"{len(functions)} functions"
        raise file.error(f"{counted}, expected {FEWEST} or more; draw more")
    return functions


def _functions(file: TensorFile, dtype: torch.dtype) -> Functions:
    file.require_names({f"f_{place}" for place in PLACES})
    for name, tensor in file.tensors.items():
        file.require_dtype(name, dtype)
        if tensor.ndim != 2 or tensor.shape[1] != POINTS:
            raise file.error(
                f"'{name}' has shape {list(tensor.shape)}, expected [S, {POINTS}], at the task's inputs; "
                "evaluate the functions there"
            )
        file.require_shape(name, (len(file.tensors["f_train"]), POINTS))
    return Functions(**file.tensors)
