"""The convex problem solved: sweeps of exact coordinate updates, or the optimum; with a report of the way there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal

import torch
from torch import Tensor

from pathcond import cuda
from pathcond.checks import check_choice
from pathcond.device import on_cpu
from pathcond.errors import PathCondError, SolveError
from pathcond.graph import ScaleGraph
from pathcond.magnitude import PathMagnitudes
from pathcond.newton import minimise
from pathcond.problem import Problem, build_problem, check_magnitudes
from pathcond.sweeps import Sweeper


class Result(Enum):
    """How a solve ended; the value is the message."""

    SWEEPS = "all sweeps asked for were made"
    TOLERANCE = "the updates of the last sweep were below the tolerance"
    OPTIMUM = "the gradient is zero to the tolerance"
    STALLED = "no further decrease was possible before the gradient met the tolerance"
    NOTHING = "there is no unit to rescale"


@dataclass(frozen=True)
class Solution:
    """Log-scales and how they were found.

    Attributes:
        u: log-scales, float64, shape (units,) on the CPU; unit h is multiplied by ``exp(u[h] / 2)``.
        objective: F before, then after each sweep (or Newton step).
        mean_update: mean absolute change of ``u`` in each sweep (or Newton step).
        residual: largest entry of the gradient of F, over p; zero at the optimum.
        result: how the solve ended.
        dead: units (indices into ``u``) left alone because nothing enters or nothing leaves them.
        size: p, the number of parameters that count.
    """

    u: Tensor
    objective: tuple[float, ...]
    mean_update: tuple[float, ...]
    residual: float
    result: Result
    dead: tuple[int, ...]
    size: int

    @property
    def steps(self) -> int:
        """Number of sweeps or Newton steps made."""
        return len(self.mean_update)


@on_cpu
def solve(
    graph: ScaleGraph,
    g: Mapping[str, Tensor],
    *,
    method: Literal["sweeps", "optimum"] = "sweeps",
    sweeps: int = 10,
    tol: float = 0.0,
    clamp: float | None = None,
) -> Solution:
    """Find the log-scales that bring diag(G) closest to a constant.

    Args:
        graph: the units, from :func:`pathcond.extract_graph`.
        g: diag(G) by parameter name, from :func:`pathcond.path_magnitudes`; parameters left out do not count in p.
        method: ``sweeps``: the paper's alternating minimisation. ``optimum``: the minimiser of F, by Newton's method.
        sweeps: number of sweeps over all units, for ``method="sweeps"``.
        tol: stop after a sweep that changed ``u`` by less than this in sum; for ``optimum`` the residual to reach,
            1e-10 if 0.
        clamp: bound on every ``|u|``; None for none.

    Returns:
        The :class:`Solution`. Stopping after the sweeps asked for is a normal result.

    Raises:
        PathCondError: an argument is out of range, or ``g`` does not fit the graph.
        SolveError: ``g`` has entries that are negative or not finite; the message names the parameter.

    Example:
        >>> import torch, pathcond
        >>> model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU(), torch.nn.Linear(1, 1, bias=False))
        >>> for p, value in zip(model.parameters(), (2.5, 5.0, 0.2)):
        ...     _ = p.data.fill_(value)
        >>> x = torch.ones(1, 1)
        >>> graph = pathcond.extract_graph(model, x)
        >>> round(pathcond.solve(graph, pathcond.path_magnitudes(model, x)).u.item(), 4)
        -3.3304
    """
    logs = g.log_scale if isinstance(g, PathMagnitudes) else {}
    pairs = {name: (t, logs.get(name, 0.0)) for name, t in g.items()}
    check_magnitudes(graph, g)
    return solve_problem(build_problem(graph, pairs), method, sweeps, tol, clamp)


def solve_problem(problem: Problem, method: str, sweeps: int, tol: float, clamp: float | None) -> Solution:
    """Solve a :class:`Problem`; arguments as in :func:`solve`."""
    check_choice("method", method, ("sweeps", "optimum"))
    if isinstance(sweeps, bool) or not isinstance(sweeps, int) or sweeps < 0:
        raise PathCondError(f"expected sweeps to be a whole number >= 0, got {sweeps!r}.")
    if not _is_number(tol) or not tol >= 0:
        raise PathCondError(f"expected tol >= 0, got {tol!r}.")
    if clamp is not None and not (_is_number(clamp) and clamp > 0):
        raise PathCondError(f"expected clamp to be positive or None, got {clamp!r}.")
    if not problem.size and not problem.units:
        return Solution(torch.zeros(0, dtype=torch.float64), (0.0,), (), 0.0, Result.NOTHING, (), 0)
    done = cuda.solve(problem, sweeps) if method == "sweeps" and tol == 0.0 and clamp is None else None
    if done is not None:
        updates = tuple(moved / problem.units for moved in done.moved)
        u, objective = done.full[1:].cpu(), tuple(done.objective)
        return Solution(u, objective, updates, done.residual, Result.SWEEPS, (), problem.size)
    return _solve_here(problem, method, sweeps, tol, clamp)


def _solve_here(problem: Problem, method: str, sweeps: int, tol: float, clamp: float | None) -> Solution:
    state = Sweeper(problem, clamp)
    trail = _Trail([problem.size * state.log_sum if problem.size else 0.0], [])
    full, result = state.full, Result.NOTHING
    if problem.units and problem.size:
        count, stop = (min(2, sweeps), 0.0) if method == "optimum" else (sweeps, tol)
        full, result = _run_sweeps(state, trail, count, stop)
        if method == "optimum":
            full, met = minimise(problem, full, tol or 1e-10, clamp, trail.add)
            result = Result.OPTIMUM if met else Result.STALLED
    if trail.objective[0] == -math.inf:
        raise SolveError(
            "expected a path from an input or a bias to an output, got none: diag(G) is zero. Give a floating-point "
            "example input that is not empty, and weights that are not all zero."
        )
    if not bool(torch.isfinite(full).all()) or not math.isfinite(trail.objective[-1]):
        raise SolveError("expected finite log-scales, got NaN or infinity: the magnitudes span more than float64 does.")
    grad = problem.gradient(full)
    if clamp is not None:
        grad = torch.where((full >= clamp) & (grad < 0) | (full <= -clamp) & (grad > 0), 0.0, grad)
    dead = tuple(problem.dead[1:].nonzero()[:, 0].tolist())
    residual = float(grad.abs().amax())
    return Solution(full[1:].cpu(), tuple(trail.objective), tuple(trail.updates), residual, result, dead, problem.size)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass
class _Trail:
    objective: list[float]
    updates: list[float]

    def add(self, objective: float, update: float) -> None:
        self.objective.append(objective)
        self.updates.append(update)


def _run_sweeps(state: Sweeper, trail: _Trail, sweeps: int, tol: float) -> tuple[Tensor, Result]:
    problem, result = state.problem, Result.SWEEPS
    for _ in range(sweeps):
        moved = state.sweep()
        trail.add(problem.size * state.log_sum + float(problem.balance @ state.full), moved / problem.units)
        if moved < tol:
            result = Result.TOLERANCE
            break
    if sweeps:
        trail.objective[-1] = problem.objective(state.full)  # summed up afresh
    return state.full, result
