"""Checks of a functional objective f(mean, scale_tril, Phi_A): is it a divergence? They use random Gaussians.

An objective is a divergence of the function values of q = N(μ, LLᵀ) at a measurement set A from those of the prior
N(0, I), where f(A) = Φ_A w. For B problems it takes μ [B,k], L [B,k,k] and Φ_A [B,M,k] in float64, and returns one
number for each problem, in nats for a KL divergence. Two divergences have closed forms:

    kl  KL(N(Φ_A μ, Φ_A Σ Φ_Aᵀ) ‖ N(0, Φ_A Φ_Aᵀ))                                     (Burt et al. 2020, eq. 6)
    w2  ‖Φ_A μ‖² + tr Φ_A(Σ + I)Φ_Aᵀ − 2 tr((Φ_AΦ_Aᵀ)^½ Φ_AΣΦ_Aᵀ (Φ_AΦ_Aᵀ)^½)^½         (Gelbrich 1990), W₂ squared;
        also accepted over M, which is the distance under the empirical distribution of A     (Wild et al. 2022)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.conformance.report import Failed, Finding, NotApplicable, Report, outcome
from fsvi_bench.errors import unknown_name
from fsvi_bench.maths.gaussian import gaussian_kl, gaussian_kl_standard_normal, gaussian_w2
from fsvi_bench.maths.linalg import identity, tril_of_gram
from fsvi_bench.maths.shapes import Matrix, PerProblem, Vector

Divergence = Literal["kl", "w2"]
ObjectiveFunction = Callable[[Tensor, Tensor, Tensor], Tensor]

#: Relative to max(1, value). Sets here have singular values of at least 0.5, so jitter of up to 1e-8 stays within it.
TOLERANCE = 1e-6
INACCURATE = 1e-2  #: the same with more inputs than weights, where jitter adds noise in directions without any
ZERO = 1e-6  #: nats, and its gradient: rounding under a square root reaches 1e-8
GRADIENT = 1e-5  #: relative error of central differences with steps of 1e-5
B = 4
ARGUMENTS = ("mean_q", "scale_tril_q", "Phi_A")


class Case(NamedTuple):
    """Random Gaussians and measurement sets of B problems."""

    mean: Vector
    tril: Matrix
    Phi_A: Float[Tensor, "B M k"]

    def only(self, problem: int) -> Case:
        return Case(*(tensor[problem : problem + 1] for tensor in self))

    def __str__(self) -> str:
        M, k = self.Phi_A.shape[-2:]
        return f"k = {k} weights and M = {M} inputs"


def case(k: int, M: int, seed: int = 0, spread: float = 1.0) -> Case:
    """Means of size 1, log scales of standard deviation `spread`, features like those of whitened inducing points."""
    generator = torch.Generator().manual_seed(1000 * seed + 100 * k + M)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    tril = 0.5 * normal(B, k, k).tril(-1) + torch.diag_embed((spread * normal(B, k)).exp())
    left, values, right = torch.linalg.svd(normal(B, M, k), full_matrices=False)
    return Case(normal(B, k), tril, left * values.clamp(min=0.5)[:, None] @ right)


def cases() -> Iterator[Case]:
    """One weight and one input; fewer inputs than weights; as many; more of both."""
    for k, M in ((1, 1), (6, 1), (6, 3), (5, 5), (12, 10)):
        yield case(k, M)


def prior(of: Case) -> Case:
    """The same measurement sets with q = N(0, I)."""
    k = of.mean.shape[-1]
    return of._replace(mean=torch.zeros_like(of.mean), tril=identity(k, of.tril).expand_as(of.tril).clone())


@dataclass(frozen=True)
class Objective:
    """A function and the divergence that it should compute.

    Calling it checks the type and shape of the function's result, and that its arguments are left as they are.
    """

    function: ObjectiveFunction
    divergence: Divergence

    def __call__(self, at: Case) -> PerProblem:
        given = Case(*(tensor.clone() for tensor in at))
        values = self.function(*given)
        if not isinstance(values, Tensor) or values.shape != at.mean.shape[:1] or values.dtype != torch.float64:
            got = f"{list(values.shape)}, {values.dtype}" if isinstance(values, Tensor) else type(values).__name__
            raise Failed(
                f"it returns {got} for {len(at.mean)} problems, expected a float64 tensor [{len(at.mean)}]; return one "
                "float64 number per problem, not their mean or sum"
            )
        if not values.isfinite().all():
            raise Failed(f"it is {_first(values, ~values.isfinite())} at {at}, expected a finite number")
        for name, before, after in zip(ARGUMENTS, at, given, strict=True):
            if not torch.equal(before, after):
                raise Failed(f"it changes its argument {name} in place; work on a copy")
        return values

    def gradients(self, at: Case) -> tuple[Tensor, Tensor]:
        """Gradients with respect to the mean and the lower triangle of the factor.

        Raises:
            Failed: autograd finds no dependence on one of them.
        """
        leaves = at.mean.clone().requires_grad_(), at.tril.clone().requires_grad_()
        total = self(Case(*leaves, at.Phi_A)).sum()
        mean, tril = torch.autograd.grad(total, leaves, allow_unused=True) if total.requires_grad else (None, None)
        if mean is None or tril is None:
            raise Failed(
                f"no gradient reaches {'mean_q' if mean is None else 'scale_tril_q'}; use torch operations throughout, "
                "without detach(), .data or NumPy"
            )
        return mean, tril.tril()


# --- The checks -------------------------------------------------------------------------------------------------------


def form(objective: Objective) -> None:
    """One finite float64 number per problem, the same in a second call."""
    for at in cases():
        if not torch.equal(first := objective(at), again := objective(at)):
            raise Failed(
                f"called twice at {at}, it differs by {_apart(first, again):.1e}; an objective must be deterministic: "
                "use fixed random numbers, or compute the expectation"
            )


def each_problem_alone(objective: Objective) -> None:
    """No problem's value depends on the others in the batch."""
    for at in cases():
        together = objective(at)
        alone = torch.cat([objective(at.only(problem)) for problem in range(B)])
        if (error := _apart(alone, together)) > TOLERANCE:
            raise Failed(
                f"at {at} the value of a problem alone differs from its value in a batch by {error:.1e}; keep the "
                "leading axis out of every sum, product and reshape"
            )


def zero_at_the_prior(objective: Objective) -> None:
    """q = p: the divergence is 0, and so is its gradient."""
    for at in map(prior, cases()):
        if (size := float(objective(at).abs().max())) > ZERO:
            raise Failed(
                f"it is {size:.3g} where q is the prior ({at}), expected 0; look for a missing constant or term"
            )
        for name, gradient in zip(("mean_q", "scale_tril_q"), objective.gradients(at), strict=True):
            if not (size := float(gradient.abs().max())) <= ZERO:
                raise Failed(
                    f"its gradient in {name} is {size:.3g} where q is the prior ({at}), expected 0"
                    f"{_NOT_SQUARED if objective.divergence == 'w2' else '; look for a term with a wrong factor'}"
                )


_NOT_SQUARED = "; the root of W₂² has no gradient there: return W₂²"


def never_negative(objective: Objective) -> None:
    """No value is negative: for one weight over a grid of means and variances, and for wide random Gaussians."""
    means, scales = torch.meshgrid(*map(torch.tensor, ([0.0, 0.3, 2.0], [0.1, 0.5**0.5, 0.9, 1.1, 4.0])), indexing="ij")
    grid = Case(means.reshape(-1, 1).double(), scales.reshape(-1, 1, 1).double(), torch.ones(15, 1, 1).double())
    for at in (grid, *(case(k, M, seed, 2.0) for k, M in ((1, 1), (4, 2), (6, 3)) for seed in range(8))):
        values = objective(at)
        if (values < -ZERO).any():
            problem = int(values.argmin())
            where = f"at {at}"
            if at is grid:
                mean, scale = float(at.mean[problem]), float(at.tril[problem])
                where = f"for one weight with mean {mean:.2g} and variance {scale**2:.2g}"
            raise Failed(
                f"it is {float(values[problem]):.3g} {where}, expected 0 or more; a likely cause is a logarithm with a "
                "wrong factor or sign"
            )


def order_of_inputs(objective: Objective) -> None:
    """The order of the inputs in a measurement set has no effect."""
    for at in cases():
        turned = at._replace(Phi_A=at.Phi_A.flip(-2))
        if (error := _apart(objective(turned), objective(at))) > TOLERANCE:
            raise Failed(
                f"reordering the inputs changes it by {error:.1e} ({at}); likely causes are a reshape that mixes axes, "
                "or a missing transpose that makes a covariance asymmetric"
            )


def function_values_only(objective: Objective) -> None:
    """The value depends neither on the basis of the weights, nor on q outside the row space of Φ_A."""
    for at in cases():
        expected, k = objective(at), at.mean.shape[-1]
        rotation = torch.linalg.qr(case(k, k, 1).Phi_A).Q
        rotated = Case(
            (rotation @ at.mean[..., None])[..., 0], tril_of_gram((rotation @ at.tril).mT), at.Phi_A @ rotation.mT
        )
        if (error := _apart(objective(rotated), expected)) > TOLERANCE:
            raise Failed(
                f"in a different orthonormal basis of the weights it changes by {error:.1e} ({at}), although no "
                "function value does; likely causes are a reshape that scrambles variances, or a covariance treated as "
                "diagonal"
            )
        unseen = identity(k, at.tril) - torch.linalg.pinv(at.Phi_A) @ at.Phi_A
        # L + U L for a projector U onto what f(A) does not depend on: Φ_A (I + U) L = Φ_A L.
        moved = at._replace(
            mean=at.mean + (unseen @ at.mean[..., None])[..., 0],
            tril=tril_of_gram((at.tril + unseen @ at.tril).mT),
        )
        if (error := _apart(objective(moved), expected)) > TOLERANCE:
            raise Failed(
                f"moving q in directions on which f(A) does not depend changes it by {error:.1e} ({at}); a likely "
                "cause is a divergence of the weights in the sum"
            )


def closed_form(objective: Objective) -> None:
    """The value equals the closed form of the divergence."""
    _require_equal(objective, _KNOWN[objective.divergence], "the closed form", tuple(cases()))


def weight_space_kl(objective: Objective) -> str | None:
    """Where f(A) determines every weight (rank Φ_A = k), the functional KL is that of the weights.

    Returns:
        A note if it fails with more inputs than weights, where a plain Cholesky factor of Φ_AΦ_Aᵀ does not exist, or is
        less accurate there, as with jitter.
    """
    if objective.divergence != "kl":
        raise NotApplicable("only a KL divergence does not depend on the inputs once they determine the weights")
    _require_equal(
        objective, lambda at: gaussian_kl_standard_normal(at.mean, at.tril), "the KL of the weights", [case(5, 5, 2)]
    )
    many = case(3, 7)
    expected = gaussian_kl_standard_normal(many.mean, many.tril)
    try:
        got = objective(many).detach()
    except (Failed, RuntimeError):
        return "with more inputs than weights it fails: use the row space, a pseudo-inverse or jitter there"
    if (error := _apart(got, expected)) > INACCURATE:
        raise Failed(
            f"it is {float(got[0]):.6g} at {many}, expected the KL of the weights, {float(expected[0]):.6g}; a likely "
            "cause is the number of inputs in place of the rank of Φ_A"
        )
    return f"with more inputs than weights it is {error:.1e} from the KL of the weights" if error > TOLERANCE else None


def gradients(objective: Objective) -> None:
    """Gradients of autograd agree with central differences, along random directions of μ and L."""
    step = 1e-5
    for at in (case(1, 1, 3), case(6, 3, 3), case(5, 5, 3)):
        along = case(at.mean.shape[-1], 1, 4)
        for name, gradient in zip(("mean", "tril"), objective.gradients(at), strict=True):
            direction = getattr(along, name)
            ahead, behind = (at._replace(**{name: getattr(at, name) + sign * step * direction}) for sign in (1, -1))
            expected = (objective(ahead) - objective(behind)) / (2 * step)
            got = (gradient * direction).flatten(1).sum(-1)
            if not (error := _apart(got.detach(), expected)) <= GRADIENT:
                raise Failed(
                    f"its gradient in {'mean_q' if name == 'mean' else 'scale_tril_q'} is {error:.1e} from central "
                    f"differences ({at}); likely causes are a detached term or a wrong hand-written backward"
                )


#: The checks by their names in reports.
OBJECTIVE_CHECKS: Mapping[str, Callable[[Objective], str | None]] = {
    "returns one number per problem": form,
    "treats each problem separately": each_problem_alone,
    "is zero at the prior": zero_at_the_prior,
    "is never negative": never_negative,
    "ignores the order of inputs": order_of_inputs,
    "depends on function values only": function_values_only,
    "equals the closed form": closed_form,
    "equals the KL of the weights": weight_space_kl,
    "has the right gradient": gradients,
}


def check_objective(function: ObjectiveFunction, divergence: Divergence = "kl", name: str = "objective") -> Report:
    """Runs every check on f(mean_q [B,k], scale_tril_q [B,k,k], Phi_A [B,M,k]) -> [B].

    Args:
        divergence: the expected divergence: `kl`, or `w2` for the squared 2-Wasserstein distance.

    Raises:
        InputError: there is no such divergence.
    """
    if divergence not in _KNOWN:
        raise unknown_name("divergence", str(divergence), _KNOWN)
    objective, findings = Objective(function, divergence), list[Finding]()
    file = inspect.getfile(function) if inspect.isfunction(function) else ""
    for check, body in OBJECTIVE_CHECKS.items():
        status, message = outcome(partial(body, objective), file)
        findings.append(Finding(check, status, message))
        if status == "failed" and body is form:
            break
    return Report(name, tuple(findings), 'docs/how-to/objective.md ("Check an objective of your own")')


# --- Known mistakes ---------------------------------------------------------------------------------------------------


def _kl(at: Case) -> PerProblem:
    """Of at most k inputs."""
    return gaussian_kl(*_at_inputs(at), *_at_inputs(prior(at)))


def _reversed_kl(at: Case) -> PerProblem:
    return gaussian_kl(*_at_inputs(prior(at)), *_at_inputs(at))


def _at_inputs(at: Case) -> tuple[Vector, Matrix]:
    """The mean and the covariance factor of q's function values."""
    return (at.Phi_A @ at.mean[..., None])[..., 0], tril_of_gram((at.Phi_A @ at.tril).mT)


def _log_ratio(at: Case) -> PerProblem:
    """log det of the prior's covariance at A minus that of q's."""
    return 2 * _kl(at) - _squares(at)


def _squares(at: Case) -> PerProblem:
    """The KL's terms without a logarithm, twice: tr + mean − rank."""
    rows = torch.linalg.pinv(at.Phi_A) @ at.Phi_A
    M = at.Phi_A.shape[-2]
    return (rows @ at.tril).square().sum((-2, -1)) + (rows @ at.mean[..., None]).square().sum((-2, -1)) - M


def _per_input(at: Case) -> tuple[Vector, Vector, Vector]:
    """Means of q at each input, and the standard deviations of q and of the prior."""
    means = (at.Phi_A @ at.mean[..., None])[..., 0]
    return means, torch.linalg.vector_norm(at.Phi_A @ at.tril, dim=-1), torch.linalg.vector_norm(at.Phi_A, dim=-1)


def _marginal_kl(at: Case) -> PerProblem:
    mean, scale_q, scale_p = _per_input(at)
    ratio = (scale_q / scale_p).square()
    return 0.5 * (ratio - 1 - ratio.log() + (mean / scale_p).square()).sum(-1)


def _w2_squared(at: Case) -> PerProblem:
    return gaussian_w2(*_at_inputs(at), *_at_inputs(prior(at))).square()


def _marginal_w1(at: Case) -> PerProblem:
    """The sum over inputs of E|m + (s_q − s_p) z|, z standard normal."""
    mean, scale_q, scale_p = _per_input(at)
    scale = (scale_q - scale_p).abs()
    ratio = mean / scale
    density = (-0.5 * ratio.square()).exp() / (2 * torch.pi) ** 0.5
    return (2 * scale * density + mean * (2 * torch.special.ndtr(ratio) - 1)).sum(-1)


def _marginal_w2_squared(at: Case) -> PerProblem:
    mean, scale_q, scale_p = _per_input(at)
    return (mean.square() + (scale_q - scale_p).square()).sum(-1)


_KNOWN: Mapping[Divergence, Callable[[Case], PerProblem]] = {"kl": _kl, "w2": _w2_squared}

#: Mistakes seen in published code, and similar ones, each with the formula that identifies it.
_MISTAKES: Mapping[Divergence, Mapping[str, Callable[[Case], PerProblem]]] = {
    "kl": {
        "twice the KL divergence: a part is added twice": lambda at: 2 * _kl(at),
        "the KL divergence with half its logarithm, which is log(σ_p / σ_q) for one input": (
            lambda at: _kl(at) - 0.25 * _log_ratio(at)
        ),
        "the KL divergence without its logarithm": lambda at: 0.5 * _squares(at),
        "the KL divergence with its arguments exchanged, KL(p ‖ q)": _reversed_kl,
        "the KL divergence of the weights, not of function values": (
            lambda at: gaussian_kl_standard_normal(at.mean, at.tril)
        ),
        "the functional KL plus that of the weights: the weights are counted twice": (
            lambda at: _kl(at) + gaussian_kl_standard_normal(at.mean, at.tril)
        ),
        "the sum of each input's KL divergence, without the correlations between inputs": _marginal_kl,
        "the KL divergence over the number of inputs": lambda at: _kl(at) / at.Phi_A.shape[-2],
        "minus the KL divergence": lambda at: -_kl(at),
    },
    "w2": {
        "W₂, not its square": lambda at: _w2_squared(at).sqrt(),
        "the W₁ distance of each input's marginals, summed": _marginal_w1,
        "the W₁ distance of each input's marginals, averaged": lambda at: _marginal_w1(at) / at.Phi_A.shape[-2],
        "the sum of each input's squared W₂ distance, without the correlations between inputs": _marginal_w2_squared,
        "twice the squared W₂ distance": lambda at: 2 * _w2_squared(at),
        "half the squared W₂ distance": lambda at: 0.5 * _w2_squared(at),
        "the squared W₂ distance of the weights, not of function values": (
            lambda at: _w2_squared(at._replace(Phi_A=identity(at.mean.shape[-1], at.tril).expand_as(at.tril)))
        ),
    },
}


def _require_equal(
    objective: Objective, formula: Callable[[Case], PerProblem], name: str, at: tuple[Case, ...] | list[Case]
) -> None:
    got = [objective(each).detach() for each in at]
    with torch.no_grad():
        if _agree(got, at, formula):
            return
        if objective.divergence == "w2" and _agree(got, at, lambda each: formula(each) / each.Phi_A.shape[-2]):
            return
        worst = max(range(len(at)), key=lambda place: _apart(got[place], formula(at[place])))
        expected = formula(at[worst])
        seen = next(
            (f"; it is {mistake}" for mistake, f in _MISTAKES[objective.divergence].items() if _agree(got, at, f)), ""
        )
    problem = int((got[worst] - expected).abs().argmax())
    raise Failed(
        f"it is {float(got[worst][problem]):.6g} at {at[worst]}, expected {name}, {float(expected[problem]):.6g}{seen}"
    )


def _agree(got: list[Tensor], at: tuple[Case, ...] | list[Case], formula: Callable[[Case], PerProblem]) -> bool:
    return all(_apart(values, formula(each)) <= TOLERANCE for values, each in zip(got, at, strict=True))


def _apart(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative where values exceed 1."""
    return float(((one - other).abs() / other.abs().clamp(min=1)).max())


def _first(values: Tensor, chosen: Tensor) -> str:
    return f"{float(values[chosen][0]):g}"
