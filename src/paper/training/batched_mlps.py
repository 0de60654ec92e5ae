"""Train many MLPs of one shape together: parameters are stacked along a first axis of runs.

They have plain SGD; other optimizers are for networks that train alone. Forward and backward pass are written out as
batched GEMMs. The update of a weight is fused into the GEMM of its gradient, so each weight is written once per step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paper import models
from paper.starts import initialize, rescale
from paper.training import torch_layers
from paper.training.datasets import Splits
from paper.training.modules import RESCALE_BATCH, tf32
from paper.training.torch_layers import compiled
from paper.training.trainer import Run, Trainer

_ACTIVATIONS = {nn.ReLU: "relu", nn.GELU: "gelu", nn.SiLU: "silu"}
_NORM = ("weight", "bias", "running_mean", "running_var")


@dataclass(frozen=True)
class Shape:
    """The shape that networks of a batch share: widths and kinds of layers."""

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


class BatchedMLPs:
    """R networks of one shape on a device."""

    def __init__(self, modules: Sequence[nn.Module], device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self.shape = Shape.of(modules[0])
        self.device, self.dtype, self.runs = device, dtype, len(modules)
        self.layers: Any = (
            torch_layers.OneOnCPU if device.type == "cpu" and self.runs == 1 else torch_layers.Compiled(device)
        )
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
        # For each hidden layer: scale, shift, running mean, running variance.
        self.norms = [[stacked([getattr(run[k], name) for run in norms])[:, None] for name in _NORM] for k in hidden]

    def tensors(self) -> list[Tensor]:
        """All tensors that training changes; the first axis is the run."""
        norms = [t for layer in self.norms for t in layer]
        return [*self.weights, *(b for b in self.biases if b is not None), *norms]

    def save(self, run: int) -> list[Tensor]:
        """One run's tensors, on the CPU."""
        return [t[run].cpu().clone() for t in self.tensors()]

    def load(self, run: int, tensors: Sequence[Tensor]) -> None:
        """Restore one run's tensors."""
        for mine, given in zip(self.tensors(), tensors, strict=True):
            mine[run].copy_(given)

    def write_to(self, run: int, module: nn.Module) -> None:
        """Copy one run into a module of the shape."""
        linear = [m for m in module.modules() if isinstance(m, nn.Linear)]
        norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm1d)]
        with torch.no_grad():
            for layer, weight, bias in zip(linear, self.weights, self.biases, strict=True):
                layer.weight.copy_(weight[run])
                if bias is not None:
                    layer.bias.copy_(bias[run, 0])
            for norm, tensors in zip(norms, self.norms, strict=True):
                for name, tensor in zip(_NORM, tensors, strict=True):
                    getattr(norm, name).copy_(tensor[run, 0])

    def read_from(self, run: int, module: nn.Module) -> None:
        """Copy a module of the shape into one run."""
        for mine, given in zip(self.tensors(), BatchedMLPs([module], self.device, self.dtype).tensors(), strict=True):
            mine[run].copy_(given[0])

    def step(self, x: Tensor, target: Tensor, rate: Tensor, task: str, enorm_runs: slice | None = None) -> None:
        """One step of gradient descent on a batch, in place.

        Args:
            x: inputs, (R, B, n_0).
            target: labels (R, B) of a classifier, or the inputs of an autoencoder.
            rate: learning rates, (R, 1, 1).
            task: ``classify``, or another name for reconstruction.
            enorm_runs: runs that make one cycle of ENorm after the step.
        """
        inputs, saved, kind, last = [x], [], self.shape.activation, len(self.weights) - 1
        for k in range(last):
            z = torch.bmm(inputs[k], self.weights[k].mT)
            if self.norms:
                a, kept = self.layers.norm_forward(z, self.norms[k], kind)
            else:
                a, kept = self.layers.plain_forward(z, self.biases[k], kind), z
            inputs.append(a)
            saved.append(kept)
        gradient = torch_layers.cross_entropy_gradient if task == "classify" else torch_layers.mse_gradient
        z = torch.bmm(inputs[last], self.weights[last].mT)
        grad = compiled(gradient, self.device)(z, self.biases[last], target, rate)
        for k in range(last, 0, -1):
            below = torch.bmm(grad, self.weights[k])
            _subtract(self.weights[k], grad, inputs[k])
            if self.norms:
                grad = self.layers.norm_backward(below, saved[k - 1], self.norms[k - 1], kind)
            else:
                grad = self.layers.plain_backward(below, saved[k - 1], self.biases[k - 1], kind)
        _subtract(self.weights[0], grad, x)
        if enorm_runs is not None:
            biases = [None if bias is None else bias[enorm_runs] for bias in self.biases]
            self.layers.enorm_cycle([weight[enorm_runs] for weight in self.weights], biases)

    def outputs(self, x: Tensor) -> Tensor:
        """Outputs in eval mode for inputs that all runs share: (B, n_0) gives (R, B, n_L)."""
        first, bias = self.weights[0], self.biases
        # The first layers of all runs are one GEMM.
        z = (x @ first.reshape(-1, first.shape[2]).mT).reshape(len(x), *first.shape[:2]).transpose(0, 1)
        for k in range(len(self.weights) - 1):
            if self.norms:
                a = compiled(torch_layers.norm_eval, self.device)(z, self.norms[k], self.shape.activation)
            else:
                a = compiled(torch_layers.plain_forward, self.device)(z, bias[k], self.shape.activation)
            z = torch.bmm(a, self.weights[k + 1].mT)
        return z if bias[-1] is None else z + bias[-1]


class BatchedTrainer(Trainer):
    """Trains runs that share architecture, data, batch size and task.

    They have plain SGD; runs with ENorm are contiguous.
    """

    eval_batch = 10_000

    def __init__(self, runs: Sequence[Run], splits: Splits, device: torch.device) -> None:
        gpu = device.type == "cuda"
        super().__init__(runs, splits, device, use_graphs=gpu)
        with tf32(False):
            images = splits.train.images[:RESCALE_BATCH].to(torch.float32) * splits.scale + splits.shift
            initial = [initialize(run.spec, run.seed, run.results, images) for run in runs]
        self.max_log_scale = [s.max_log_scale for s in initial]
        self.rescale_seconds = [s.seconds for s in initial]
        self.modules = [s.module for s in initial]
        self.parameters = models.parameters(self.modules[0])
        self.stack = BatchedMLPs(self.modules, device)
        self.rate = torch.tensor([run.spec["lr"] for run in runs], device=device).view(-1, 1, 1)
        self.enorm_runs = _span([bool(run.spec["rescaling"].get("enorm")) for run in runs])
        self.precision = "float32 with TF32 products" if gpu else "float32"
        if gpu:
            torch.backends.cuda.matmul.allow_tf32 = True

    def save(self, run: int) -> list[Tensor]:
        """State of one run, on the CPU."""
        return self.stack.save(run)

    def load(self, run: int, state: Sequence[Tensor]) -> None:
        """Restore the state of one run."""
        self.stack.load(run, state)

    def teleport(self, epoch: int) -> None:
        """Rescale the runs whose method teleports after this epoch."""
        for number, run in enumerate(self.runs):
            every = run.spec["rescaling"].get("teleport", 0)
            if every and epoch % every == 0:
                module = self.modules[number]
                self.stack.write_to(number, module)
                rescale(module, torch.ones(1, self.stack.shape.widths[0]), run.spec["rescaling"])
                self.stack.read_from(number, module)

    def _next(self, positions: Tensor) -> None:
        splits, labels = self.splits, self.splits.train.labels if self.task == "classify" else None
        x, labels = compiled(torch_layers.gather_next, self.device)(
            splits.train.images, labels, self.order, positions, splits.scale, splits.shift
        )
        self._update(x, x if labels is None else labels)

    def _step(self, index: Tensor) -> None:
        train = self.splits.train
        x = torch_layers.gather(train.images, index, self.splits.scale, self.splits.shift)
        self._update(x, train.labels[index] if self.task == "classify" else x)

    def _update(self, x: Tensor, target: Tensor) -> None:
        self.stack.step(x, target, self.rate, self.task, self.enorm_runs)

    def _outputs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = compiled(torch_layers.normalise, self.device)(images, self.splits.scale, self.splits.shift)
        return self.stack.outputs(x), x

    def _state_tensors(self) -> list[Tensor]:
        return self.stack.tensors()


def _span(chosen: Sequence[bool]) -> slice | None:
    """The chosen runs as a slice; they must be contiguous."""
    positions = [i for i, yes in enumerate(chosen) if yes]
    if not positions:
        return None
    if positions[-1] - positions[0] != len(positions) - 1:
        raise ValueError("expected contiguous runs with ENorm")
    return slice(positions[0], positions[-1] + 1)


def _subtract(weight: Tensor, grad: Tensor, x: Tensor) -> None:
    """Subtract grad^T x from a weight, in place; for one run a plain GEMM is faster on a CPU."""
    if len(weight) == 1:
        weight[0].addmm_(grad[0].T, x[0], alpha=-1)
    else:
        weight.baddbmm_(grad.mT, x, alpha=-1)
