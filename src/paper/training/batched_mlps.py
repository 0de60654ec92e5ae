"""Train many MLPs of one shape together: parameters are stacked along a first axis of runs.

For plain SGD, forward and backward pass are written out as batched GEMMs. The update of a weight is fused into the GEMM
of its gradient, so each weight is written once per step. Other optimizers take gradients by autograd.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from paper import models
from paper.starts import initialize, rescale
from paper.training import torch_layers
from paper.training.datasets import Splits
from paper.training.modules import RESCALE_BATCH, tf32
from paper.training.optimisers import StackedOptimiser, optimisers, rates
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

    def parameters(self) -> dict[str, Tensor]:
        """Parameters by their name in a module of :func:`paper.models.mlp` or `autoencoder`; the first axis is the run.

        Weights, then biases, then scales and shifts of BatchNorm.
        """
        per_layer = 3 if self.norms else 2  # modules of a hidden layer; the first module flattens
        place = [1 + per_layer * k for k in range(len(self.weights))]
        found = {f"{at}.weight": w for at, w in zip(place, self.weights, strict=True)}
        found |= {f"{at}.bias": b for at, b in zip(place, self.biases, strict=True) if b is not None}
        for at, (gamma, beta, _, _) in zip(place, self.norms, strict=False):
            found |= {f"{at + 1}.weight": gamma, f"{at + 1}.bias": beta}
        return found

    def gradients(self, x: Tensor, target: Tensor, task: str) -> list[Tensor]:
        """Gradients of the mean loss of each run at its `parameters`; updates running statistics."""
        leaves = {name: p.detach().requires_grad_() for name, p in self.parameters().items()}
        weights = list(leaves.values())[: len(self.weights)]
        others = iter(list(leaves.values())[len(self.weights) :])
        biases = [None if bias is None else next(others) for bias in self.biases]
        norms = [[next(others), next(others), *layer[2:]] for layer in self.norms]
        with torch.enable_grad():
            a, last = x, len(weights) - 1
            for k, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                z: Tensor = _Product.apply(a, weight)  # type: ignore[assignment]
                z = z if bias is None else z + bias
                if k == last:
                    a = z
                elif norms:
                    a = torch_layers.activate(_normalised(z, norms[k]), self.shape.activation)
                else:
                    a = torch_layers.activate(z, self.shape.activation)
            if task == "classify":
                losses = functional.cross_entropy(a.flatten(0, 1), target.flatten(), reduction="none") / x.shape[1]
            else:
                losses = (a - target).square() / (x.shape[1] * x.shape[2])
            return list(torch.autograd.grad(losses.sum(), list(leaves.values())))

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
    """Trains runs that share architecture, data, batch size, task, optimizer and schedule.

    Runs with ENorm are contiguous, and have plain SGD.
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
        fused = all(is_plain(run.spec) for run in runs)
        self.optimiser = None if fused else self._optimiser([s.lr_factors for s in initial])
        self.precision = "float32 with TF32 products" if gpu else "float32"
        if gpu:
            torch.backends.cuda.matmul.allow_tf32 = True

    def _optimiser(self, factors: Sequence[Mapping[str, float]]) -> StackedOptimiser:
        specs = [run.spec for run in self.runs]
        table = torch.stack([rates(spec, self.steps * spec["epochs"]) for spec in specs], 1)
        found = self.stack.parameters()
        return StackedOptimiser(
            specs[0]["optimiser"],
            list(found.values()),
            [number >= len(self.stack.weights) for number in range(len(found))],
            table,
            [torch.tensor([of_run.get(name, 1.0) for of_run in factors], dtype=torch.float64) for name in found],
        )

    def save(self, run: int) -> list[Tensor]:
        """State of one run, on the CPU."""
        moments = [] if self.optimiser is None else self.optimiser.state()
        return [*self.stack.save(run), *(t[run].cpu().clone() for t in moments)]

    def load(self, run: int, state: Sequence[Tensor]) -> None:
        """Restore the state of one run."""
        moments = [] if self.optimiser is None else self.optimiser.state()
        self.stack.load(run, state[: len(state) - len(moments)])
        for mine, given in zip(moments, state[len(state) - len(moments) :], strict=True):
            mine[run].copy_(given)

    def epoch(self, epoch: int) -> None:
        """Train one epoch."""
        if self.optimiser is not None:
            self.optimiser.at.fill_((epoch - 1) * self.steps)
        super().epoch(epoch)

    def teleport(self, epoch: int) -> None:
        """Rescale the runs whose method teleports after this epoch."""
        for number, run in enumerate(self.runs):
            every = run.spec["rescaling"].get("teleport", 0)
            if every and epoch % every == 0:
                module, optimiser = self.modules[number], None
                self.stack.write_to(number, module)
                parameters = [module.get_parameter(name) for name in self.stack.parameters()]
                if self.optimiser is not None:
                    (optimiser,) = optimisers(module, run.spec["optimiser"], run.spec["lr"])
                    self.optimiser.write_to(number, optimiser, parameters)
                rescale(module, torch.ones(1, self.stack.shape.widths[0]), run.spec["rescaling"], optimiser)
                self.stack.read_from(number, module)
                if self.optimiser is not None and optimiser is not None:
                    self.optimiser.read_from(number, optimiser, parameters)

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
        if self.optimiser is None:
            self.stack.step(x, target, self.rate, self.task, self.enorm_runs)
        else:
            self.optimiser.step(self.stack.gradients(x, target, self.task))

    def _outputs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = compiled(torch_layers.normalise, self.device)(images, self.splits.scale, self.splits.shift)
        return self.stack.outputs(x), x

    def _state_tensors(self) -> list[Tensor]:
        more = [] if self.optimiser is None else [*self.optimiser.state(), self.optimiser.at]
        return [*self.stack.tensors(), *more]


class _Product(torch.autograd.Function):
    """a @ w^T of each run, with a gradient of w in the layout of w, so that updates read both in order."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(a, w)
        return torch.bmm(a, w.mT)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        a, w = ctx.saved_tensors
        return torch.bmm(grad, w) if ctx.needs_input_grad[0] else None, torch.bmm(grad.mT, a)


def is_plain(spec: Mapping[str, Any]) -> bool:
    """Whether a run has SGD without state, schedule or learning rates by layer."""
    by_layer = spec["rescaling"].get("part") == "rates"
    return spec["optimiser"] == {"name": "sgd"} and "schedule" not in spec and not by_layer


def _span(chosen: Sequence[bool]) -> slice | None:
    """The chosen runs as a slice; they must be contiguous."""
    positions = [i for i, yes in enumerate(chosen) if yes]
    if not positions:
        return None
    if positions[-1] - positions[0] != len(positions) - 1:
        raise ValueError("expected contiguous runs with ENorm")
    return slice(positions[0], positions[-1] + 1)


def _normalised(z: Tensor, norm: list[Tensor]) -> Tensor:
    """BatchNorm in training mode, for autograd; updates the running statistics in place."""
    gamma, beta, running_mean, running_var = norm
    var, mean = torch.var_mean(z, dim=1, keepdim=True, correction=0)
    with torch.no_grad():
        running_mean.lerp_(mean, torch_layers.MOMENTUM)
        running_var.lerp_(var * (z.shape[1] / (z.shape[1] - 1)), torch_layers.MOMENTUM)
    return (z - mean) * (torch.rsqrt(var + torch_layers.EPS) * gamma) + beta


def _subtract(weight: Tensor, grad: Tensor, x: Tensor) -> None:
    """Subtract grad^T x from a weight, in place; for one run a plain GEMM is faster on a CPU."""
    if len(weight) == 1:
        weight[0].addmm_(grad[0].T, x[0], alpha=-1)
    else:
        weight.baddbmm_(grad.mT, x, alpha=-1)
