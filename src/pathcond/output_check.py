"""Compare the outputs of a model before and after a rescaling; if they differ beyond rounding, restore the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pathcond.checks import PathCondError, RecordError
from pathcond.graph import ScaleGraph
from pathcond.inputs import examples_in, hint_on
from pathcond.isolation import call_isolated, full_precision
from pathcond.tracing import outputs_in, place_of

_MARGIN = 0.1  # a change is rounding if rounding the weights otherwise makes this fraction of it


class Check:
    """Outputs of a model on the example input before a rescaling; and its weights, from :meth:`save` on.

    The outputs are those of the model's present mode, or of eval mode if only training mode fails: BatchNorm refuses to
    train on a single example, which is enough for everything else here.
    """

    def __init__(self, model: nn.Module, example_input: Any) -> None:
        self.model, self.example_input = model, example_input
        self.mode: bool | None = None
        self.saved: dict[str, Tensor] = {}
        try:
            try:
                self.before = self._run()
            except ValueError as error:
                if isinstance(error, PathCondError) or not any(module.training for module in model.modules()):
                    raise
                self.mode = False
                self.before = self._run()
        except PathCondError:
            raise
        except Exception as error:
            hint = hint_on(error, model, example_input)
            place = place_of(error, model)
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
                rounding or a random forward pass explain. The caller then restores the weights.
        """
        try:
            change = self.change()
        except Exception as error:
            raise RecordError(
                f"expected a model that runs after it was rescaled as it did before, got {type(error).__name__}: "
                f"{error}. The weights were restored. Pass check=False, or a submodule without the part that failed."
            ) from error
        if graph.approximate or change <= self._rounding(graph):
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

    def _run(self) -> list[Tensor]:
        """Outputs on copies of the inputs, without touching the model's buffers or any random state."""
        torch.clear_autocast_cache()  # it may hold copies of other weights
        with full_precision():
            results = [call_isolated(self.model, each, self.mode) for each in examples_in(self.example_input)]
        found = [t for result in results for t in outputs_in(result)]
        found = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in found]
        return [t.detach().to_dense().clone() for t in found if t.is_floating_point()]

    def restore(self, seed: int | None = None) -> None:
        """Give the parameters the values they had; with a seed, rounded differently."""
        parameters = dict(self.model.named_parameters())
        drawn = torch.Generator().manual_seed(seed or 0)
        with torch.inference_mode(False), torch.no_grad():
            for name, value in self.saved.items():
                if seed is not None:
                    steps = torch.randint(-2, 3, value.shape, generator=drawn).to(value)
                    value = value * (1 + torch.finfo(value.dtype).eps * steps)
                if not torch.equal(parameters[name], value):
                    parameters[name].copy_(value)
        torch.clear_autocast_cache()

    def noise(self, enough: float) -> float:
        """The largest change of the output, up to ``enough``, in some runs with the weights rounded differently.

        The weights are those before the rescaling, which are restored.
        """
        noise = 0.0
        for seed in (2, 3, 4, 5):
            if noise < enough:
                self.restore(seed)
                noise = max(noise, self.change())
        self.restore()
        return noise

    def _remarks(self) -> tuple[str, ...]:
        """A remark if the output is the same for every example, so that the check shows nothing."""
        outputs = [t.reshape(len(t), -1) if t.ndim and len(t) > 1 else t.reshape(-1, 1) for t in self.before]
        same = outputs and not any(bool((t != t[:1]).any()) or len(t) == 1 for t in outputs if t.numel())
        what = "the output is the same for every example, as with a head of zeros"
        return (f"{what}: the check of the output shows nothing",) if same else ()

    def _rounding(self, graph: ScaleGraph) -> float:
        """A change that rounding explains without more runs: 1e-5 in float32, 1e-14 in float64.

        Deep networks amplify rounding, over the model zoo up to 2e-4 in float32; for these it is measured.
        """
        formats = {t.dtype for t in (*self.model.parameters(), *self.before) if t.is_floating_point()}
        formats |= {v.dtype for v in graph.trace.values if v.dtype.is_floating_point} if graph.trace else set()
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


@contextmanager
def trial(model: nn.Module, example_input: Any, names: Iterable[str]) -> Iterator[Check]:
    """A check of a model that is changed in the named parameters meanwhile; they are restored bit for bit."""
    check = Check(model, example_input)
    check.save(names)
    try:
        yield check
    finally:
        check.restore()
