"""Fully connected networks of one shape, trained together: parameters are stacked along a first axis of runs.

A step is written out by hand: products of stacked matrices, with the update of a weight fused into the product that
makes its gradient, so that each weight is written once.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paper.train import layers, native
from paper.train.layers import fused

_ACTIVATIONS = {nn.ReLU: "relu", nn.GELU: "gelu", nn.SiLU: "silu"}
_NORM = ("weight", "bias", "running_mean", "running_var")
ENOUGH = 5  # runs from which on our own kernels are faster; of fewer, cuBLAS divides each product into more parts


@dataclass(frozen=True)
class Shape:
    """What networks must share to be stacked: widths, kinds of layers."""

    widths: tuple[int, ...]
    batchnorm: bool
    activation: str
    hidden_bias: bool
    output_bias: bool

    @classmethod
    def of(cls, module: nn.Module) -> "Shape":
        """Read the shape off a network of Linear, BatchNorm1d and activation layers."""
        parts = [m for m in module.modules() if not isinstance(m, (nn.Sequential, nn.Flatten))]
        linear = [m for m in parts if isinstance(m, nn.Linear)]
        kinds = {_ACTIVATIONS[type(m)] for m in parts if type(m) in _ACTIVATIONS}
        norms = [m for m in parts if isinstance(m, nn.BatchNorm1d)]
        hidden_bias = linear[0].bias is not None
        if len(kinds) != 1 or len(norms) not in (0, len(linear) - 1) or (norms and hidden_bias):
            raise TypeError("expected Linear layers with one kind of activation, and BatchNorm1d in place of biases")
        widths = (linear[0].in_features, *(m.out_features for m in linear))
        return cls(widths, bool(norms), kinds.pop(), hidden_bias, linear[-1].bias is not None)


class Stack:
    """R networks of one shape on a device."""

    def __init__(self, modules: Sequence[nn.Module], device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self.shape = Shape.of(modules[0])
        self.device, self.dtype, self.runs = device, dtype, len(modules)
        self.side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.ways = _ways(device, self.runs)
        self.own = _own(device, self.runs)
        self.waiting = False  # whether work is under way on the second stream
        self.marks: dict[int, Any] = {}  # of ENorm under way there: when each layer is done
        self.product: Tensor | None = None  # the first one, of the next step, in shares
        # On a GPU, ENorm's factors of the first layer's rows are kept apart for an epoch; see `layers.balance`.
        self.row: Tensor | None = None
        linear = [[m for m in module.modules() if isinstance(m, nn.Linear)] for module in modules]
        norms = [[m for m in module.modules() if isinstance(m, nn.BatchNorm1d)] for module in modules]

        def stacked(tensors: Sequence[Tensor]) -> Tensor:
            return torch.stack([t.detach().to(device, dtype) for t in tensors])

        depth = range(len(self.shape.widths) - 1)
        self.weights = [stacked([run[k].weight for run in linear]) for k in depth]
        self.biases: list[Tensor | None] = [
            None if linear[0][k].bias is None else stacked([run[k].bias for run in linear])[:, None] for k in depth
        ]
        hidden = range(len(norms[0]))
        # Of each hidden layer: scale, shift, running mean, running variance.
        self.norms = [[stacked([getattr(run[k], name) for run in norms])[:, None] for name in _NORM] for k in hidden]

    def tensors(self) -> list[Tensor]:
        """Everything that training changes, first axis runs."""
        self.fold()
        return self.held()[: -1 if self.row is not None else None]

    def held(self) -> list[Tensor]:
        """The same as it stands, with what is kept apart."""
        self.settle()
        norms = [t for layer in self.norms for t in layer]
        apart = [] if self.row is None else [self.row]
        return [*self.weights, *(b for b in self.biases if b is not None), *norms, *apart]

    def fold(self) -> None:
        """Multiply what is kept apart into the weights."""
        self.settle()
        if self.row is not None:
            self.weights[0].mul_(self.row.mT)
            self.row.fill_(1.0)

    def save(self, run: int) -> list[Tensor]:
        """One run's tensors, on the CPU."""
        return [t[run].cpu().clone() for t in self.tensors()]

    def load(self, run: int, tensors: Sequence[Tensor]) -> None:
        """Put one run's tensors back."""
        for mine, given in zip(self.tensors(), tensors, strict=True):
            mine[run].copy_(given)

    def write_to(self, run: int, module: nn.Module) -> None:
        """Copy one run into a module of the shape."""
        self.fold()
        linear = [m for m in module.modules() if isinstance(m, nn.Linear)]
        norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm1d)]
        with torch.no_grad():
            for layer, weight, bias in zip(linear, self.weights, self.biases, strict=True):
                layer.weight.copy_(weight[run])
                if bias is not None:
                    layer.bias.copy_(bias[run, 0])
            for norm, held in zip(norms, self.norms, strict=True):
                for name, tensor in zip(_NORM, held, strict=True):
                    getattr(norm, name).copy_(tensor[run, 0])

    def read_from(self, run: int, module: nn.Module) -> None:
        """Copy a module of the shape into one run."""
        for mine, given in zip(self.tensors(), Stack([module], self.device, self.dtype).tensors(), strict=True):
            mine[run].copy_(given[0])

    def step(
        self, x: Tensor, target: Tensor, rate: Tensor, task: str, balanced: slice | None = None,
        turned: Tensor | None = None, then: Tensor | None = None,
    ) -> None:  # fmt: skip
        """One step of gradient descent on a batch, in place.

        Args:
            x: inputs, (R, B, n_0).
            target: labels (R, B) to classify, or the inputs themselves to rebuild.
            rate: learning rates, (R, 1, 1).
            task: ``classify`` or ``rebuild``.
            balanced: runs on which one cycle of ENorm follows.
            turned: where `looks_ahead`, the inputs as `hopper.fetch` turns them.
            then: with these, the inputs of the step that follows, if any.
        """
        inputs, saved, grads, last = [x], [], [], len(self.weights) - 1
        for k in range(last):
            a, kept = self._forward(k, inputs[k])
            inputs.append(a)
            saved.append(kept)
        grad = self._at_outputs(inputs[last], target, rate, task)
        for k in range(last, 0, -1):
            grads.append(grad)  # kept until both streams are done with it
            grad = self._backward(k, grad, inputs[k], saved[k - 1])
        squares = None
        if turned is None:
            _subtract(self.weights[0], grad, x)
            self.settle()
        else:
            self.settle()  # for the inputs
            self.product, squares = self.own.first(grad, turned, then, self.weights[0])
        if balanced is not None:
            self._balance(balanced, squares)

    def _forward(self, k: int, x: Tensor) -> tuple[Tensor, Any]:
        """Through a hidden layer."""
        weight, bias, row, kind = self.weights[k], self.biases[k], self.row if k == 0 else None, self.shape.activation
        norm = self.norms[k] if self.norms else None
        if self._fits(k, x.shape[1]):
            self.settle(k)
            # Of a ReLU, our own way back needs its values alone.
            keep = norm is not None or kind != "relu" or not self._fits(k + 1, x.shape[1])
            how = norm, bias, kind, row, keep
            if k > 0 or self.product is None:
                return self.own.forward(x, weight, *how)
            z, self.product = self.product, None
            return self.own.finish(z, *how)
        if k > 0:
            self.settle(k)
        z = torch.bmm(x, weight.mT)
        self.settle(k)  # of the first layer only the factors wait for it
        if norm is not None:
            return self.ways.norm_forward(z, norm, kind, row)
        return self.ways.plain_forward(z, bias, kind, row), z

    def _at_outputs(self, x: Tensor, target: Tensor, rate: Tensor, task: str) -> Tensor:
        """The gradient at the outputs, from the inputs of the last layer."""
        weight, bias = self.weights[-1], self.biases[-1]
        if task == "rebuild" and self._fits(len(self.weights) - 1, x.shape[1]):
            return self.own.rebuild_gradient(x, weight, bias, target, rate)
        gradient = layers.classify_gradient if task == "classify" else layers.rebuild_gradient
        return fused(gradient, self.device)(torch.bmm(x, weight.mT), bias, target, rate)

    def _backward(self, k: int, grad: Tensor, a: Tensor, kept: Any) -> Tensor:
        """Down through a weight, which takes its step, and back through the hidden layer below."""
        bias, row, kind = self.biases[k - 1], self.row if k == 1 else None, self.shape.activation
        norm = self.norms[k - 1] if self.norms else None
        if self._fits(k, grad.shape[1]):
            return self.own.backward(grad, self.weights[k], a, kept, norm, bias, kind, row)
        below = torch.bmm(grad, self.weights[k])
        with self.beside():  # the way down need not wait for the weights
            _subtract(self.weights[k], grad, a)
        if norm is not None:
            return self.ways.norm_backward(below, kept, norm, kind, row)
        return self.ways.plain_backward(below, kept, bias, kind, row)

    def _balance(self, runs: slice, squares: Tensor | None) -> None:
        """A cycle of ENorm; where it leaves the first layer alone, the first product need not wait for it."""
        row = None if self.row is None else self.row[runs]
        part = [w[runs] for w in self.weights], [None if b is None else b[runs] for b in self.biases], row
        if row is None or self.side is None:
            self.ways.balance(*part)
            return
        with self.beside():
            self.ways.balance(*part, None if squares is None else squares[:, runs], self._mark)

    def _mark(self, layer: int) -> None:
        if self.side is not None:
            self.marks[layer] = self.side.record_event()

    def _fits(self, layer: int, examples: int) -> bool:
        return self.own is not None and self.own.fits(self.weights[layer], examples)

    def looks_ahead(self, examples: int) -> bool:
        """Whether a step can begin the next one, whose inputs it must know."""
        return self._fits(0, examples)

    def keep_apart(self) -> None:
        """From now on keep ENorm's factors of the first layer's rows apart; on a GPU only."""
        if self.side is not None:
            runs, n = self.weights[0].shape[:2]
            self.row = torch.ones(runs, 1, n, device=self.device)

    def beside(self) -> AbstractContextManager[Any]:
        """What follows runs on a second stream, after what was asked for so far."""
        if self.side is None:
            return nullcontext()
        self.side.wait_stream(torch.cuda.current_stream())
        self.waiting = True
        return torch.cuda.stream(self.side)

    def settle(self, layer: int | None = None) -> None:
        """Wait for what runs on the second stream, or only for ENorm of one layer."""
        if layer is not None:
            if layer in self.marks:
                torch.cuda.current_stream().wait_event(self.marks[layer])
            return
        if self.waiting and self.side is not None:
            torch.cuda.current_stream().wait_stream(self.side)
        self.waiting = False
        self.marks.clear()

    def outputs(self, x: Tensor) -> Tensor:
        """Outputs in eval mode for inputs that all runs share: (B, n_0) gives (R, B, n_L)."""
        self.fold()
        first, bias = self.weights[0], self.biases
        # One wide product: the runs' first layers side by side.
        z = (x @ first.reshape(-1, first.shape[2]).mT).reshape(len(x), *first.shape[:2]).transpose(0, 1)
        for k in range(len(self.weights) - 1):
            if self.norms:
                a = fused(layers.norm_eval, self.device)(z, self.norms[k], self.shape.activation)
            else:
                a = fused(layers.plain_forward, self.device)(z, bias[k], self.shape.activation)
            z = torch.bmm(a, self.weights[k + 1].mT)
        return z if bias[-1] is None else z + bias[-1]


def _subtract(weight: Tensor, grad: Tensor, x: Tensor) -> None:
    """Take grad^T x off a weight, in place; a matrix alone is faster as such on a CPU."""
    if len(weight) == 1:
        weight[0].addmm_(grad[0].T, x[0], alpha=-1)
    else:
        weight.baddbmm_(grad.mT, x, alpha=-1)


def _ways(device: torch.device, runs: int) -> Any:
    """A module with the ways forward and back through a hidden layer, and ENorm."""
    if device.type != "cuda":
        return native if runs == 1 else layers
    from paper.train import stacked  # needs Triton

    return stacked


def _own(device: torch.device, runs: int) -> Any:
    """A module with whole layers as kernels of our own, where there are such and they are faster."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9 or runs < ENOUGH:
        return None
    try:
        from paper.train import hopper
    except ImportError:  # of a Triton without Gluon
        return None
    return hopper
