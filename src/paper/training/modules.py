"""Train one network, any nn.Module with any optimizer, by autograd.

Augmentation, schedule and clipping work on the device, so on a GPU a step is part of a CUDA graph. The paper's
convolutional networks are compiled there, and CIFAR-NV has bfloat16; others, many of which train for a short time, are
not compiled.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from paper import models
from paper.cli import PaperError
from paper.runs import CONVOLUTIONAL
from paper.seeds import generator
from paper.settings import DATASETS
from paper.starts import initialize, rescale
from paper.training import torch_layers
from paper.training.datasets import DRAWS, Splits, flip_and_crop
from paper.training.optimisers import optimisers, rates, set_rate
from paper.training.torch_layers import compiled
from paper.training.trainer import Run, Trainer

RESCALE_BATCH = 128  # images on which statistics of normalizations are measured
PRECISIONS = {"float32": "float32", "tf32": "float32 with TF32 products", "bfloat16": "bfloat16 autocast"}


def chain(module: nn.Module) -> list[nn.Linear | nn.Conv2d]:
    """The linear layers and convolutions of a network that is a chain of them, in order."""
    layers = [part for part in module.modules() if isinstance(part, nn.Linear | nn.Conv2d)]
    grouped = any(isinstance(layer, nn.Conv2d) and layer.groups > 1 for layer in layers)
    if grouped or not isinstance(module, nn.Sequential) or not {*layers} <= {*module}:
        raise PaperError("enorm: expected a chain of layers without groups, got another network. Drop the method.")
    return layers


# Reductions over images and pixels are slow as compiled by default; tuning them costs seconds, once.
_TUNED: dict[str, Any] = {"max_autotune_pointwise": True}


class ModuleTrainer(Trainer):
    """Trains one run.

    Args:
        run: the run.
        splits: its data, on the device.
        device: where to train.
        eager: neither CUDA graphs nor compilation, to find errors.
    """

    eval_batch = 2000  # images
    eval_windows = 256  # of a text

    def __init__(self, run: Run, splits: Splits, device: torch.device, eager: bool = False) -> None:
        self.gpu = device.type == "cuda"
        super().__init__([run], splits, device, use_graphs=self.gpu and not eager)
        self.spec, self.trained = run.spec, False
        self.text = self.task == "predict_next"
        if self.text:
            self.eval_batch = self.eval_windows
        paper = self.spec["model"]["kind"] in CONVOLUTIONAL
        default = "bfloat16" if self.spec["model"]["kind"] == "cifar_nv" else "tf32"
        precision = self.spec.get("precision", default) if self.gpu else "float32"
        self.bfloat16, self.precision = precision == "bfloat16", PRECISIONS[precision]
        measured = self.spec["rescaling"].get("statistics") == "input"
        with tf32(False):
            batch = self._normalised(splits.train.images[:RESCALE_BATCH]) if measured else None
            initial = initialize(run.spec, run.seed, run.results, batch)
        self.max_log_scale, self.rescale_seconds = [initial.max_log_scale], [initial.seconds]
        self.module = initial.module.to(device)
        self.parameters = models.parameters(self.module)
        if self.bfloat16:
            self.module = self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            # cuDNN tries all algorithms for the paper's network, but none for networks that train for a short time.
            torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = paper, 0
        if self.gpu:
            torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
            torch.backends.cudnn.allow_tf32 = precision != "float32"
        self.forward: Callable[[Tensor], Tensor] = self.module
        if self.gpu and paper and not eager:
            self.forward = torch.compile(self.module, options=_TUNED)
        scheduled = "schedule" in self.spec
        self.optimisers = optimisers(
            self.module, self.spec["optimiser"], self.spec["lr"], initial.lr_factors, scheduled and self.gpu
        )
        self.rates = rates(self.spec, self.steps * self.spec["epochs"]).to(device) if scheduled else None
        self.at = torch.zeros(1, dtype=torch.long, device=device)  # number of the next step
        self.draws = torch.zeros(self.count, len(DRAWS), dtype=torch.long, device=device)
        self.running_loss = torch.zeros((), dtype=torch.float64, device=device)  # summed over the images of an epoch
        self.train_metrics = self.spec.get("train_metrics", "eval")
        if self.train_metrics == "running":
            del self.evaluated["train"]
        self.enorm_cycle = self._enorm_cycle() if self.spec["rescaling"].get("enorm") else None

    def save(self, run: int) -> dict[str, Any]:
        """State of the run, on the CPU."""
        return _to_cpu({"module": self.module.state_dict(), "optimisers": [o.state_dict() for o in self.optimisers]})

    def load(self, run: int, state: Mapping[str, Any]) -> None:
        """Restore the state of the run."""
        self.module.load_state_dict(state["module"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            mine = [group["lr"] for group in optimiser.param_groups]
            optimiser.load_state_dict(saved)
            for group, lr in zip(optimiser.param_groups, mine, strict=True):
                group["lr"] = lr  # a tensor of this device where there is a schedule, which sets it

    def teleport(self, epoch: int) -> None:
        """Rescale if the method teleports after this epoch."""
        every = self.spec["rescaling"].get("teleport", 0)
        if every and epoch % every == 0:
            self._rescale()

    def epoch(self, epoch: int) -> None:
        """Train one epoch."""
        self.module.train()
        self.trained = True
        self.at.fill_((epoch - 1) * self.steps)
        self.running_loss.zero_()
        if self.spec.get("augmentation"):
            source = generator(self.runs[0].seed, "augmentation", epoch)  # methods share it, like the order
            drawn = [torch.randint(0, count, (self.count,), generator=source) for count in DRAWS]
            self.draws.copy_(torch.stack(drawn, 1))
        super().epoch(epoch)

    def evaluate(self) -> dict[str, Tensor]:
        """Mean loss and accuracy of each split in eval mode, and the running loss if asked for, shape (1,) each."""
        self.module.eval()
        found = super().evaluate()
        if self.train_metrics != "eval":
            mean = self.running_loss / self.count if self.trained else self.running_loss * math.nan
            found["running_train_loss"] = mean.view(1).cpu()
        return found

    def _enorm_cycle(self) -> Callable[[], None]:
        """A function that makes one cycle of ENorm."""
        layers = chain(self.module)
        weights = [layer.weight.detach().movedim(1, -1)[None] for layer in layers]
        biases = [None if layer.bias is None else layer.bias.detach()[None, None] for layer in layers]
        return lambda: compiled(torch_layers.enorm_cycle, self.device)(weights, biases)

    def _rescale(self) -> None:
        """Rescale the weights by the settings of the method, and the optimizer state with them."""
        with tf32(False):
            if self.spec["rescaling"].get("statistics") == "input":
                x = self._normalised(self.splits.train.images[:RESCALE_BATCH])
            else:
                x = models.example_input(self.spec["model"]).to(self.device)
            (optimizer,) = self.optimisers
            rescale(self.module, x, self.spec["rescaling"], optimizer)

    def _cast(self) -> AbstractContextManager[Any]:
        # No cache of cast weights: replays of a CUDA graph would read stale ones. Compiled code casts by itself.
        cached = self.forward is not self.module
        return torch.autocast("cuda", torch.bfloat16, cache_enabled=cached) if self.bfloat16 else nullcontext()

    def _normalised(self, images: Tensor) -> Tensor:
        return images.long() if self.text else images.to(torch.float32) * self.splits.scale + self.splits.shift

    def _inputs(self, images: Tensor) -> Tensor:
        x = self._normalised(images)
        return x.contiguous(memory_format=torch.channels_last) if self.bfloat16 and x.ndim == 4 else x

    def _step(self, index: Tensor) -> None:
        images = self.splits.train.images[index[0]]
        if self.spec.get("augmentation"):
            images = flip_and_crop(images, self.draws[index[0]], DATASETS[self.spec["dataset"]].channels)
        x = self._inputs(images)
        with self._cast():
            y = self.forward(x)
        if self.task == "reconstruct":
            loss = functional.mse_loss(y.float(), x.flatten(1))
        else:  # one label per image, or per character of a window
            labels = self.splits.train.labels[index[0]]
            loss = functional.cross_entropy(y.float().flatten(0, -2), labels.flatten())
        loss.backward()
        if self.train_metrics != "eval":
            self.running_loss.add_(loss.detach(), alpha=len(x))
        if self.spec.get("clip"):
            torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.spec["clip"], foreach=True)
        if self.rates is not None:
            set_rate(self.optimisers, self.rates.index_select(0, self.at)[0])
            self.at.add_(1)
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad()
        if self.enorm_cycle is not None:
            self.enorm_cycle()

    def _outputs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self._inputs(images)
        with self._cast():
            y = self.forward(x)
        return y.float().flatten(0, -2)[None], x.flatten(1)

    def _sums(self) -> list[tuple[Tensor, Tensor]]:
        found = super()._sums()
        if not self.bfloat16:
            return found
        # A network that diverged must not look finite, whatever a compiled ReLU makes of NaN.
        floats = [t for t in self._state_tensors() if t.dtype == torch.float32]
        zero_or_nan = torch.stack([t.norm() for t in floats]).sum() * 0
        return [(loss + zero_or_nan, correct) for loss, correct in found]

    def _state_tensors(self) -> list[Tensor]:
        states = [state for optimiser in self.optimisers for state in optimiser.state.values()]
        moments = [value for state in states for value in state.values() if torch.is_tensor(value)]
        return [*self.module.parameters(), *self.module.buffers(), *moments, self.at, self.running_loss]


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in matrix products on a GPU within the block."""
    found = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = found


def _to_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: _to_cpu(v) for key, v in value.items()}
    return [_to_cpu(v) for v in value] if isinstance(value, list) else value
