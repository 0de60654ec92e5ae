"""Train many MLPs of one shape together: parameters are stacked along a first axis of runs.

For plain SGD, forward and backward pass are written out as batched GEMMs. The update of a weight is fused into the GEMM
of its gradient, so each weight is written once per step. Other optimisers take gradients by autograd.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from paper import models
from paper.starts import initialize, rescale
from paper.training.datasets import Splits
from paper.training.kernels import torch_layers
from paper.training.kernels.torch_layers import compiled
from paper.training.modules import RESCALE_BATCH, tf32
from paper.training.optimisers import StackedOptimiser, optimisers, rates
from paper.training.trainer import Run, Trainer

_ACTIVATIONS = {nn.ReLU: "relu", nn.GELU: "gelu", nn.SiLU: "silu"}
_NORM = ("weight", "bias", "running_mean", "running_var")
MIN_HOPPER_RUNS = 5  # with fewer runs cuBLAS is faster, since it splits each GEMM into more blocks


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
        self.side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.layer_kernels = _layer_kernels(device, self.runs)
        self.hopper = _hopper_kernels(device, self.runs)
        self.pending = False  # whether work is pending on the side stream
        self.enorm_events: dict[int, Any] = {}  # by layer: the end of ENorm's work on it, on the side stream
        self.prefetched: Tensor | None = None  # split-K partials of the next step's first GEMM
        # On a GPU, ENorm's factors of the first layer's rows are not applied before the end of an epoch.
        self.row_scale: Tensor | None = None
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
        self.apply_row_scale()
        return self.state()[: -1 if self.row_scale is not None else None]

    def state(self) -> list[Tensor]:
        """As `tensors`, but the deferred row scale is not applied: it is the last tensor, if there is one."""
        self.synchronize()
        norms = [t for layer in self.norms for t in layer]
        deferred = [] if self.row_scale is None else [self.row_scale]
        return [*self.weights, *(b for b in self.biases if b is not None), *norms, *deferred]

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

    def apply_row_scale(self) -> None:
        """Multiply the deferred row scale into the first weights."""
        self.synchronize()
        if self.row_scale is not None:
            self.weights[0].mul_(self.row_scale.mT)
            self.row_scale.fill_(1.0)

    def save(self, run: int) -> list[Tensor]:
        """One run's tensors, on the CPU."""
        return [t[run].cpu().clone() for t in self.tensors()]

    def load(self, run: int, tensors: Sequence[Tensor]) -> None:
        """Restore one run's tensors."""
        for mine, given in zip(self.tensors(), tensors, strict=True):
            mine[run].copy_(given)

    def write_to(self, run: int, module: nn.Module) -> None:
        """Copy one run into a module of the shape."""
        self.apply_row_scale()
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

    def step(
        self, x: Tensor, target: Tensor, rate: Tensor, task: str, enorm_runs: slice | None = None,
        transposed: Tensor | None = None, next_x: Tensor | None = None,
    ) -> None:  # fmt: skip
        """One step of gradient descent on a batch, in place.

        Args:
            x: inputs, (R, B, n_0).
            target: labels (R, B) of a classifier, or the inputs of an autoencoder.
            rate: learning rates, (R, 1, 1).
            task: ``classify``, or another name for reconstruction.
            enorm_runs: runs that make one cycle of ENorm after the step.
            transposed: the transposed inputs of `hopper.gather`, if `can_prefetch`.
            next_x: with `transposed`, the inputs of the next step, if there is one.
        """
        inputs, saved, grads, last = [x], [], [], len(self.weights) - 1
        for k in range(last):
            a, kept = self._forward(k, inputs[k])
            inputs.append(a)
            saved.append(kept)
        grad = self._output_gradient(inputs[last], target, rate, task)
        for k in range(last, 0, -1):
            grads.append(grad)  # keeps the memory until both streams are done
            grad = self._backward(k, grad, inputs[k], saved[k - 1])
        squares = None
        if transposed is None:
            _subtract(self.weights[0], grad, x)
            self.synchronize()
        else:
            self.synchronize()  # the side stream gathers the next inputs
            self.prefetched, squares = self.hopper.first_layer_step(grad, transposed, next_x, self.weights[0])
        if enorm_runs is not None:
            self._enorm_cycle(enorm_runs, squares)

    def _forward(self, k: int, x: Tensor) -> tuple[Tensor, Any]:
        """Forward pass of a hidden layer: activations, and what the backward pass needs."""
        weight, bias, kind = self.weights[k], self.biases[k], self.shape.activation
        row_scale = self.row_scale if k == 0 else None
        norm = self.norms[k] if self.norms else None
        if self._fits(k, x.shape[1]):
            self.synchronize(k)
            # The Hopper backward pass of a ReLU needs its outputs alone.
            keep = norm is not None or kind != "relu" or not self._fits(k + 1, x.shape[1])
            settings = norm, bias, kind, row_scale, keep
            if k > 0 or self.prefetched is None:
                return self.hopper.forward(x, weight, *settings)
            z, self.prefetched = self.prefetched, None
            return self.hopper.forward_from_partials(z, *settings)
        if k > 0:
            self.synchronize(k)
        z = torch.bmm(x, weight.mT)
        self.synchronize(k)  # in the first layer only the row scale depends on ENorm
        if norm is not None:
            return self.layer_kernels.norm_forward(z, norm, kind, row_scale)
        return self.layer_kernels.plain_forward(z, bias, kind, row_scale), z

    def _output_gradient(self, x: Tensor, target: Tensor, rate: Tensor, task: str) -> Tensor:
        """The gradient at the outputs, from the inputs of the last layer."""
        weight, bias = self.weights[-1], self.biases[-1]
        if task != "classify" and self._fits(len(self.weights) - 1, x.shape[1]):
            return self.hopper.mse_gradient(x, weight, bias, target, rate)
        gradient = torch_layers.cross_entropy_gradient if task == "classify" else torch_layers.mse_gradient
        return compiled(gradient, self.device)(torch.bmm(x, weight.mT), bias, target, rate)

    def _backward(self, k: int, grad: Tensor, a: Tensor, kept: Any) -> Tensor:
        """Backward pass of a weight, which is updated, and of the hidden layer below it."""
        bias, kind = self.biases[k - 1], self.shape.activation
        row_scale = self.row_scale if k == 1 else None
        norm = self.norms[k - 1] if self.norms else None
        if self._fits(k, grad.shape[1]):
            return self.hopper.backward(grad, self.weights[k], a, kept, norm, bias, kind, row_scale)
        below = torch.bmm(grad, self.weights[k])
        with self.on_side_stream():  # the backward pass does not wait for the update
            _subtract(self.weights[k], grad, a)
        if norm is not None:
            return self.layer_kernels.norm_backward(below, kept, norm, kind, row_scale)
        return self.layer_kernels.plain_backward(below, kept, bias, kind, row_scale)

    def _enorm_cycle(self, runs: slice, squares: Tensor | None) -> None:
        """A cycle of ENorm; with a deferred row scale, the next step's first GEMM does not wait for it."""
        row_scale = None if self.row_scale is None else self.row_scale[runs]
        part = [w[runs] for w in self.weights], [None if b is None else b[runs] for b in self.biases], row_scale
        if row_scale is None or self.side is None:
            self.layer_kernels.enorm_cycle(*part)
            return
        with self.on_side_stream():
            self.layer_kernels.enorm_cycle(*part, None if squares is None else squares[:, runs], self._record_enorm)

    def _record_enorm(self, layer: int) -> None:
        if self.side is not None:
            self.enorm_events[layer] = self.side.record_event()

    def _fits(self, layer: int, examples: int) -> bool:
        return self.hopper is not None and self.hopper.fits(self.weights[layer], examples)

    def can_prefetch(self, examples: int) -> bool:
        """Whether a step can prefetch the first GEMM of the next one."""
        return self._fits(0, examples)

    def defer_row_scale(self) -> None:
        """On a GPU, from now on defer ENorm's factors of the first layer's rows."""
        if self.side is not None:
            runs, n = self.weights[0].shape[:2]
            self.row_scale = torch.ones(runs, 1, n, device=self.device)

    def on_side_stream(self) -> AbstractContextManager[Any]:
        """Run the block on the side stream, after all work queued so far."""
        if self.side is None:
            return nullcontext()
        self.side.wait_stream(torch.cuda.current_stream())
        self.pending = True
        return torch.cuda.stream(self.side)

    def synchronize(self, layer: int | None = None) -> None:
        """Wait for the side stream, or only for ENorm's work on one layer."""
        if layer is not None:
            if layer in self.enorm_events:
                torch.cuda.current_stream().wait_event(self.enorm_events[layer])
            return
        if self.pending and self.side is not None:
            torch.cuda.current_stream().wait_stream(self.side)
        self.pending = False
        self.enorm_events.clear()

    def outputs(self, x: Tensor) -> Tensor:
        """Outputs in eval mode for inputs that all runs share: (B, n_0) gives (R, B, n_L)."""
        self.apply_row_scale()
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
    """Trains runs that share architecture, data, batch size, task, optimiser and schedule.

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
        if self.enorm_runs is not None:
            self.stack.defer_row_scale()
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

    def _run_steps(self, steps: Sequence[Tensor]) -> None:
        prefetch = self.optimiser is None and self.stack.can_prefetch(len(steps[0]))
        (self._prefetched_steps if prefetch else super()._run_steps)(steps)
        self.stack.synchronize()

    def _prefetched_steps(self, steps: Sequence[Tensor]) -> None:
        """Steps that each prefetch the first GEMM of the next."""
        batch = self._gather(steps[0])
        for positions in (*steps[1:], None):
            upcoming = None
            if positions is not None:
                with self.stack.on_side_stream():
                    upcoming = self._gather(positions)
            x, transposed, target = batch
            self.stack.step(x, target, self.rate, self.task, self.enorm_runs, transposed, upcoming and upcoming[0])
            batch = upcoming or batch

    def _gather(self, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, transposed inputs, and targets."""
        train, index = self.splits.train, self.order.index_select(1, positions)
        x, transposed = self.stack.hopper.gather(train.images, index, self.splits.scale, self.splits.shift)
        return x, transposed, train.labels[index] if self.task == "classify" else x

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
        return [*self.stack.state(), *more]


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


def _layer_kernels(device: torch.device, runs: int) -> Any:
    """Forward and backward pass of a hidden layer, and ENorm, for a device: a module or a class."""
    if device.type != "cuda":
        return torch_layers.OneOnCPU if runs == 1 else torch_layers
    from paper.training.kernels import triton_layers  # needs Triton

    return triton_layers


def _hopper_kernels(device: torch.device, runs: int) -> Any:
    """The Hopper kernels, where they exist and are faster than cuBLAS; else None."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9 or runs < MIN_HOPPER_RUNS:
        return None
    try:
        from paper.training.kernels import hopper
    except ImportError:  # this Triton has no Gluon
        return None
    return hopper
