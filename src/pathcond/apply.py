"""Multiply parameters and the optimizer state that belongs to them by their scales: the only place that writes weights.

A parameter multiplied by s has its gradients divided by s. Averages of gradients in an optimizer's state are therefore
divided by s, and averages of squared gradients by s**2. Without weight decay, and up to the small ``eps`` that some
optimizers add, the state is then what the optimizer would hold had it seen the rescaled model throughout.

:class:`Check` compares outputs before and after; if they differ beyond rounding, it restores the weights.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from pathcond.checks import (
    ApplyError,
    PathCondError,
    RecordError,
    check_shapes,
    largest_entries,
    shared_memory,
)
from pathcond.graph import ExactFor, ParamScales, ScaleGraph
from pathcond.inputs import Inputs, as_arguments, examples_in, hint_on, map_tensors
from pathcond.isolation import (
    caller_device,
    full_precision,
    in_mode,
    on_cpu,
    restored_random_state,
    untouched,
    without_cache,
)
from pathcond.tracing import map_leaves, outputs_in, place_of

# Powers of the gradient in optimizer state: 1 for averages of gradients, 2 for averages of squares, 0 for ratios.
_ADAM = {"exp_avg": 1, "exp_avg_sq": 2, "max_exp_avg_sq": 2}
OPTIMIZER_STATE: dict[type[optim.Optimizer], dict[str, int]] = {
    optim.SGD: {"momentum_buffer": 1},
    optim.Adam: _ADAM,
    optim.AdamW: _ADAM,
    optim.NAdam: _ADAM,
    optim.RAdam: _ADAM,
    optim.Adamax: {"exp_avg": 1, "exp_inf": 1},
    optim.RMSprop: {"square_avg": 2, "grad_avg": 1, "momentum_buffer": 0},
    optim.Adagrad: {"sum": 2},
    optim.Adadelta: {"square_avg": 2, "acc_delta": 0},
}
if hasattr(optim, "Muon"):  # since torch 2.9
    OPTIMIZER_STATE[optim.Muon] = {"momentum_buffer": 1}


_PLAIN = 40.0  # factors within exp(-40) .. exp(40) are multiplied in directly, larger ones in a wider format


@dataclass(frozen=True)
class Scales:
    """Scales of a model's units, to be applied to it or to a model with the same parameters.

    Attributes:
        graph: the units, and the parameters that enter and leave them.
        u: log-scales, shape (units,); lambda is ``exp(u / 2)``.
    """

    graph: ScaleGraph
    u: Tensor

    def by_module(self) -> dict[str, Tensor]:
        """Lambda by module name, shape (channels,) each; 1 where a channel keeps its scale."""
        return {name: (u / 2).exp() for name, u in self.graph.by_module(self.u).items()}

    def save(self, path: str | Path) -> None:
        """Write the scales to a safetensors file; :func:`load_scales` reads it."""
        tensors = {"u": self.u.detach().double().cpu(), "powers": self.graph.powers.int()}
        for name, scales in self.graph.params.items():
            tensors[f"row/{name}"], tensors[f"col/{name}"] = scales.row.int(), scales.col.int()
            if scales.offset:
                tensors[f"offset/{name}"] = torch.tensor(scales.offset, dtype=torch.float64)
        tensors |= {f"module/{name}": units.int() for name, units in self.graph.layers.items()}
        facts = {
            "shapes": {name: list(shape) for name, shape in self.graph.shapes.items()},
            "groups": list(self.graph.groups),
            "options": dict(self.graph.options),
            "exact_for": asdict(self.graph.exact_for),
            "notes": list(self.graph.notes),
            "signature": self.graph.signature,
            "arguments": _encoded(self.graph.arguments),
        }
        path = Path(path)
        partial = path.with_name(path.name + ".partial")
        try:
            contiguous = {name: t.contiguous() for name, t in tensors.items()}
            _safetensors().torch.save_file(contiguous, partial, metadata={"pathcond": json.dumps(facts)})
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def load_scales(path: str | Path) -> Scales:
    """Read scales that ``report.save(path)`` wrote; apply them with :func:`apply_scales_`.

    Raises:
        PathCondError: the file does not exist, or ``save`` did not write it.
    """
    safetensors = _safetensors()
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["pathcond"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    except (OSError, KeyError, ValueError, safetensors.SafetensorError) as error:
        raise PathCondError(
            f"expected scales that report.save wrote at '{path}', got {type(error).__name__}: {error}."
        ) from error
    names = [name.removeprefix("row/") for name in tensors if name.startswith("row/")]
    offsets = {name: float(tensors[f"offset/{name}"]) for name in names if f"offset/{name}" in tensors}
    params = {
        name: ParamScales(tensors[f"row/{name}"].long(), tensors[f"col/{name}"].long(), offsets.get(name, 0.0))
        for name in names
    }
    shown = facts["exact_for"]
    graph = ScaleGraph(
        units=len(tensors["u"]),
        layers={n.removeprefix("module/"): t.long() for n, t in tensors.items() if n.startswith("module/")},
        groups=tuple(facts["groups"]),
        params=params,
        shapes={name: tuple(shape) for name, shape in facts["shapes"].items()},
        frozen=(),
        notes=tuple(facts["notes"]),
        exact_for=ExactFor(tuple(shown["modes"]), shown["inputs"], tuple(shown["sizes"]), tuple(shown["fixed"])),
        options=facts["options"],
        frozen_by_module={},
        trace=None,
        signature=facts["signature"],
        arguments=_decoded(facts["arguments"]),
        powers=tensors.get("powers", torch.zeros(0, 2)).long(),
    )
    return Scales(graph, tensors["u"])


def _encoded(tree: Any) -> Any:
    """Arguments as JSON can hold them: a kind and its content; None where there is anything else in them."""
    if isinstance(tree, Tensor):
        return ["tensor", [list(tree.shape), str(tree.dtype).removeprefix("torch.")]]
    if isinstance(tree, (list, tuple)):
        items = [_encoded(item) for item in tree]
        return ["tuple" if isinstance(tree, tuple) else "list", items] if None not in items else None
    if isinstance(tree, dict):
        named = {str(key): _encoded(item) for key, item in tree.items()}
        return ["dict", named] if None not in named.values() else None
    return ["plain", tree] if tree is None or isinstance(tree, (bool, int, float, str)) else None


def _decoded(tree: Any) -> Any:
    if tree is None:
        return None
    kind, content = tree
    if kind == "tensor":
        return torch.empty(content[0], dtype=getattr(torch, content[1]), device="meta")
    if kind == "dict":
        return {key: _decoded(item) for key, item in content.items()}
    if kind == "plain":
        return content
    return (tuple if kind == "tuple" else list)(_decoded(item) for item in content)


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise PathCondError(
            "expected the package safetensors to save and load scales, got none. Install it."
        ) from error
    return safetensors


@on_cpu
def apply_scales_(
    model: nn.Module,
    graph: ScaleGraph | Scales,
    u: Tensor | None = None,
    *,
    optimizer: optim.Optimizer | None = None,
    force: bool = False,
) -> None:
    """Rescale a model in place: what enters unit h is multiplied by ``exp(u[h] / 2)``, what leaves it divided by it.

    Everything is checked before the first write, so an error leaves the model as it was. Dtypes, devices,
    ``requires_grad`` and gradients stay as they are.

    Args:
        model: the model the graph was extracted from, or one with the same parameters and operations (a fresh one, an
            EMA copy).
        graph: the units; or :class:`Scales`, units and log-scales together.
        u: log-scales, shape (units,); omitted with :class:`Scales`.
        optimizer: the optimizer whose state is rescaled with the parameters: SGD, Adam, AdamW, NAdam, RAdam, Adamax,
            Muon, RMSprop, Adagrad or Adadelta; None to touch no state.
        force: write even where a value leaves the range of its number format.

    Raises:
        ApplyError: ``u`` has the wrong shape or is not finite; the model's parameters or operations are not the
            graph's; or, without ``force``, a scaled weight would overflow its dtype or vanish in it.
        PathCondError: the optimizer is not this model's, or its state cannot be rescaled.

    Example:
        >>> import torch, pathcond
        >>> model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU(), torch.nn.Linear(1, 1))
        >>> x = torch.ones(1, 1)
        >>> graph = pathcond.extract_graph(model, x)
        >>> before = model(x).item()
        >>> pathcond.apply_scales_(model, graph, torch.tensor([1.0]))
        >>> abs(model(x).item() - before) < 1e-6
        True
    """
    if isinstance(graph, Scales):
        graph, u = graph.graph, graph.u
    if u is None:
        raise ApplyError("expected log-scales u with a ScaleGraph, got none. Pass u, or Scales alone.")
    optimizer_buffers(model, graph.params, optimizer)
    graph.check_fits(model)
    scale_parameters_(model, graph, u, force)
    if optimizer is not None:
        scale_optimizer_state_(model, graph, u, optimizer)


def scale_parameters_(model: nn.Module, graph: ScaleGraph, u: Tensor, force: bool) -> None:
    """As :func:`apply_scales_`, for parameters alone."""
    parameters = dict(model.named_parameters())
    _check_fit(parameters, graph, u)
    logs = graph.by_number(u.detach().double().cpu() / 2)
    with torch.inference_mode(False), torch.no_grad():
        if not force:
            largest = largest_entries({name: parameters[name] for name in graph.params})
            for name in graph.params:
                _check_range(name, parameters[name], graph.params[name], logs, largest.get(name, 0.0))
        _multiply_(graph, logs, [(name, parameters[name], 1) for name in graph.params])
        torch.clear_autocast_cache()  # the cache holds copies of the weights


def scale_optimizer_state_(model: nn.Module, graph: ScaleGraph, u: Tensor, optimizer: optim.Optimizer) -> None:
    """Rescale the state of an optimizer whose parameters were rescaled by ``u``."""
    buffers = optimizer_buffers(model, graph.params, optimizer)
    logs = graph.by_number(u.detach().double().cpu() / 2)
    with torch.inference_mode(False), torch.no_grad():
        _multiply_(graph, logs, [(name, t, -power) for name, found in buffers.items() for t, power in found if power])


def _multiply_(graph: ScaleGraph, logs: Tensor, tensors: Iterable[tuple[str, Tensor, int]]) -> None:
    """Multiply tensors in place by the factors of the named parameters at some power; ``logs`` is log lambda by number.

    All factors of one device and dtype are moved there together. Tensors in 16 bits, sums with an offset, and factors
    beyond exp(40) are multiplied in a wider format.
    """
    reach = 2 * float(logs.abs().amax())
    together: dict[tuple[torch.device, torch.dtype], list[tuple[Tensor, Tensor]]] = {}
    for name, tensor, power in tensors:
        scales = graph.params[name]
        offset = scales.offset if power == 1 else 0.0
        ends = power * logs[scales.row], -power * logs[scales.col]
        if offset or abs(power) * reach >= _PLAIN or tensor.dtype not in (torch.float32, torch.float64):
            wide = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else torch.float64
            factor = (ends[0] + ends[1]).exp().to(tensor.device, wide)
            tensor.copy_((tensor.to(wide) + offset) * factor - offset)
        else:
            found = together.setdefault((tensor.device, tensor.dtype), [])
            found += [(tensor, end) for end in ends if bool(end.any())]
    for (device, dtype), found in together.items():
        factors = torch.cat([end.reshape(-1) for _, end in found] or [logs[:0]]).exp().to(dtype).to(device)
        pieces = factors.split([end.numel() for _, end in found])
        for (tensor, end), piece in zip(found, pieces, strict=True):
            tensor.mul_(piece.view(end.shape))


def _check_fit(parameters: Mapping[str, Tensor], graph: ScaleGraph, u: Tensor) -> None:
    """Raise if log-scales are not those of the graph, or the parameters not those of its model."""
    if tuple(u.shape) != (graph.units,):
        raise ApplyError(f"expected u of shape ({graph.units},), one log-scale a unit, got shape {tuple(u.shape)}.")
    if not bool(torch.isfinite(u).all()):
        raise ApplyError(
            f"expected finite log-scales, got {int((~torch.isfinite(u)).sum())} NaN or infinite ones in u."
        )
    check_shapes(parameters, graph.shapes)
    for name in graph.params:
        if parameters[name].is_inference():
            raise ApplyError(
                f"expected parameters that can be written, got '{name}' made in torch.inference_mode. Build or load "
                "the model outside of it."
            )


def _check_range(name: str, p: Tensor, scales: ParamScales, logs: Tensor, top: float) -> None:
    """Raise if scaled weights would overflow their number format, or underflow in it; ``top`` is the largest of them.

    Where a bound on the factors leaves half the format's range below ``top``, the weights are not looked at.
    """
    limits = torch.finfo(p.dtype)
    high, low = math.log(limits.max), math.log(limits.smallest_normal)
    reach, top = 2 * float(logs.abs().amax()), top + abs(scales.offset)
    if top == 0.0 or (reach + math.log(top) < high and math.log(top) - reach > low / 2):
        return
    size = (p + scales.offset).abs() if scales.offset else p.abs()
    log = size.double().log() + (logs[scales.row] - logs[scales.col]).to(p.device)
    over, under = int((log > high).sum()), int(((log < low) & (size >= limits.smallest_normal)).sum())
    if over or under:
        what = f"{over} weights of '{name}' would overflow" if over else f"{under} weights of '{name}' would vanish"
        wider = {torch.float64: "", torch.float32: "use model.double(), "}.get(p.dtype, "use model.float(), ")
        raise ApplyError(
            f"expected scaled weights within {p.dtype} ({limits.smallest_normal:.2g} to {limits.max:.2g}), but {what}. "
            f"Nothing was written. Bound the scales with clamp=, {wider}or pass force=True."
        )


# ---- optimizer state


def optimizer_buffers(
    model: nn.Module, names: Iterable[str], optimizer: optim.Optimizer | None
) -> dict[str, list[tuple[Tensor, int]]]:
    """The optimizer's state of the named parameters: tensors, and the power of the gradient each is made of.

    Raises:
        PathCondError: ``optimizer`` is no optimizer, belongs to another model, or has state that cannot be rescaled.
    """
    if optimizer is None:
        return {name: [] for name in names}
    holders = parameters_by_memory(model, names)
    if not isinstance(optimizer, optim.Optimizer):
        raise PathCondError(
            f"expected optimizer to be a torch.optim.Optimizer or None, got {type(optimizer).__name__}."
        )
    ours = {id(p) for group in holders.values() for p in group}
    if ours and not any(id(p) in ours for group in optimizer.param_groups for p in group["params"]):
        raise PathCondError("expected the optimizer of this model, got one that holds none of the rescaled parameters.")
    powers = next((powers for kind, powers in OPTIMIZER_STATE.items() if isinstance(optimizer, kind)), None)
    found: dict[str, list[tuple[Tensor, int]]] = {name: [] for name in holders}
    for name, group in holders.items():
        for p in group:
            for key, value in optimizer.state.get(p, {}).items():
                if not isinstance(value, Tensor) or (value.numel() == 1 and (value.shape != p.shape or key == "step")):
                    continue  # step counts and other scalars
                if powers is None or key not in powers or value.shape != p.shape:
                    known = ", ".join(kind.__name__ for kind in OPTIMIZER_STATE)
                    raise PathCondError(
                        f"expected the state of one of {known}, got {key!r} of {type(optimizer).__name__} for "
                        f"parameter '{name}', whose change under a rescaling is not known. Nothing was changed. Use "
                        "such an optimizer, or pass optimizer=None to leave the state as it is."
                    )
                found[name].append((value, powers[key]))
    return found


def parameters_by_memory(model: nn.Module, names: Iterable[str]) -> dict[str, list[nn.Parameter]]:
    """The named parameters, each with others on the same memory, which share its values but not optimizer state."""
    parameters = dict(model.named_parameters())
    found = {name: [parameters[name]] for name in names if name in parameters}
    for other, name in shared_memory(model)[0].items():
        if name in found:
            found[name].append(parameters[other])
    return found


# ---- the check of a rescaling


class CastsToFloat64(TorchFunctionMode):
    """Casts to float32 become casts to float64: some models compute in float32 for weights of any dtype."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = map_leaves(lambda x: torch.float64 if x is torch.float32 else x, (args, kwargs or {}))
        return (Tensor.double if func is Tensor.float else func)(*args, **kwargs)


class Check:
    """Outputs of a model on the example input before a rescaling; and its weights, from :meth:`save` on.

    The outputs are those of the model's present mode, or of eval mode if only training mode fails: BatchNorm refuses to
    train on a single example, which is enough for everything else here.
    """

    def __init__(self, model: nn.Module, example_input: Any, *, wide: bool = False) -> None:
        self.model, self.example_input, self.wide = model, example_input, wide
        self.mode: bool | None = None
        self.saved: dict[str, Tensor] = {}
        try:
            self.before = self._first()
        except PathCondError:
            raise
        except Exception as error:
            hint = hint_on(error, model, example_input)
            place = place_of(error, {id(module): name for name, module in model.named_modules()})
            raise RecordError(
                f"expected a model that runs on the example input, got {type(error).__name__}{place}: {error}. {hint}"
                "Nothing was changed. Pass an input that the model takes, or check=False if only its shapes are right."
            ) from error

    def save(self, names: Iterable[str]) -> None:
        """Keep the values of the named parameters, which scales will change."""
        wanted = set(names)
        self.saved = {n: p.detach().clone() for n, p in self.model.named_parameters() if n in wanted}

    def change(self) -> float:
        """The largest change of the output since the check was made, relative to the largest entry."""
        return _change(self.before, self._run())

    def after(self, graph: ScaleGraph, apply: Callable[[], None]) -> tuple[float, tuple[str, ...]]:
        """The largest change of the output, and remarks on it; the model was already rescaled, by ``apply``.

        Raises:
            PathCondError: the model no longer runs; or its output changed where it should be kept, and by far more than
                rounding or a random forward pass explain. The weights are then what they were, bit for bit.
        """
        try:
            change = self.change()
        except BaseException as error:
            self.restore()
            if not isinstance(error, Exception):
                raise  # Ctrl-C
            raise RecordError(
                f"expected a model that runs after it was rescaled as it did before, got {type(error).__name__}: "
                f"{error}. The weights were restored. Pass check=False, or a submodule without the part that failed."
            ) from error
        if graph.approximate or change <= self._rounding():
            return change, self._remarks()
        noise = self.noise(_MARGIN * change)
        if noise >= _MARGIN * change:
            apply()
            return change, (
                f"the output of the unchanged model, its weights rounded differently, differs by {noise:.1g} as well: "
                "the forward pass is random, keeps state between calls or amplifies rounding, so the check decides "
                "nothing",
            )
        raise PathCondError(
            f"expected the same function, got an output that changed by {change:.2g} of its largest entry, far above "
            f"the {noise:.1g} by which rounding changes it. The weights were restored. The model does something that "
            "its trace does not show, such as reading weights through memory they share. Pass a submodule without "
            "that part, or check=False to rescale all the same; and please report it."
        )

    def _first(self) -> list[Tensor]:
        try:
            return self._run()
        except ValueError as error:
            if isinstance(error, PathCondError) or not any(module.training for module in self.model.modules()):
                raise
            self.mode = False
            return self._run()

    def _run(self) -> list[Tensor]:
        """Outputs on copies of the inputs, without touching the model's buffers or any random state."""
        return [t for example in examples_in(self.example_input) for t in self._run_on(example)]

    def _run_on(self, example: Any) -> list[Tensor]:
        args, kwargs = map_tensors(Tensor.clone, as_arguments(example))
        cuda = sorted({p.device.index for p in self.model.parameters() if p.device.type == "cuda"})
        tensors = {name: b.clone() for name, b in self.model.named_buffers()}
        with (
            torch.no_grad(),
            full_precision(),
            restored_random_state(cuda, 0),
            untouched(self.model),
            in_mode(self.model, self.mode),
            without_cache(self.model),
            caller_device(),
            CastsToFloat64() if self.wide else nullcontext(),
        ):
            torch.clear_autocast_cache()  # it may hold copies of other weights
            found = outputs_in(functional_call(self.model, tensors, args, kwargs))
        found = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in found]
        return [t.detach().to_dense().clone() for t in found if t.is_floating_point()]

    def restore(self) -> None:
        """Give the parameters the values they had."""
        with torch.inference_mode(False), torch.no_grad():
            for name, p in self.model.named_parameters():
                if name in self.saved and not torch.equal(p, self.saved[name]):
                    p.copy_(self.saved[name])
        torch.clear_autocast_cache()

    def noise(self, enough: float) -> float:
        """The largest change of the output, up to ``enough``, in some runs of the model before the rescaling.

        The first two are plain, the others with its weights rounded differently. Restores the weights.
        """
        noise = 0.0
        try:
            for run in range(6):
                self.restore()
                if run > 1:
                    self._perturb_rounding(run)
                noise = max(noise, self.change())
                if noise >= enough:
                    break
        finally:
            self.restore()
        return noise

    def _perturb_rounding(self, seed: int) -> None:
        drawn = torch.Generator().manual_seed(seed)
        with torch.inference_mode(False), torch.no_grad():
            for name, p in self.model.named_parameters():
                if name in self.saved:
                    p.mul_(1 + torch.finfo(p.dtype).eps * torch.randint(-2, 3, p.shape, generator=drawn).to(p))

    def _remarks(self) -> tuple[str, ...]:
        """A remark if the output is the same for every example, so that the check shows nothing."""
        outputs = [t.reshape(len(t), -1) if t.ndim and len(t) > 1 else t.reshape(-1, 1) for t in self.before]
        if any(bool((t != t[:1]).any()) or len(t) == 1 for t in outputs if t.numel()) or not outputs:
            return ()
        return (
            "the output is the same for every example, as with a head of zeros: the check of the output shows nothing",
        )

    def _rounding(self) -> float:
        """A change that rounding explains without more runs: 1e-5 in float32, 1e-14 in float64.

        Deep networks amplify rounding, over the model zoo up to 2e-4 in float32; for these it is measured.
        """
        formats = {t.dtype for t in (*self.model.parameters(), *self.before) if t.is_floating_point()}
        kind = next(self.model.parameters()).device.type
        formats |= {torch.get_autocast_dtype(kind)} if torch.is_autocast_enabled(kind) else set()
        return min(0.02, 64 * max(torch.finfo(dtype).eps for dtype in formats))


def _change(before: list[Tensor], after: list[Tensor]) -> float:
    """Largest change of an entry, relative to the largest of its tensor; infinite if one became infinite or NaN."""
    if [t.shape for t in before] != [t.shape for t in after]:
        return math.inf
    found = [0.0]
    for b, a in zip(before, after, strict=True):
        least = torch.finfo(b.dtype).tiny  # below, formats lose digits
        b, a = b.double(), a.double()
        apart = torch.where((b == a) | (b.isnan() & a.isnan()), 0.0, (b - a).abs())
        top = torch.where(b.isfinite(), b.abs(), 0.0)
        if b.numel():
            found.append(float(apart.nan_to_num(math.inf).amax() / top.amax().clamp(min=least)))
    return max(found)


_MARGIN = 0.1  # a change is rounding if rounding the weights otherwise makes this fraction of it
_LARGEST_COPY = 1 << 31  # bytes of a float64 copy of a model


@contextmanager
def trial(model: nn.Module, example_input: Any, names: Iterable[str]) -> Iterator[Check]:
    """A check whose ``model`` may be changed in the named parameters: a copy in float64 if one can be made.

    Where a copy would be too large, cannot be made or does not run, it is the model itself; its parameters are then
    restored bit for bit.
    """
    names = list(names)
    check = _check_of_copy(model, example_input) or Check(model, example_input)
    check.save(names)
    try:
        yield check
    finally:
        check.restore()


def _check_of_copy(model: nn.Module, example_input: Any) -> Check | None:
    entries = sum(t.numel() for t in (*model.parameters(), *model.buffers()))
    if 8 * entries > _LARGEST_COPY:
        return None
    widened = [
        map_tensors(lambda t: t.double() if t.is_floating_point() else t, as_arguments(example))
        for example in examples_in(example_input)
    ]
    inputs = Inputs(*(kwargs or args for args, kwargs in widened))
    try:
        with torch.inference_mode(False):
            return Check(deepcopy(model).double(), inputs, wide=True)
    except Exception:  # noqa: BLE001 - models that cannot be copied, or do not run in float64, are checked as they are
        return None
