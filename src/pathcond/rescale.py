"""One call: graph, diag(G), solve, apply, and a report of what was done."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pathcond.apply import apply_known_, apply_scales_
from pathcond.checks import check_flags, check_model
from pathcond.device import on_cpu
from pathcond.errors import PathCondError
from pathcond.graph import Frozen, ScaleGraph, extract_graph
from pathcond.magnitude import finite_entries, scaled_magnitudes
from pathcond.problem import build_problem
from pathcond.record import as_arguments, tensors_in
from pathcond.solve import Result, Solution, solve_problem
from pathcond.verify import Check


@dataclass(frozen=True)
class Rescaling:
    """What :func:`rescale_` did.

    Attributes:
        u: log-scales by module, each of shape (channels,); a channel was multiplied by ``exp(u / 2)``.
        units: number of free units, those without a path through them included.
        frozen: hidden units that stayed as they are, and why.
        objective: F before, then after each sweep.
        mean_update: mean absolute change of the log-scales in each sweep.
        residual: largest entry of the gradient of F over p at the end; zero at the optimum.
        result: how the solver ended.
        seconds: wall time by step: ``graph``, ``diag_g``, ``solve``, ``apply``, ``check``.
        output_change: largest change of the model's output on the example input, relative to its largest entry;
            infinite where finite entries became infinite or NaN, None if the check was turned off.
        exact: whether the function is kept in every mode.
        notes: what to know, for example why the function is kept only approximately.
        graph: the units, to be reused.
        solution: the solver's own account.
    """

    u: Mapping[str, Tensor] = field(repr=False)
    units: int
    frozen: tuple[Frozen, ...]
    objective: tuple[float, ...]
    mean_update: tuple[float, ...]
    residual: float
    result: Result
    seconds: Mapping[str, float]
    output_change: float | None
    exact: bool
    notes: tuple[str, ...]
    graph: ScaleGraph = field(repr=False)
    solution: Solution = field(repr=False)

    @property
    def objective_before(self) -> float:
        """F of the model as it was."""
        return self.objective[0]

    @property
    def objective_after(self) -> float:
        """F of the rescaled model."""
        return self.objective[-1]

    def undo_(self, model: nn.Module) -> None:
        """Rescale back, in place, up to rounding; also after training, which then keeps the trained function."""
        apply_scales_(model, self.graph, -self.solution.u)

    def __str__(self) -> str:
        top = float(self.solution.u.abs().amax()) / 2 if self.units else 0.0
        dead = len(self.solution.dead)
        still = f"{self.graph.frozen_units} frozen" + (f", {dead} without a path" if dead else "")
        lines = [
            f"rescaled {self.units - dead} units ({still}), largest |log lambda| {top:.3g}",
            f"objective {self.objective_before:.6g} -> {self.objective_after:.6g} in {self.solution.steps} steps "
            f"(residual {self.residual:.1e}; {self.result.value})",
        ]
        if self.output_change is not None:
            lines.append(f"largest change of the output: {self.output_change:.1e} of its largest entry")
        lines.append("time " + ", ".join(f"{step} {1000 * s:.1f} ms" for step, s in self.seconds.items()))
        lines += [f"frozen: {entry}" for entry in self.frozen[:8]]
        if len(self.frozen) > 8:
            lines.append(f"frozen: ... and {len(self.frozen) - 8} more places (see .frozen)")
        return "\n".join(lines + [f"note: {note}" for note in self.notes])


@on_cpu
def rescale_(
    model: nn.Module,
    example_input: Any,
    *,
    method: Literal["sweeps", "optimum"] = "sweeps",
    sweeps: int = 10,
    tol: float = 0.0,
    clamp: float | None = None,
    batchnorm: Literal["affine", "exclude"] = "affine",
    shortcuts: Literal["tie", "freeze"] = "tie",
    smooth: bool = False,
    strict: bool = False,
    pooling: Literal["exact", "plain"] = "exact",
    graph: ScaleGraph | None = None,
    check: bool = True,
    force: bool = False,
) -> Rescaling:
    """Rescale a model in place so that its path kernel comes closer to the identity; its function stays.

    Args:
        model: any module that can be run on ``example_input``.
        example_input: a tensor, a tuple or list of positional arguments, or a dict of keyword arguments; only its
            shapes matter, and a batch of one is enough and fastest. It must reach every branch the model is used with.
        method: ``sweeps`` (the paper's method) or ``optimum``; see :func:`pathcond.solve`, also for ``sweeps``,
            ``tol`` and ``clamp``.
        sweeps: number of sweeps over all units.
        tol: tolerance of the solver.
        clamp: bound on every ``|u|``.
        batchnorm: how scales cross BatchNorm; see :func:`pathcond.extract_graph`, also for ``shortcuts``, ``smooth``
            and ``strict``.
        shortcuts: whether channels along identity shortcuts share a scale or stay.
        smooth: let scales cross GELU and the like.
        strict: raise at operations without a rule.
        pooling: how pools enter diag(G); see :func:`pathcond.path_magnitudes`.
        graph: a graph extracted before; the four options above it are then not used.
        check: run the model before and after, and report the largest change of its output; in the model's present mode,
            or in eval mode where it cannot train on the example (BatchNorm on a batch of one). A change that neither
            rounding nor a random forward pass explains is undone and raised, if the graph is exact.
        force: write scaled weights even where they leave the range of their dtype.

    Returns:
        A :class:`Rescaling`; ``print`` it.

    Raises:
        PathCondError: see the three steps, and ``check``. An error leaves the model as it was.

    Example:
        >>> import torch, pathcond
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> report = pathcond.rescale_(model, torch.ones(1, 3))
        >>> report.units, report.objective_after <= report.objective_before
        (8, True)
        >>> report.undo_(model)
    """
    check_model(model)
    check_flags(smooth=smooth, strict=strict, check=check, force=force)
    if graph is not None and not isinstance(graph, ScaleGraph):
        raise PathCondError(f"expected graph to be a ScaleGraph or None, got {type(graph).__name__}.")
    clock = _Clock(model)
    with clock("check"):  # before the record, so that what the model caches is real
        checked = Check(model, example_input) if check else None
    if graph is None:
        with clock("graph"):
            options = {"batchnorm": batchnorm, "shortcuts": shortcuts, "smooth": smooth, "strict": strict}
            graph = extract_graph(model, example_input, **options)
    with clock("diag_g"):
        tops = finite_entries(model)
        g = scaled_magnitudes(model, example_input, pooling, graph, None, tops)
    with clock("solve"):
        problem = build_problem(graph, g, consume=True)
        solution = solve_problem(problem, method, sweeps, tol, clamp)
        del problem
    with clock("apply"):
        if checked is not None:
            checked.save(graph)
        apply = partial(apply_known_, model, graph, solution.u, force, tops)
        try:
            apply()
        except BaseException:
            if checked is not None:
                checked.put_back()
            raise
    with clock("check"):
        change, notes = checked.after(graph, apply) if checked is not None else (None, ())
    if not tensors_in(as_arguments(example_input)):
        notes += (
            "the example input shows no tensor (those in tuples, lists and dicts are seen), so no unit depends on it",
        )
    dead = (
        (Frozen(len(solution.dead), "", "has no path through it (zero weights, or a gate after it)"),)
        if solution.dead
        else ()
    )
    return Rescaling(
        u=graph.by_module(solution.u),
        units=graph.units,
        frozen=(*graph.frozen, *dead),
        objective=solution.objective,
        mean_update=solution.mean_update,
        residual=solution.residual,
        result=solution.result,
        seconds=clock.seconds,
        output_change=change,
        exact=graph.exact,
        notes=(*graph.notes, *notes),
        graph=graph,
        solution=solution,
    )


class _Clock:
    """Wall time by step, with the device's work waited for."""

    def __init__(self, model: nn.Module) -> None:
        self.seconds: dict[str, float] = {}
        self._devices = {p.device for p in model.parameters() if p.device.type == "cuda"}

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        for device in self._devices:
            torch.cuda.synchronize(device)
        self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - start
