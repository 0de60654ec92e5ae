"""One call extracts the graph, solves for the scales of an objective, applies them and reports what was done."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pathcond.apply import apply_scales_, optimizer_buffers, scale_optimizer_state_, scale_parameters_
from pathcond.checks import (
    PathCondError,
    PathCondWarning,
    check_choice,
    check_finite,
    check_flags,
    check_model,
    optional_package,
)
from pathcond.diag_g import has_normalization, scaled_diag_g
from pathcond.graph import ExactFor, Frozen, ScaleGraph, extract_graph
from pathcond.inputs import as_arguments, tensors_in
from pathcond.isolation import on_cpu
from pathcond.output_check import Check
from pathcond.saved_scales import Scales
from pathcond.solvers import Solution, SolverOptions, balance_norms, balance_paths

# docs/when-to-use.md has the evidence for both.
DEFAULT_CLAMP = 1.5  # bound on |log lambda| of the sweeps
DEFAULT_DAMPING = 0.5  # fraction of the log-scales of the sweeps that is applied, for "paths" without shortcuts
_MOVED = 1.0e-3  # a unit moved if its |log lambda| is above this
_FEW = 0.1  # if a smaller fraction of the hidden units moved, a warning gives the reasons


@dataclass(frozen=True)
class Rescaling:
    """What :func:`rescale_` did. ``print`` it, or its :meth:`table`.

    Attributes:
        units: number of free units, including those that no path crosses.
        moved: number of units whose scale changed by more than 0.1%.
        at_bound: number of units whose scale is, before damping, at the bound ``clamp``.
        no_path: number of free units that no path crosses at the present weights; their scale does not change.
        frozen: hidden channels whose scale must not change, and why.
        objective: F before, then after each sweep; with damping, then F at the damped scales. With
            ``objective="norms"`` the sum of squared weights.
        damping: the factor by which the log-scales of the sweeps were multiplied.
        seconds: wall time by step: ``graph``, ``diag_g`` (for ``"paths"``), ``solve``, ``apply``, ``check``.
        output_change: largest change of the model's output on the example input, relative to its largest entry;
            infinite where finite entries became infinite or NaN, None if the check was turned off.
        exact_for: the calls for which the function was shown to be kept; see :class:`pathcond.ExactFor`.
        statistics: ``input`` if normalizations entered with statistics measured on the example input, else
            ``running``; ``unused`` with an objective without diag(G).
        notes: remarks, for example why the function is kept only approximately.
        fixed: mask of the units that ``trainable_only`` leaves alone, shape (units,).
        graph: the scale graph, which later calls can reuse.
        solution: the result of the solver, with its residual and how it ended.
    """

    units: int
    moved: int
    at_bound: int
    no_path: int
    frozen: tuple[Frozen, ...]
    objective: tuple[float, ...]
    damping: float
    seconds: Mapping[str, float]
    output_change: float | None
    exact_for: ExactFor
    statistics: str
    notes: tuple[str, ...]
    fixed: Tensor = field(repr=False)
    graph: ScaleGraph = field(repr=False)
    solution: Solution = field(repr=False)

    @property
    def log_scales(self) -> dict[str, Tensor]:
        """Log lambda by module name, each of shape (channels,)."""
        return self.graph.by_module(self.solution.log_scales)

    @property
    def scales(self) -> dict[str, Tensor]:
        """Lambda by module name, each of shape (channels,): the factor of each channel."""
        return Scales(self.graph, self.solution.log_scales).by_module()

    @property
    def max_log_scale(self) -> float:
        """Largest |log lambda|."""
        return float(self.solution.log_scales.abs().amax()) if self.units else 0.0

    def save(self, path: str | Path) -> None:
        """Write the scales to a safetensors file, for :func:`pathcond.load_scales`."""
        Scales(self.graph, self.solution.log_scales).save(path)

    def undo_(self, model: nn.Module, *, optimizer: Optimizer | None = None) -> None:
        """Undo the rescaling in place, up to rounding.

        If ``exact_for`` has modes, this also keeps the function of a model that was trained since. With
        ``batchnorm="exclude"`` it does not, because training has changed the running statistics.

        Args:
            model: the model that was rescaled, or one with the same parameters.
            optimizer: the optimizer whose state is rescaled too; see :func:`pathcond.apply_scales_`.
        """
        apply_scales_(model, self.graph, -self.solution.log_scales, optimizer=optimizer)

    def table(self) -> str:
        """One line per module with hidden units: how many, how many moved, their scales, why others did not move.

        Units that several modules share, as along a shortcut, are counted in the first of them.
        """
        rows = [("module", "units", "moved", "lambda", "not moved because")]
        why = self._why_not_moved()
        first: dict[int, str] = {}  # the module in which a unit is counted
        place = {name.rpartition(".")[0]: i for i, name in reversed(list(enumerate(self.graph.shapes)))}
        names = dict.fromkeys([*self.graph.layers, *self.graph.frozen_by_module])
        for name in sorted(names, key=lambda name: place.get(name, len(place))):  # in the order of their parameters
            numbers = self.graph.layers.get(name, torch.zeros(0, dtype=torch.int64))
            units = numbers[numbers != 0].abs().unique().tolist()
            free = Counter(why[h - 1] for h in units if first.setdefault(h, name) == name)
            frozen = self.graph.frozen_by_module.get(name, ())
            reasons = [f"{entry.channels} frozen at '{entry.where or 'the model'}': {entry.reason}" for entry in frozen]
            shared = Counter(first[h] for h in units if first[h] != name)
            reasons += [f"{n} counted at '{other or 'the model'}', which shares them" for other, n in shared.items()]
            reasons += [f"{n} {reason}" for reason, n in free.items() if reason]
            scales = self.scales[name][numbers != 0] if units else torch.zeros(0)
            span = f"{float(scales.min()):.3g} .. {float(scales.max()):.3g}" if units else ""
            count = free.total() + sum(entry.channels for entry in frozen)
            rows.append((name or "(model)", str(count), str(free[""]), span, "; ".join(reasons)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map("{:{}{}}".format, row, "<>><<", widths)) for row in rows)  # numbers to the right
        return "\n".join(line.rstrip() for line in lines)

    def _why_not_moved(self) -> list[str]:
        """The reason of each unit that did not move; empty for the others."""
        dead, fixed = set(self.solution.dead), self.fixed.tolist()
        if self.damping == 0.0:
            text = "with damping=0" if self.graph.chain else "in a network with shortcuts, unless damping=0.5 is given"
            return [f"keep their scale {text}"] * self.units
        return [
            "touch a parameter that does not train" if fixed[h]
            else "have no path through them at these weights (zero-initialized layers)" if h in dead
            else "" if size > _MOVED
            else "are at their best scale already"
            for h, size in enumerate(self.solution.log_scales.abs().tolist())
        ]  # fmt: skip

    def plot(self, axes: Any = None) -> Any:
        """Draw the scale of every channel by module, on matplotlib's ``axes`` or on new ones, which are returned."""
        plt = optional_package("matplotlib.pyplot", "plot", "Install pathcond[plot].")
        axes = axes or plt.subplots(figsize=(max(4.0, 0.5 * len(self.scales)), 3.6), layout="constrained")[1]
        for place, (name, scales) in enumerate(self.scales.items()):
            free = scales[self.graph.layers[name] != 0].tolist()
            x = [place - 0.25 + 0.5 * (i + 0.5) / len(free) for i in range(len(free))]
            axes.plot(x, free, linestyle="", marker=".", markersize=4)
        axes.set_xticks(range(len(self.scales)), [name or "(model)" for name in self.scales], rotation=90)
        axes.set(yscale="log", ylabel="scale lambda of a channel (before: 1)")
        return axes

    def __str__(self) -> str:
        still = f"{self.graph.frozen_channels} channels frozen"
        still += f", {self.no_path} units without a path" if self.no_path else ""
        fraction = "half" if self.damping == 0.5 else f"{self.damping:.3g}"
        damped = f"; {fraction} of the log-scales (damping {self.damping:.3g})" if self.damping < 1 else ""
        lines = [
            f"rescaled {self.moved} of {self.units} units ({still}), largest |log lambda| {self.max_log_scale:.3g}",
            f"objective {self.objective[0]:.6g} -> {self.objective[-1]:.6g} in {self.solution.steps} steps "
            f"(residual {self.solution.residual:.1e}; {self.solution.result.value}){damped}",
        ]
        if self.at_bound:
            when = " before damping" if damped else ""
            lines.append(f"{self.at_bound} units are at the bound on |log lambda|{when} (clamp=None lifts it)")
        if self.output_change is not None:
            lines.append(f"largest change of the output: {self.output_change:.1e} of its largest entry")
        lines.append(f"exact for {self.exact_for}")
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
    optimizer: Optimizer | None = None,
    objective: Literal["paths", "norms"] = "paths",
    clamp: float | None = DEFAULT_CLAMP,
    damping: float | None = None,
    graph: ScaleGraph | None = None,
    check: bool = True,
    trainable_only: bool = False,
) -> Rescaling:
    """Rescale a model in place; its function does not change. By default its path kernel comes closer to the identity.

    The steps are :func:`pathcond.extract_graph`, :func:`pathcond.compute_diag_g`, :func:`pathcond.solve` and
    :func:`pathcond.apply_scales_`, which have more options.

    Args:
        model: any module that can be run on ``example_input``.
        example_input: as in :func:`pathcond.extract_graph`. A real batch is best, because the statistics of
            normalizations are measured on it.
        optimizer: the optimizer whose state is rescaled with the parameters; see :func:`pathcond.apply_scales_`.
        objective: what the scales are chosen for, in ten sweeps over all units. ``paths``: diag(G) as close to a
            constant as possible, as in the paper. ``norms``: a small sum of squared weights; biases have no part in it,
            but are scaled with their unit, and a gain of a normalization that enters a unit is a weight.
        clamp: bound on every ``|log lambda|`` of the sweeps, before damping; None for none, as in the paper.
        damping: factor from 0 to 1 by which the log-scales of the sweeps are multiplied, so that
            ``|log lambda| <= damping * clamp``; 1 is the paper's. None means 1 for ``norms``, and for ``paths`` 0.5 in
            a network without shortcuts and 0 in others, which lost accuracy in short training
            (docs/when-to-use.md): they stay as they are.
        graph: a graph extracted earlier.
        check: run the model before and after, in its present mode, and report the largest change of its output. Eval
            mode is used where training mode fails on the example (BatchNorm on a batch of one). If the graph is exact
            and the change is larger than rounding or a random forward pass explain, the rescaling is undone and an
            error is raised.
        trainable_only: move only units whose parameters all have ``requires_grad``: the factors of LoRA are balanced,
            and the weights they are added to stay bit for bit.

    Returns:
        A :class:`Rescaling`; ``print`` it, or its ``table()``.

    Raises:
        PathCondError: an argument is invalid, a step fails, or ``check`` finds that the function changed. The model is
            then as it was before the call.

    Warns:
        PathCondWarning: no unit moved, or few did; the message says why.

    Example:
        >>> import torch, pathcond
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> report = pathcond.rescale_(model, torch.randn(16, 3))
        >>> report.units, report.objective[-1] <= report.objective[0]
        (8, True)
        >>> report.undo_(model)
    """
    return rescale_with(model, example_input, optimizer, objective, clamp, damping, graph, check, trainable_only)


def rescale_with(
    model: nn.Module,
    example_input: Any,
    optimizer: Optimizer | None,
    objective: str,
    clamp: float | None,
    damping: float | None,
    graph: ScaleGraph | None,
    check: bool,
    trainable_only: bool,
    sweeps: int = 10,
) -> Rescaling:
    """As :func:`rescale_`, with another number of sweeps."""
    options = SolverOptions(sweeps=sweeps, clamp=clamp, damping=1.0 if damping is None else damping)
    check_model(model)
    check_flags(check=check, trainable_only=trainable_only)
    check_choice("objective", objective, ("paths", "norms"))
    if not isinstance(graph, ScaleGraph | None):
        raise PathCondError(f"expected graph to be a ScaleGraph or None, got {type(graph).__name__}.")
    if graph is not None:
        graph.check_fits(model)
    clock = _Clock()
    with clock("check"):  # before the model is recorded, so that it caches real tensors
        checked = Check(model, example_input) if check else None
    if graph is None:
        with clock("graph"):
            graph = extract_graph(model, example_input)
    optimizer_buffers(model, graph.params, optimizer)  # raises before any work if the state cannot be rescaled
    still = [name for name, p in model.named_parameters() if trainable_only and not p.requires_grad]
    fixed = graph.touched_by(still)
    if damping is None and objective == "paths":
        options = replace(options, damping=DEFAULT_DAMPING) if graph.chain else replace(options, damping=0.0, sweeps=0)
    chosen, notes = "unused", ()
    if objective == "paths":
        with clock("diag_g"):
            chosen, notes = _choose_statistics(model, example_input, graph)
            g = scaled_diag_g(model, example_input, "exact", chosen, None, graph)
        with clock("solve"):
            solution = balance_paths(graph, g, options, fixed)
    else:
        with clock("solve"):
            check_finite(model, dict(model.named_parameters()))
            solution = balance_norms(graph, _weights(model, graph), options, fixed)
    if bool(fixed.any()):
        notes += (f"{int(fixed.sum())} units keep their scale, because a parameter that they touch does not train",)
    scale = partial(scale_parameters_, model, graph, solution.log_scales, force=False)
    try:
        with clock("apply"):
            if checked is not None:
                checked.save(graph.params)
            scale()
        with clock("check"):
            change, more = checked.after(graph, scale) if checked is not None else (None, ())
    except BaseException:  # also Ctrl-C
        if checked is not None:
            checked.restore()
        raise
    with clock("apply"):
        scale_optimizer_state_(model, graph, solution.log_scales, optimizer)
    if not tensors_in(as_arguments(example_input)):
        more += (
            "the example input shows no tensor (containers, dataclasses and attributes are searched), so no unit "
            "depends on it",
        )
    report = Rescaling(
        units=graph.units,
        moved=int((solution.log_scales.abs() > _MOVED).sum()),
        at_bound=solution.clamped,
        no_path=len(solution.dead),
        frozen=graph.frozen,
        objective=solution.objective,
        damping=options.damping,
        seconds=clock,
        output_change=change,
        exact_for=graph.exact_for,
        statistics=chosen,
        notes=(*graph.notes, *notes, *more),
        fixed=fixed,
        graph=graph,
        solution=solution,
    )
    if not trainable_only:
        _warn_if_few(report)
    return report


def _choose_statistics(model: nn.Module, example_input: Any, graph: ScaleGraph) -> tuple[str, tuple[str, ...]]:
    """How normalizations enter diag(G), and a note if their statistics could not be measured."""
    if not has_normalization(graph.trace_of(model, example_input)):
        return "running", ()
    tensors = [t for t in tensors_in(as_arguments(example_input)) if t.numel() > 1]
    if any(t.ndim and t.shape[0] > 1 and bool((t != t[:1]).any()) for t in tensors):
        return "input", ()
    return "running", (
        "the statistics of the normalizations were not measured, because the example input is not a batch of different "
        "examples: pass a real batch",
    )


def _weights(model: nn.Module, graph: ScaleGraph) -> dict[str, Tensor]:
    """The weights that touch a unit, by name: parameters that multiply data, with their offsets."""
    parameters = dict(model.named_parameters())
    offsets = {name: s.offset for name, s in graph.params.items() if not s.bias and parameters[name].numel()}
    return {n: parameters[n].detach().double() + o if o else parameters[n].detach() for n, o in offsets.items()}


def _warn_if_few(report: Rescaling) -> None:
    """Warn where a rescaling changed nothing, or little, with the reasons."""
    hidden = report.units + report.graph.frozen_channels
    if report.moved >= _FEW * hidden and (report.moved or not hidden):
        return
    most = sorted(report.frozen, key=lambda entry: -entry.channels)[:3]
    reasons = [f"{e.channels} channels are frozen at '{e.where or 'the model'}': each {e.reason}" for e in most]
    reasons += [f"{n} units {why}" for why, n in Counter(report._why_not_moved()).items() if why]
    warnings.warn(
        f"rescale_ moved {report.moved} of {report.units} units: " + "; ".join(reasons) + ".",
        PathCondWarning,
        stacklevel=4,
    )


class _Clock(dict[str, float]):
    """Wall time by step."""

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self[step] = self.get(step, 0.0) + time.perf_counter() - start
