"""One run of any network with any optimiser, through autograd; on a GPU compiled, and the conv net in bfloat16."""

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
from paper.train import layers
from paper.train.backend import Backend, Run
from paper.train.layers import fused
from paper.train.sets import Sets
from paper.train.start import sound, start


def optimisers(module: nn.Module, settings: Mapping[str, Any], lr: float) -> list[Optimizer]:
    """The optimiser a configuration names; Muon takes the matrices and leaves the rest to Adam."""
    name, options = settings["name"], {key: value for key, value in settings.items() if key != "name"}
    parameters = list(module.parameters())
    if name == "adam" and "momentum" in options:
        raise PaperError("optimiser: adam has no momentum setting, got one. Leave it out, or take sgd or muon.")
    if name == "sgd":
        return [torch.optim.SGD(parameters, lr=lr, **options)]
    if name == "adam":
        return [torch.optim.Adam(parameters, lr=lr, **options)]
    if name == "muon":
        matrices, others = ([p for p in parameters if (p.ndim == 2) == wanted] for wanted in (True, False))
        decay = options.pop("weight_decay", 0)  # torch's own default differs between the two
        found: list[Optimizer] = []
        if matrices:
            found.append(torch.optim.Muon(matrices, lr=lr, weight_decay=decay, **options))
        return [*found, torch.optim.Adam(others, lr=lr, weight_decay=decay)] if others else found
    raise PaperError(f"optimiser: expected sgd, adam or muon, got {name!r}.")


def convolutions(module: nn.Module) -> list[nn.Conv2d] | None:
    """The convolutions of a network that is a chain of them, in order; None if it has other weights between them."""
    between = (nn.BatchNorm2d, nn.ReLU, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.Flatten)
    parts = list(module) if isinstance(module, nn.Sequential) else [module]
    chain = [part for part in parts if isinstance(part, nn.Conv2d) and part.groups == 1]
    return chain if all(isinstance(part, between) or part in chain for part in parts) else None


# Reductions over images and places are slow as compiled by default; trying out a few ways costs seconds, once.
_TUNED: dict[str, Any] = {"max_autotune_pointwise": True}


class Alone(Backend):
    """A run by itself."""

    chunk = 2000

    def __init__(self, run: Run, sets: Sets, device: torch.device) -> None:
        self.fast = device.type == "cuda"
        # Optimisers other than SGD count their steps on the host, which a graph would freeze.
        super().__init__([run], sets, device, recorded=self.fast and run.cell["optimiser"]["name"] == "sgd")
        began = start(run.cell, run.seed)
        self.cell, self.max_log_scale = run.cell, [began.max_log_scale]
        self.module, self.precision = began.module.to(device), "float32"
        self.parameters = models.parameters(self.module)
        self.half = self.fast and self.cell["model"]["kind"] == "cifar_nv"
        if self.half:
            self.module = self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = True, 0  # try all algorithms
            self.precision = "bfloat16 autocast"
        elif self.fast:
            torch.backends.cuda.matmul.allow_tf32 = True
            self.precision = "float32 with TF32 products"
        self.forward: Callable[[Tensor], Tensor] = self._compiled() if self.fast else self.module
        self.optimisers = optimisers(self.module, self.cell["optimiser"], self.cell["lr"])
        self.balance = self._balance() if self.cell["rescaling"].get("enorm") else None

    def save(self, run: int) -> dict[str, Any]:
        """State of the run, on the CPU."""
        return _to_cpu({"module": self.module.state_dict(), "optimisers": [o.state_dict() for o in self.optimisers]})

    def load(self, run: int, state: Mapping[str, Any]) -> None:
        """Put the state back."""
        self.module.load_state_dict(state["module"])
        for optimiser, held in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(held)

    def teleport(self, epoch: int) -> None:
        """Rescale if the method does so after this epoch."""
        every = self.cell["rescaling"].get("teleport", 0)
        if every and epoch % every == 0 and sound(self.module):
            self._rescale()

    def epoch(self, epoch: int) -> None:
        """Train one epoch."""
        self.module.train()
        super().epoch(epoch)

    def evaluate(self) -> dict[str, Tensor]:
        """Mean loss and accuracy of each part in eval mode, shape (1,) each."""
        self.module.eval()
        return super().evaluate()

    def _compiled(self) -> Callable[[Tensor], Tensor]:
        from paper.train.quick import quicken  # needs Triton

        # Plain gradient descent takes no gradient and a gradient of zero for the same.
        return torch.compile(quicken(self.module) if self._plain() else self.module, options=_TUNED)

    def _plain(self) -> bool:
        """Whether it is gradient descent without memory."""
        return bool(self.cell["optimiser"] == {"name": "sgd"})

    def _balance(self) -> Callable[[], None]:
        """One cycle of ENorm."""
        chain = convolutions(self.module) if self.fast and self._plain() else None
        if chain is not None:  # the same in few kernels
            weights = [layer.weight.detach().permute(0, 2, 3, 1)[None] for layer in chain]
            biases = [None if layer.bias is None else layer.bias.detach()[None, None] for layer in chain]
            return lambda: fused(layers.balance, self.device)(weights, biases)
        x = models.example_input(self.cell["model"]).to(self.device)
        graph = pathcond.extract_graph(self.module, x, batchnorm="exclude", smooth=True)
        return pathcond.ENorm(self.module, x, self._single(), last_layer=False, graph=graph).step

    def _rescale(self) -> None:
        """As `start.rescale`, and the optimiser's averages follow."""
        how, x = self.cell["rescaling"], models.example_input(self.cell["model"]).to(self.device)
        graph = pathcond.extract_graph(self.module, x, batchnorm=how["batchnorm"], smooth=True)
        solver = {"method": how["solver"], "sweeps": how["sweeps"], "clamp": how.get("clamp")}
        options = {**solver, "pooling": how["pooling"], "graph": graph, "optimizer": self._single()}
        pathcond.Teleport(self.module, x, every=1, **options).step()

    def _single(self) -> Optimizer:
        """The optimiser whose averages follow a rescaling."""
        if len(self.optimisers) > 1:
            reason = "muon leaves what is no matrix to adam, and the averages of two cannot follow a rescaling"
            raise PaperError(f"optimiser: {reason}. Take sgd or adam with enorm and teleport.")
        return self.optimisers[0]

    def _cast(self) -> AbstractContextManager[Any]:
        return torch.autocast("cuda", torch.bfloat16) if self.half else nullcontext()

    def _inputs(self, images: Tensor) -> Tensor:
        x = images.to(torch.float32) * self.sets.scale + self.sets.shift
        return x.contiguous(memory_format=torch.channels_last) if self.half else x

    def _step(self, index: Tensor) -> None:
        x = self._inputs(self.sets.train.images[index[0]])
        with self._cast():
            y = self.forward(x)
        if self.task == "classify":
            loss = functional.cross_entropy(y.float(), self.sets.train.labels[index[0]])
        else:
            loss = functional.mse_loss(y.float(), x.flatten(1))
        loss.backward()
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad()
        if self.balance is not None:
            self.balance()

    def _outputs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self._inputs(images)
        with self._cast():
            y = self.forward(x)
        return y.float()[None], x.flatten(1)

    def _sums(self) -> list[tuple[Tensor, Tensor]]:
        found = super()._sums()
        if not self.half:
            return found
        # ReLU inside a call to cuDNN makes zeros of what is no number; a network that diverged shall not look sound.
        numbers = [t for t in self._held() if t.is_floating_point()]
        nothing = torch.stack([t.norm() for t in numbers]).sum() * 0
        return [(loss + nothing, correct) for loss, correct in found]

    def _held(self) -> list[Tensor]:
        kept = [v for o in self.optimisers for state in o.state.values() for v in state.values() if torch.is_tensor(v)]
        return [*self.module.parameters(), *self.module.buffers(), *kept]


def _to_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: _to_cpu(v) for key, v in value.items()}
    return [_to_cpu(v) for v in value] if isinstance(value, list) else value
