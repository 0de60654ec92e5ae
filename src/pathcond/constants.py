"""Values of a trace that depend on no input: buffers, parameters and what is computed from them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from pathcond import ops
from pathcond.device import as_asked
from pathcond.trace import WRITE, Call, Trace, flatten, refs, run


class Constants:
    """Computes, when asked, the values of a trace that no input reaches, from the model's present tensors."""

    def __init__(self, trace: Trace, model: nn.Module) -> None:
        self._trace = trace
        self._tensors = dict(model.named_parameters()) | dict(model.named_buffers())
        self._maker: dict[int, tuple[Call, int]] = {
            out: (call, index) for call in trace.calls for index, out in enumerate(call.outs)
        }
        self._cache: dict[int, Tensor | None] = {}

    def maker(self, value: int) -> Call | None:
        """The call that made a value, None for a leaf."""
        made = self._maker.get(value)
        return made[0] if made else None

    def is_parameter(self, value: int) -> bool:
        """Whether a value is a parameter itself."""
        leaf = self._trace.values[value].leaf
        return leaf is not None and leaf.kind == "param"

    def holds_parameter(self, value: int) -> bool:
        """Whether a value is a parameter, or may be made from one."""
        leaf = self._trace.values[value].leaf
        return value in self._maker if leaf is None else leaf.kind == "param"

    def random(self, value: int) -> bool:
        """Whether random numbers went into a value, so that it differs from call to call."""
        pending, seen = [value], set()
        while pending:
            call = self.maker(pending.pop())
            if call is not None and id(call) not in seen:
                if ops.is_random(call.fn):
                    return True
                seen.add(id(call))
                pending += [r.id for r in refs([*call.args, call.kwargs])]
        return False

    def know(self, value: int, tensor: Tensor) -> None:
        """Take a value, such as an input of indices, as given."""
        self._cache[value] = tensor

    def get(self, value: int) -> Tensor | None:
        """The tensor, or None if an input reaches the value."""
        pending = [value]
        while pending:
            current = pending[-1]
            if current in self._cache:
                pending.pop()
                continue
            missing = [r for r in self._reads(current) if r not in self._cache]
            if missing and not any(self._cache.get(r, ...) is None for r in self._reads(current)):
                pending += missing
                continue
            self._compute(current)
        return self._cache[value]

    def _reads(self, value: int) -> list[int]:
        made = self._maker.get(value)
        return [r.id for r in refs([*made[0].args, made[0].kwargs])] if made else []

    def _compute(self, value: int) -> None:
        leaf = self._trace.values[value].leaf
        if leaf is not None:
            tensor = leaf.tensor if leaf.kind == "const" else self._tensors.get(leaf.name)
            if tensor is None or leaf.kind == "input" or isinstance(tensor, FakeTensor):
                self._cache[value] = None
            else:
                self._cache[value] = tensor.detach()
            return
        call, _ = self._maker[value]
        inputs = {r: self._cache.get(r) for r in self._reads(value)}
        if any(tensor is None for tensor in inputs.values()):
            self._cache |= dict.fromkeys(call.outs)
            return
        if call.mutates:
            inputs = {r: tensor.clone() for r, tensor in inputs.items() if tensor is not None}
        cuda = sorted({t.device.index for t in inputs.values() if t is not None and t.is_cuda})
        with torch.no_grad(), torch.random.fork_rng(devices=cuda), as_asked():
            results = flatten(run(call, inputs.__getitem__))
        if call.mutates and call.fn is not WRITE:
            changed = [inputs[r] for r in self._reads(value)]
            results = (results + [t for t in changed if t is not None])[: len(call.outs)]
        self._cache |= dict(zip(call.outs, results, strict=False))
