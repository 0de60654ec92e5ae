"""Train one network, any nn.Module with any optimiser, by autograd; compiled on a GPU, CIFAR-NV in bfloat16."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

import pathcond
from paper import models
from paper.errors import PaperError
from paper.methods import solver_options
from paper.training.datasets import Splits
from paper.training.initialization import initialize, is_finite
from paper.training.kernels import torch_layers
from paper.training.kernels.torch_layers import compiled
from paper.training.trainer import Run, Trainer

SIMPLE_OPTIMISERS: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def optimisers(module: nn.Module, settings: Mapping[str, Any], lr: float) -> list[Optimizer]:
    """The optimiser of a configuration; Muon takes the matrices and leaves the rest to Adam."""
    name, options = settings["name"], {key: value for key, value in settings.items() if key != "name"}
    parameters = list(module.parameters())
    if name in ("adam", "adamw") and "momentum" in options:
        raise PaperError(f"optimiser: {name} has no momentum setting, got one. Leave it out, or use sgd or muon.")
    if name in SIMPLE_OPTIMISERS:
        return [SIMPLE_OPTIMISERS[name](parameters, lr=lr, **options)]
    if name == "muon":
        matrices, others = ([p for p in parameters if (p.ndim == 2) == wanted] for wanted in (True, False))
        decay = options.pop("weight_decay", 0)  # torch's own default differs between the two
        found: list[Optimizer] = []
        if matrices:
            found.append(torch.optim.Muon(matrices, lr=lr, weight_decay=decay, **options))
        return [*found, torch.optim.Adam(others, lr=lr, weight_decay=decay)] if others else found
    raise PaperError(f"optimiser: expected {', '.join(SIMPLE_OPTIMISERS)} or muon, got {name!r}.")


def convolutions(module: nn.Module) -> list[nn.Conv2d] | None:
    """The convolutions of a plain chain of convolutions, in order; None for any other network."""
    between = (nn.BatchNorm2d, nn.ReLU, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.Flatten)
    parts = list(module) if isinstance(module, nn.Sequential) else [module]
    chain = [part for part in parts if isinstance(part, nn.Conv2d) and part.groups == 1]
    return chain if all(isinstance(part, between) or part in chain for part in parts) else None


# Reductions over images and pixels are slow as compiled by default; tuning them costs seconds, once.
_TUNED: dict[str, Any] = {"max_autotune_pointwise": True}


class ModuleTrainer(Trainer):
    """Trains one run."""

    eval_batch = 2000

    def __init__(self, run: Run, splits: Splits, device: torch.device) -> None:
        self.gpu = device.type == "cuda"
        # Optimisers other than SGD count their steps on the host, which a graph would freeze.
        super().__init__([run], splits, device, use_graphs=self.gpu and run.spec["optimiser"]["name"] == "sgd")
        initial = initialize(run.spec, run.seed, run.results)
        self.spec, self.max_log_scale = run.spec, [initial.max_log_scale]
        self.module, self.precision = initial.module.to(device), "float32"
        self.parameters = models.parameters(self.module)
        self.bfloat16 = self.gpu and self.spec["model"]["kind"] == "cifar_nv"
        if self.bfloat16:
            self.module = self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = True, 0  # try all algorithms
            self.precision = "bfloat16 autocast"
        elif self.gpu:
            torch.backends.cuda.matmul.allow_tf32 = True
            self.precision = "float32 with TF32 products"
        self.forward: Callable[[Tensor], Tensor] = self._compiled() if self.gpu else self.module
        self.optimisers = optimisers(self.module, self.spec["optimiser"], self.spec["lr"])
        self.enorm_cycle = self._enorm_cycle() if self.spec["rescaling"].get("enorm") else None

    def save(self, run: int) -> dict[str, Any]:
        """State of the run, on the CPU."""
        return _to_cpu({"module": self.module.state_dict(), "optimisers": [o.state_dict() for o in self.optimisers]})

    def load(self, run: int, state: Mapping[str, Any]) -> None:
        """Restore the state of the run."""
        self.module.load_state_dict(state["module"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)

    def teleport(self, epoch: int) -> None:
        """Rescale if the method teleports after this epoch."""
        every = self.spec["rescaling"].get("teleport", 0)
        if every and epoch % every == 0 and is_finite(self.module):
            self._rescale()

    def epoch(self, epoch: int) -> None:
        """Train one epoch."""
        self.module.train()
        super().epoch(epoch)

    def evaluate(self) -> dict[str, Tensor]:
        """Mean loss and accuracy of each split in eval mode, shape (1,) each."""
        self.module.eval()
        return super().evaluate()

    def _compiled(self) -> Callable[[Tensor], Tensor]:
        from paper.training.kernels.convolution import use_fast_kernels  # needs Triton

        # The kernels leave out gradients that are zero, which makes no difference to plain SGD.
        return torch.compile(use_fast_kernels(self.module) if self._plain() else self.module, options=_TUNED)

    def _plain(self) -> bool:
        """Whether the optimiser is SGD without state."""
        return bool(self.spec["optimiser"] == {"name": "sgd"})

    def _enorm_cycle(self) -> Callable[[], None]:
        """A function that makes one cycle of ENorm."""
        chain = convolutions(self.module) if self.gpu and self._plain() else None
        if chain is not None:  # the same, in few kernels
            weights = [layer.weight.detach().permute(0, 2, 3, 1)[None] for layer in chain]
            biases = [None if layer.bias is None else layer.bias.detach()[None, None] for layer in chain]
            return lambda: compiled(torch_layers.enorm_cycle, self.device)(weights, biases)
        x = models.example_input(self.spec["model"]).to(self.device)
        graph = pathcond.extract_graph(self.module, x, batchnorm="exclude", smooth=True)
        return pathcond.ENorm(self.module, x, self._single(), last_layer=False, graph=graph).step

    def _rescale(self) -> None:
        """As `initialization.rescale`; the optimiser state is rescaled too."""
        rescaling, x = self.spec["rescaling"], models.example_input(self.spec["model"]).to(self.device)
        graph = pathcond.extract_graph(self.module, x, batchnorm=rescaling["batchnorm"], smooth=True)
        options = {
            **solver_options(rescaling),
            "pooling": rescaling["pooling"],
            "statistics": "running",
            "graph": graph,
            "optimizer": self._single(),
        }
        pathcond.Teleport(self.module, x, every=1, **options).step()

    def _single(self) -> Optimizer:
        """The optimiser whose state is rescaled with the weights."""
        if len(self.optimisers) > 1:
            reason = "muon leaves vectors to adam, and the state of two optimisers cannot be rescaled"
            raise PaperError(f"optimiser: {reason}. Use sgd, adam or adamw with enorm and teleport.")
        return self.optimisers[0]

    def _cast(self) -> AbstractContextManager[Any]:
        return torch.autocast("cuda", torch.bfloat16) if self.bfloat16 else nullcontext()

    def _inputs(self, images: Tensor) -> Tensor:
        x = images.to(torch.float32) * self.splits.scale + self.splits.shift
        return x.contiguous(memory_format=torch.channels_last) if self.bfloat16 else x

    def _step(self, index: Tensor) -> None:
        x = self._inputs(self.splits.train.images[index[0]])
        with self._cast():
            y = self.forward(x)
        if self.task == "classify":
            loss = functional.cross_entropy(y.float(), self.splits.train.labels[index[0]])
        else:
            loss = functional.mse_loss(y.float(), x.flatten(1))
        loss.backward()
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad()
        if self.enorm_cycle is not None:
            self.enorm_cycle()

    def _outputs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self._inputs(images)
        with self._cast():
            y = self.forward(x)
        return y.float()[None], x.flatten(1)

    def _sums(self) -> list[tuple[Tensor, Tensor]]:
        found = super()._sums()
        if not self.bfloat16:
            return found
        # cuDNN's fused ReLU turns NaN into 0; a network that diverged must not look finite.
        floats = [t for t in self._state_tensors() if t.is_floating_point()]
        zero_or_nan = torch.stack([t.norm() for t in floats]).sum() * 0
        return [(loss + zero_or_nan, correct) for loss, correct in found]

    def _state_tensors(self) -> list[Tensor]:
        states = [state for optimiser in self.optimisers for state in optimiser.state.values()]
        moments = [value for state in states for value in state.values() if torch.is_tensor(value)]
        return [*self.module.parameters(), *self.module.buffers(), *moments]


def _to_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: _to_cpu(v) for key, v in value.items()}
    return [_to_cpu(v) for v in value] if isinstance(value, list) else value
