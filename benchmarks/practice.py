"""Does rescaling at the start help, do nothing, or harm, with the same tuning budget? CIFAR-10, networks people train.

    python benchmarks/practice.py --data cifar10.npz --out practice.jsonl --workers 8 --time-limit 520
    python benchmarks/practice.py --out practice.jsonl --summarize            # practice.csv, practice.md beside it

Every network is trained from the same start weights (they depend on network and seed) on the same batches (they depend
on the seed) with each method and each learning rate of its grid. The rule that chooses the default, stated beforehand:

1. A candidate must not be worse than the baseline, each at its own best learning rate, by more than the 95% interval of
   the difference paired by seed, on any network that is not held out.
2. Of those that pass, the one with the largest mean gain over the networks that are not held out.

Held-out networks are reported apart. One job is (network, method, seed): the rescaling is computed once in float32,
then copies of the model train side by side, one for each learning rate, on the same batches. On a GPU a step of all
copies is one CUDA graph with a branch for each copy. Rows are written as soon as a job ends; a second call with the
same file runs only what is missing. `practice_data.py` makes the data file.
"""

import argparse
import copy
import gc
import json
import math
import multiprocessing
import os
import queue
import shutil
import subprocess
import sys
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import pathcond

BATCH = 256
RESCALE_BATCH = 128
TEST_BATCH = 2_000
WARMUP = 0.2  # share of the steps in which the learning rate rises
RATIO_STEPS = 5  # steps in which the update-to-weight ratio is measured
CLAMP = 1.5

# ---- networks


class ResNet(nn.Module):
    """ResNet-18 with a 3x3 stem, as usual for CIFAR-10; initialised like torchvision's."""

    def __init__(self, width: int, blocks: int = 2) -> None:
        super().__init__()
        from torchvision.models.resnet import BasicBlock

        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
        for stage in range(4):
            for block in range(blocks):
                out, stride = width << stage, 2 if stage and not block else 1
                shortcut = None
                if stride != 1:
                    shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
                layers.append(BasicBlock(channels, out, stride, shortcut))
                channels = out
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(channels, 10)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


def mlp(hidden: int, width: int = 512) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for k in range(hidden):
        layers += [nn.Linear(width if k else 3072, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def vgg11(batchnorm: bool) -> nn.Module:
    from torchvision import models

    model = (models.vgg11_bn if batchnorm else models.vgg11)(num_classes=10)
    model.avgpool = nn.Identity()
    model.classifier = nn.Linear(512, 10)
    return model


def mobilenetv2() -> nn.Module:
    from torchvision import models

    blocks = [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 3, 2], [6, 64, 4, 2], [6, 96, 3, 1], [6, 160, 3, 1], [6, 320, 1, 1]]
    model = models.mobilenet_v2(num_classes=10, dropout=0.0, inverted_residual_setting=blocks)
    model.features[0][0].stride = (1, 1)  # 32 x 32 down to 4 x 4
    return model


def convnext_atto() -> nn.Module:
    import timm

    model = timm.create_model("convnext_atto", num_classes=10, patch_size=2)
    model.stages[0].downsample = nn.Identity()  # timm halves once more behind such a stem; now 16 x 16 down to 2 x 2
    return model


def efficientnet_b0() -> nn.Module:
    import timm

    model = timm.create_model("efficientnet_b0", num_classes=10)
    model.conv_stem.stride = (1, 1)
    return model


def vit_tiny() -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(img_size=32, patch_size=4, embed_dim=192, depth=6, num_heads=3, num_classes=10)


def mixer() -> nn.Module:
    from timm.models.mlp_mixer import MlpMixer

    return MlpMixer(img_size=32, patch_size=4, embed_dim=192, num_blocks=6, num_classes=10)


@dataclass(frozen=True)
class Network:
    """A network and how it is trained.

    Attributes:
        build: makes the model.
        optimizer: ``sgd`` (momentum 0.9, Nesterov, decay 5e-4) or ``adamw`` (decay 0.05 on matrices).
        lrs: peak learning rates, the same for every method.
        norm: ``batch`` or ``layer`` where it has such normalisations.
        smooth: whether its activations are smooth.
        held_out: not used in the choice of the default.
        mflop: of one forward pass (two for a multiply-add), for the order of jobs and the estimate of the time.
    """

    build: Callable[[], nn.Module]
    optimizer: str
    lrs: tuple[float, ...]
    norm: str = ""
    smooth: bool = False
    held_out: bool = False
    mflop: float = 1.0


SGD, ADAMW = "sgd", "adamw"
NETWORKS: dict[str, Network] = {
    "mlp3": Network(lambda: mlp(3), SGD, (0.01, 0.03, 0.1, 0.3), mflop=4),
    "mlp8": Network(lambda: mlp(8), SGD, (0.01, 0.03, 0.1, 0.3), mflop=7),
    "vgg11": Network(lambda: vgg11(False), SGD, (0.003, 0.01, 0.03, 0.1), held_out=True, mflop=306),
    "vgg11_bn": Network(lambda: vgg11(True), SGD, (0.01, 0.03, 0.1, 0.3), norm="batch", mflop=306),
    "resnet18": Network(lambda: ResNet(32), SGD, (0.03, 0.1, 0.3, 1.0), norm="batch", mflop=280),
    "mobilenetv2": Network(mobilenetv2, SGD, (0.03, 0.1, 0.3, 1.0), norm="batch", mflop=88),
    "convnext_atto": Network(convnext_atto, ADAMW, (3e-4, 1e-3, 3e-3, 1e-2), norm="layer", smooth=True, mflop=90),
    "vit_tiny": Network(vit_tiny, ADAMW, (3e-4, 1e-3, 3e-3, 1e-2), norm="layer", smooth=True, mflop=350),
    "mixer": Network(mixer, ADAMW, (3e-4, 1e-3, 3e-3, 1e-2), norm="layer", smooth=True, held_out=True, mflop=256),
    "efficientnet_b0": Network(
        efficientnet_b0, SGD, (0.03, 0.1, 0.3, 1.0), norm="batch", smooth=True, held_out=True, mflop=65
    ),
    "tiny_mlp": Network(lambda: mlp(2, 32), SGD, (0.03, 0.1), mflop=0.1),  # tests on a CPU; not run unless named
    "tiny_resnet": Network(lambda: ResNet(4, 1), SGD, (0.03, 0.1), norm="batch", mflop=0.5),
}
TINY = ("tiny_mlp", "tiny_resnet")


def start_model(name: str, seed: int) -> nn.Module:
    """The start weights, on the CPU; they depend on the network and the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(zlib.crc32(f"{name} {seed}".encode()))
        return NETWORKS[name].build()


# ---- methods


@dataclass(frozen=True)
class Method:
    """How the start weights are rescaled; see :func:`pathcond.rescale_`.

    Attributes:
        first: among the methods that are run first.
        statistics: how normalisations enter diag(G).
        clamp: bound on |log lambda|.
        batchnorm: how scales cross BatchNorm.
        damping: factor on the log-scales.
        per_layer: one scale for each layer, the mean of its units' log-scales.
        smooth_paths: path sums cross smooth activations as the identity; scales stay frozen there.
    """

    first: bool = False
    statistics: str = "input"
    clamp: float | None = CLAMP
    batchnorm: str = "affine"
    damping: float = 1.0
    per_layer: bool = False
    smooth_paths: bool = False


BASELINE = "baseline"
METHODS: dict[str, Method | None] = {
    BASELINE: None,
    "default": Method(first=True),
    "running_free": Method(first=True, statistics="running", clamp=None),
    "measured_free": Method(first=True, clamp=None),
    "exclude": Method(batchnorm="exclude"),
    "running_bound": Method(statistics="running"),
    "damped": Method(damping=0.5),
    "smooth_paths": Method(smooth_paths=True),
    "per_layer": Method(per_layer=True),
}


def same_as(network: str, method: str) -> str | None:
    """The method that does the same on this network and is run in its place; None where it has no meaning."""
    net = NETWORKS[network]
    if method == "exclude":
        return method if net.norm == "batch" else None
    if not net.norm and method.startswith("running"):
        return {"running_free": "measured_free", "running_bound": "default"}[method]
    if method == "smooth_paths" and not net.smooth:
        return "default"
    return method


def rescale(model: nn.Module, batch: Tensor, method: Method) -> dict[str, Any]:
    """Rescale the model in place; returns what is to be recorded."""
    start = time.perf_counter()
    plain = method.damping == 1.0 and not method.per_layer and not method.smooth_paths
    if plain:
        report = pathcond.rescale_(
            model, batch, clamp=method.clamp, statistics=method.statistics, batchnorm=method.batchnorm
        )
        graph, u, clamped, change = report.graph, report.solution.u, report.at_bound, report.output_change
    else:
        with torch.no_grad():
            before = model(batch)
        graph = pathcond.extract_graph(model, batch, batchnorm=method.batchnorm)
        g = pathcond.compute_diag_g(
            model, batch, statistics=method.statistics, smooth=method.smooth_paths, graph=graph, scaled=True
        )
        solution = pathcond.solve(graph, g, clamp=method.clamp)
        u, clamped = method.damping * solution.u, solution.clamped
        if method.per_layer:
            assert sum(graph.groups) == len(u), f"expected {len(u)} units in groups, got {sum(graph.groups)}"
            u = torch.cat([part.mean().expand(len(part)) for part in u.split(graph.groups)]) if len(u) else u
        pathcond.apply_scales_(model, graph, u)
        with torch.no_grad():
            change = float((model(batch) - before).abs().amax() / before.abs().amax().clamp(min=1e-30))  # a zero head
    if batch.is_cuda:
        torch.cuda.synchronize()
    return {
        "max_log_lambda": float(u.abs().amax()) / 2 if len(u) else 0.0,
        "mean_log_lambda": float(u.abs().mean()) / 2 if len(u) else 0.0,
        "units": graph.units,
        "frozen": graph.frozen_units,
        "moved": int((u.abs() / 2 > 1e-3).sum()),
        "at_bound": clamped,
        "output_change": change,
        "rescale_seconds": time.perf_counter() - start,
        "rescale_device": batch.device.type,
    }


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    found = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = found


def rescaled_model(job: "Job", batch: Tensor) -> tuple[nn.Module, dict[str, Any]]:
    """The start model on the device of the batch, rescaled there in float32.

    Where the rescaling fails on the device it is repeated on the CPU; the record says so.
    """
    method, notes = METHODS[job.method], {}
    for device in dict.fromkeys((batch.device, torch.device("cpu"))):
        model = start_model(job.network, job.seed).to(device).train()
        if method is None:
            return model, {}
        state = copy.deepcopy(dict(model.named_buffers()))
        try:
            with tf32(False), warnings.catch_warnings():
                warnings.simplefilter("ignore", pathcond.PathCondWarning)
                info = rescale(model, batch.to(device), method)
        except Exception as error:
            if device.type == "cpu":
                raise
            notes = {"rescale_error": f"{type(error).__name__}: {error}"[:300]}
            continue
        for name, buffer in model.named_buffers():  # forward passes in training mode move running statistics
            buffer.copy_(state[name])
        return model.to(batch.device), info | notes
    raise AssertionError


# ---- data


@dataclass
class Data:
    """Images on the device: training images padded by 4 pixels, channels last; the test set padded to whole batches."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    mean: Tensor
    std: Tensor

    def normalised(self, pixels: Tensor) -> Tensor:
        """(B, 32, 32, 3) uint8 to (B, 3, 32, 32) float32 in channels_last."""
        return ((pixels.float() / 255 - self.mean) / self.std).permute(0, 3, 1, 2)

    def batch(self, index: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Random crops and flips; ``draws`` (B, 3): offsets in 0..8, flip in 0..1."""
        steps = torch.arange(32, device=index.device)
        rows = draws[:, 0, None] + steps
        columns = draws[:, 1, None] + torch.where(draws[:, 2, None] > 0, 31 - steps, steps)
        pixels = self.train[index[:, None, None], rows[:, :, None], columns[:, None, :]]
        return self.normalised(pixels), self.train_labels[index]

    def example(self) -> Tensor:
        """The first training images as they are, for the rescaling."""
        return self.normalised(self.train[:RESCALE_BATCH, 4:36, 4:36]).contiguous()


def load_data(path: str, images: int, test_images: int, device: torch.device) -> Data:
    with np.load(path) as arrays:
        count = len(arrays["train_labels"])
        assert count >= images, f"expected at least {images} training images in {path}, got {count}"
        train = torch.from_numpy(arrays["train_images"][:images])
        labels = torch.from_numpy(arrays["train_labels"][:images].astype(np.int64))
        test = torch.from_numpy(arrays["test_images"][:test_images])
        test_labels = torch.from_numpy(arrays["test_labels"][:test_images].astype(np.int64))
    train = functional.pad(train.to(device), (4, 4, 4, 4)).permute(0, 2, 3, 1).contiguous()
    size = min(TEST_BATCH, len(test))
    missing = -len(test) % size
    test = torch.cat((test, test[:missing])).to(device).permute(0, 2, 3, 1).contiguous()
    test_labels = torch.cat((test_labels, torch.full((missing,), -100))).to(device)
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    return Data(train, labels.to(device), test.view(-1, size, 32, 32, 3), test_labels.view(-1, size),
                mean.to(device), std.to(device))  # fmt: skip


def plan_batches(seed: int, images: int, epochs: int) -> tuple[Tensor, Tensor]:
    """Order (steps, B) and draws (steps, B, 3); they depend on the seed alone. The rest of an epoch is dropped."""
    size = min(BATCH, images)
    generator = torch.Generator().manual_seed(1_000_003 * (seed + 1))
    per_epoch = images // size
    order = torch.cat(
        [torch.randperm(images, generator=generator)[: per_epoch * size].view(per_epoch, size) for _ in range(epochs)]
    )
    crops = torch.randint(0, 9, (*order.shape, 2), generator=generator)
    flips = torch.randint(0, 2, (*order.shape, 1), generator=generator)
    return order, torch.cat((crops, flips), 2)


# ---- optimizers, whose numbers of a step come from a table on the device


def schedule(kind: str, lr: float, steps: int) -> Tensor:
    """Numbers of each step, (steps, 3) in float32: linear warm-up, then linear decay to zero.

    SGD: lr. AdamW: factor of the decay, step size with bias correction, factor of the root of the second moment.
    """
    warm = max(1, round(WARMUP * steps))
    rows = []
    for t in range(1, steps + 1):
        rate = lr * min(t / warm, (steps - t + 1) / max(1, steps - warm + 1))
        row = (rate, 0.0, 0.0)
        if kind == ADAMW:
            row = (1 - 0.05 * rate, rate / (1 - 0.9**t), 1 / math.sqrt(1 - 0.999**t))
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64).float()


class Replica:
    """A copy of the model with its learning rate, optimizer state and losses. All state is updated in place."""

    def __init__(self, model: nn.Module, kind: str, lr: float, steps: int, device: torch.device) -> None:
        self.model = copy.deepcopy(model).to(memory_format=torch.channels_last)
        self.kind, self.lr = kind, lr
        self.table = schedule(kind, lr, steps).to(device)
        self.losses = torch.zeros(steps, device=device)
        self.scores = torch.zeros(2, device=device)  # correct answers and sum of losses on the test set
        self.params = [p for p in self.model.parameters() if p.requires_grad]
        self.matrices = [p for p in self.params if p.ndim > 1]
        self.moments = [[torch.zeros_like(p) for p in self.params] for _ in range(2 if kind == ADAMW else 1)]

    def state(self) -> list[Tensor]:
        return [*self.model.state_dict().values(), *(t for m in self.moments for t in m), self.losses, self.scores]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda, cache_enabled=False):
            logits = self.model(x)
        return functional.cross_entropy(logits.float(), y)

    def train(self, x: Tensor, y: Tensor, step: Tensor) -> None:
        for p in self.params:
            p.grad = None
        loss = self.loss(x, y)
        loss.backward()
        self.losses.index_copy_(0, step, loss.detach()[None])
        numbers = self.table.index_select(0, step)[0]
        self.update(numbers)

    @torch.no_grad()
    def update(self, numbers: Tensor) -> None:
        missing = [n for n, p in self.model.named_parameters() if p.requires_grad and p.grad is None]
        assert not missing, f"expected a gradient for every parameter, got none for {missing}"
        grads = [p.grad for p in self.params if p.grad is not None]
        first = self.moments[0]
        if self.kind == SGD:
            torch._foreach_add_(grads, self.params, alpha=5e-4)
            torch._foreach_mul_(first, 0.9)
            torch._foreach_add_(first, grads)
            change = torch._foreach_add(grads, first, alpha=0.9)
            torch._foreach_mul_(change, numbers[0])
        else:
            second = self.moments[1]
            torch._foreach_mul_(self.matrices, numbers[0])
            torch._foreach_lerp_(first, grads, 0.1)
            torch._foreach_mul_(second, 0.999)
            torch._foreach_addcmul_(second, grads, grads, 0.001)
            root = torch._foreach_sqrt(second)
            torch._foreach_mul_(root, numbers[2])
            torch._foreach_add_(root, 1e-8)
            change = torch._foreach_div(first, root)
            torch._foreach_mul_(change, numbers[1])
        torch._foreach_sub_(self.params, change)

    @torch.no_grad()
    def test(self, x: Tensor, y: Tensor) -> None:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda, cache_enabled=False):
            logits = self.model(x)
        logits = logits.float()
        loss = functional.cross_entropy(logits, y, ignore_index=-100, reduction="sum")
        self.scores += torch.stack(((logits.argmax(1) == y).sum().float(), loss))


# ---- training


class Trainer:
    """Trains replicas side by side on the same batches; on a GPU by CUDA graphs."""

    def __init__(self, data: Data, replicas: list[Replica], plan: tuple[Tensor, Tensor], device: torch.device) -> None:
        self.data, self.replicas, self.device = data, replicas, device
        self.order, self.draws = (t.to(device) for t in plan)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.test_step = torch.zeros(1, dtype=torch.int64, device=device)
        self.streams: list[Any] = []
        self.train_graph: Any = None
        self.test_graph: Any = None
        self.error: str | None = None

    def train_step(self) -> None:
        index = self.order.index_select(0, self.step)[0]
        x, y = self.data.batch(index, self.draws.index_select(0, self.step)[0])
        self._branches(lambda replica: replica.train(x, y, self.step))
        self.step += 1

    def test_batch(self) -> None:
        x = self.data.normalised(self.data.test.index_select(0, self.test_step)[0])
        y = self.data.test_labels.index_select(0, self.test_step)[0]
        self._branches(lambda replica: replica.test(x, y))
        self.test_step += 1

    def _branches(self, work: Callable[[Replica], None]) -> None:
        """The work of every replica, each on its stream if there are streams."""
        if not self.streams:
            for replica in self.replicas:
                work(replica)
            return
        main = torch.cuda.current_stream()
        for stream, replica in zip(self.streams, self.replicas, strict=False):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                work(replica)
        for stream in self.streams[: len(self.replicas)]:
            main.wait_stream(stream)

    def mode(self, training: bool) -> None:
        for replica in self.replicas:
            replica.model.train(training)

    def prepare(self, engine: str, main: Any, streams: list[Any]) -> str:
        """Capture the graphs, or not; returns the engine that is in use: ``branches``, ``graph`` or ``eager``."""
        if self.device.type != "cuda" or engine == "eager":
            return "eager"
        state = [t for replica in self.replicas for t in replica.state()] + [self.step, self.test_step]
        saved = [t.clone() for t in state]
        for name, branches in (("branches", streams), ("graph", [])) if engine == "auto" else ((engine, streams),):
            self.streams = [] if name == "graph" else branches
            try:
                self.train_graph = self._capture(self.train_step, True, main)
                self.test_graph = self._capture(self.test_batch, False, main)
                return name
            except Exception as error:
                self.error = f"{name}: {type(error).__name__}: {error}"[:300]
                self.train_graph = self.test_graph = None
                torch.cuda.synchronize()
            finally:
                with torch.no_grad():
                    for t, value in zip(state, saved, strict=True):
                        t.copy_(value)
        self.streams = []
        return "eager"

    def _capture(self, function: Callable[[], None], training: bool, main: Any) -> Any:
        self.mode(training)
        main.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(main):
            for _ in range(2):
                self.step.zero_()
                self.test_step.zero_()
                function()
        torch.cuda.current_stream().wait_stream(main)
        torch.cuda.synchronize()
        self.step.zero_()
        self.test_step.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=main):
            function()
        return graph

    def train(self, steps: int) -> None:
        self.mode(True)
        for _ in range(steps):
            self.train_graph.replay() if self.train_graph else self.train_step()

    def evaluate(self) -> list[tuple[float, float]]:
        """Accuracy in percent and loss on the test set, of each replica."""
        self.mode(False)
        self.test_step.zero_()
        for replica in self.replicas:
            replica.scores.zero_()
        for _ in range(len(self.data.test)):
            self.test_graph.replay() if self.test_graph else self.test_batch()
        count = int((self.data.test_labels >= 0).sum())
        scores = torch.stack([replica.scores for replica in self.replicas]).double().cpu()
        return [(100 * correct / count, loss / count) for correct, loss in scores.tolist()]

    @torch.no_grad()
    def first_steps(self, steps: int) -> list[dict[str, float]]:
        """Make steps one by one; mean size of a step relative to the weights, by weight, of each replica."""
        names = [[n for n, p in r.model.named_parameters() if p.ndim > 1] for r in self.replicas]
        sums = [torch.zeros(len(n), device=self.device) for n in names]
        for _ in range(steps):
            before = [[p.clone() for p in r.matrices] for r in self.replicas]
            with torch.enable_grad():
                self.train(1)
            for total, replica, old in zip(sums, self.replicas, before, strict=True):
                change = torch._foreach_norm(torch._foreach_sub(replica.matrices, old))
                total += torch.stack(change) / torch.stack(torch._foreach_norm(old)) / steps
        return [dict(zip(n, total.tolist(), strict=True)) for n, total in zip(names, sums, strict=True)]


@dataclass(frozen=True)
class Job:
    """Runs that share start weights: one for each learning rate."""

    network: str
    method: str
    seed: int
    lrs: tuple[float, ...]


def run_job(
    job: Job, data: Data, options: argparse.Namespace, device: torch.device, main: Any, streams: list[Any]
) -> list[dict[str, Any]]:
    """Rescale, then train with each learning rate; a row for each."""
    start = time.perf_counter()
    net = NETWORKS[job.network]
    model, info = rescaled_model(job, data.example())
    plan = plan_batches(job.seed, len(data.train), options.epochs)
    steps, per_epoch = len(plan[0]), len(plan[0]) // options.epochs
    replicas = [Replica(model, net.optimizer, lr, steps, device) for lr in job.lrs]
    del model
    with tf32(True):
        trainer = Trainer(data, replicas, plan, device)
        engine = trainer.prepare(options.engine, main, streams)
        prepared = time.perf_counter()
        first = min(RATIO_STEPS, per_epoch)
        ratios = trainer.first_steps(first)
        history = []
        for epoch in range(options.epochs):
            trainer.train(per_epoch - (first if not epoch else 0))
            history.append(trainer.evaluate())
    seconds = time.perf_counter() - prepared
    rows = []
    for k, replica in enumerate(replicas):
        losses = replica.losses.cpu()
        accuracies, test_loss = [epoch[k][0] for epoch in history], history[-1][k][1]
        rows.append({
            **{key: value for key, value in asdict(job).items() if key != "lrs"},
            "lr": replica.lr, "test_accuracy": accuracies[-1], "test_accuracies": accuracies, "test_loss": test_loss,
            "train_loss": float(losses[-per_epoch:].mean()),
            "diverged": not (bool(losses.isfinite().all()) and math.isfinite(test_loss)),
            **{"max_log_lambda": 0.0, "moved": 0, "at_bound": 0, "rescale_seconds": 0.0}, **info,
            "seconds": seconds / len(replicas), "job_seconds": time.perf_counter() - start,
            "step_ms": 1000 * seconds / steps, "engine": engine, "engine_error": trainer.error,
            "update_ratio": {name: float(f"{value:.4g}") for name, value in ratios[k].items()},
            "images": len(data.train), "epochs": options.epochs, "batch": plan[0].shape[1], "device": device.type,
        })  # fmt: skip
    return rows


# ---- workers


def finite(value: Any) -> Any:
    """JSON has no NaN: None in its place."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(v) for key, v in value.items()}
    return [finite(v) for v in value] if isinstance(value, list) else value


def work(options: argparse.Namespace, deadline: float, threads: int, tasks: Any, results: Any) -> None:
    """Take jobs until there are none, or the time is over; a row with ``error`` stands for a job that failed."""
    torch.set_num_threads(threads)
    device = torch.device(options.device)
    data = load_data(options.data, options.images, options.test_images, device)
    cuda = device.type == "cuda"
    main = torch.cuda.Stream() if cuda else None
    streams = [torch.cuda.Stream() for _ in range(8)] if cuda else []
    while time.time() < deadline:
        try:
            job = tasks.get(timeout=2.0)
        except queue.Empty:
            break
        poisoned = False
        try:
            rows = run_job(job, data, options, device, main, streams)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"[:300]
            where = traceback.format_exc().strip().splitlines()[-8:]
            key = {name: value for name, value in asdict(job).items() if name != "lrs"}
            rows = [{**key, "lr": lr, "error": text, "where": where} for lr in job.lrs]
            poisoned = cuda and ("CUDA" in text or "cuda" in text)
        results.put((job, [finite(row) for row in rows]))
        gc.collect()
        if poisoned:  # the context may be unusable; the parent starts another worker
            results.close()
            results.join_thread()
            os._exit(3)
        if cuda:
            torch.cuda.empty_cache()


def start_mps(folder: Path) -> bool:
    """Start NVIDIA's MPS, with which kernels of several processes run at once; False where it does not work."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    env = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    probe = "import torch; a = torch.ones(64, 64, device='cuda'); assert (a @ a).sum().item() == 64**3"
    try:
        for command, limit in (([control, "-d"], 20), ([sys.executable, "-c", probe], 60)):
            subprocess.run(command, env=os.environ | env, check=True, timeout=limit, capture_output=True)  # noqa: S603
    except (subprocess.SubprocessError, OSError) as error:
        print(f"MPS does not work here ({error}); processes share the GPU in time slices", flush=True)
        stop_mps(folder)
        return False
    os.environ.update(env)
    return True


def stop_mps(folder: Path) -> None:
    env = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
        os.environ.pop(name, None)
    try:
        subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", env=env, timeout=20, capture_output=True)  # noqa: S607
    except (subprocess.SubprocessError, OSError) as error:
        print(f"MPS did not stop: {error}", flush=True)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of the file without those of failed jobs; a line cut short by a kill is left out."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if "error" not in row:
            rows.append(row)
    return rows


def list_jobs(options: argparse.Namespace, rows: Iterable[dict[str, Any]]) -> list[Job]:
    """What is missing. First the methods that matter most for all networks, then method by method; longest first."""
    done = {(r["network"], r["method"], r["seed"], r["lr"]) for r in rows
            if r["images"] == options.images and r["epochs"] == options.epochs}  # fmt: skip
    jobs: dict[Job, tuple[float, ...]] = {}
    for network in options.networks:
        lrs = options.lrs or NETWORKS[network].lrs
        for place, method in enumerate(options.methods):
            actual = same_as(network, method)
            if actual is None:
                continue
            settings = METHODS[actual]
            early = settings is None or settings.first
            for seed in range(options.seeds):
                missing = tuple(lr for lr in lrs if (network, actual, seed, lr) not in done)
                if missing:
                    jobs.setdefault(
                        Job(network, actual, seed, missing), (0 if early else 1 + place, -NETWORKS[network].mflop, seed)
                    )
    return sorted(jobs, key=lambda job: (*jobs[job], job.method))


def run(options: argparse.Namespace) -> int:
    started = time.time()
    deadline = started + options.time_limit
    jobs = list_jobs(options, read_rows(options.out))
    if not jobs:
        print("nothing to run: all rows are there")
        return 0
    options.out.parent.mkdir(parents=True, exist_ok=True)
    torn = options.out.exists() and options.out.read_bytes()[-1:] not in (b"", b"\n")  # a line cut short by a kill
    workers = min(options.workers, len(jobs))
    threads = max(1, (os.cpu_count() or 1) // workers)
    folder = Path("/tmp" if options.device == "cuda" else ".") / f"practice-mps-{os.getpid()}"  # noqa: S108
    mps = options.device == "cuda" and options.mps == "auto" and workers > 1 and start_mps(folder)
    print(f"{len(jobs)} jobs, {sum(len(j.lrs) for j in jobs)} runs, {workers} workers of {threads} threads, "
          f"MPS {'on' if mps else 'off'}", flush=True)  # fmt: skip
    context = multiprocessing.get_context("spawn")
    tasks, results = context.Queue(), context.Queue()
    for job in jobs:
        tasks.put(job)

    def start_worker() -> Any:
        worker = context.Process(target=work, args=(options, deadline, threads, tasks, results))
        worker.start()
        return worker

    pool = [start_worker() for _ in range(workers)]
    ended, failed, restarts = 0, 0, 0
    try:
        with options.out.open("a") as file:
            if torn:
                file.write("\n")
            while True:
                try:
                    job, rows = results.get(timeout=0.5)
                except queue.Empty:
                    if not any(worker.is_alive() for worker in pool) and results.empty():
                        break
                    if time.time() > deadline + options.grace:
                        print("stopped: jobs still running at the end of the grace period are lost", flush=True)
                        break
                    for k, worker in enumerate(pool):
                        if worker.exitcode not in (None, 0) and restarts < 8 and time.time() < deadline:
                            restarts += 1
                            if mps and restarts == 3:
                                print("workers died: MPS is switched off for new ones", flush=True)
                                os.environ.pop("CUDA_MPS_PIPE_DIRECTORY", None)
                            pool[k] = start_worker()
                    continue
                for row in rows:
                    file.write(json.dumps(row) + "\n")
                file.flush()
                os.fsync(file.fileno())
                ended += 1
                failed += "error" in rows[0]
                print(f"{time.time() - started:6.1f} s  {ended}/{len(jobs)}  {describe(job, rows)}", flush=True)
    finally:
        for worker in pool:
            worker.join(timeout=5)
            if worker.is_alive():
                worker.terminate()
        tasks.cancel_join_thread()
        if mps:
            stop_mps(folder)
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{ended} of {len(jobs)} jobs in {time.time() - started:.0f} s, {failed} failed, {restarts} restarts")
    return 1 if failed else 0


def describe(job: Job, rows: list[dict[str, Any]]) -> str:
    head = f"{job.network} {job.method} seed {job.seed}: "
    if "error" in rows[0]:
        return head + "FAILED " + rows[0]["error"] + " | " + " / ".join(rows[0]["where"][-4:])
    text = " ".join("div" if r["diverged"] else f"{r['test_accuracy']:.1f}" for r in rows)
    first = rows[0]
    notes = "".join(f" [{first[key]}]" for key in ("engine_error", "rescale_error") if first.get(key))
    return (
        f"{head}{text}  |log lambda| {first['max_log_lambda']:.2f}  {first['engine']} {first['step_ms']:.2f} ms/step, "
        f"rescaling {first['rescale_seconds']:.1f} s, job {first['job_seconds']:.1f} s{notes}"
    )


# ---- summary


def summarize(options: argparse.Namespace) -> int:
    """Tables and the choice, from the rows that are there."""
    import pandas as pd
    from scipy import stats

    frame = pd.DataFrame(read_rows(options.out))
    if frame.empty:
        print(f"expected rows in {options.out}, got none")
        return 2
    settings = frame[["images", "epochs", "batch", "device"]].drop_duplicates()
    assert len(settings) == 1, f"expected runs of one setting in {options.out}, got:\n{settings}"
    frame = frame.drop_duplicates(["network", "method", "seed", "lr"], keep="last")
    cells: dict[tuple[str, str], pd.DataFrame] = {}
    for network in NETWORKS:
        for method in METHODS:
            actual = same_as(network, method)
            rows = frame[(frame.network == network) & (frame.method == actual)]
            if actual is not None and len(rows):
                cells[network, method] = rows.pivot(index="lr", columns="seed", values="test_accuracy")
    lines, differences = [], {}
    for (network, method), table in cells.items():
        base = cells.get((network, BASELINE))
        if base is None:
            continue
        seeds = sorted(set(table.dropna(axis=1).columns) & set(base.dropna(axis=1).columns))
        if not seeds or set(table.index) != set(base.index):
            continue  # not all learning rates are there yet
        means, base_means = table[seeds].mean(axis=1), base[seeds].mean(axis=1)
        best, base_best = means.idxmax(), base_means.idxmax()
        difference = (table.loc[best, seeds] - base.loc[base_best, seeds]).to_numpy(float)
        differences[network, method] = difference
        near = means[means >= means.max() - 1.0].index
        runs = frame[(frame.network == network) & (frame.method == same_as(network, method))]
        lines.append({
            "network": network, "held_out": NETWORKS[network].held_out, "method": method,
            "same_as": same_as(network, method) if same_as(network, method) != method else "", "seeds": len(seeds),
            "accuracy": means.max(), "best_lr": best, "at_edge": best in (means.index.min(), means.index.max()),
            "gain": difference.mean(), "interval": half_width(difference, stats), "lr_low": near.min(),
            "lr_high": near.max(), "lrs_near_best": len(near), "diverged": int(runs.diverged.sum()),
            "max_log_lambda": runs.max_log_lambda.max(), "at_bound": int(runs.at_bound.max()),
            "moved": int(runs.moved.max()), "rescale_seconds": runs.rescale_seconds.median(),
            **update_change(frame, network, same_as(network, method) or method, base_best),
        })  # fmt: skip
    result = pd.DataFrame(lines)
    spread = [d - d.mean() for (_, m), d in differences.items() if m != BASELINE and len(d) > 1]
    freedom = sum(len(d) - 1 for d in spread)
    pooled = math.sqrt(sum(float(d @ d) for d in spread) / freedom) if freedom else math.nan
    result["pooled_interval"] = [
        pooled * stats.t.ppf(0.975, freedom) / math.sqrt(n) if m != BASELINE and freedom else 0.0
        for n, m in zip(result.seeds, result.method, strict=True)
    ]
    result.to_csv(options.out.with_suffix(".csv"), index=False, float_format="%.5g")
    text = [f"# practice: {settings.iloc[0].images} images, {settings.iloc[0].epochs} epochs", ""]
    least, most = result.seeds.min(), result.seeds.max()
    text += [f"Intervals: 95%, paired by seed, Student's t; {least} to {most} seeds, so they are wide. The pooled "
             f"interval takes one deviation of paired differences ({pooled:.2f} points) for all networks and methods. "
             "An asterisk marks a best learning rate at the edge of its grid.", ""]  # fmt: skip
    text += markdown(result)
    for name, column in (("each cell's own interval", "interval"), ("the pooled interval", "pooled_interval")):
        text += ["", f"## Choice by {name}", "", *choice(result, column)]
    options.out.with_suffix(".md").write_text("\n".join(text) + "\n")
    print("\n".join(text))
    return 0


def half_width(values: np.ndarray, stats: Any) -> float:
    """Half of the 95% interval of the mean; infinite for one value."""
    if len(values) < 2:
        return math.inf
    return float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))


def update_change(frame: Any, network: str, method: str, lr: float) -> dict[str, float]:
    """Update-to-weight ratio in the first steps over the baseline's, by weight, at the baseline's best rate."""
    found = []
    for name in (method, BASELINE):
        rows = frame[(frame.network == network) & (frame.method == name) & (frame.lr == lr)]
        found.append({row.seed: row.update_ratio for row in rows.itertuples()})
    logs = [math.log(ratio / base[name]) for seed, base in found[1].items()
            for name, ratio in found[0].get(seed, {}).items() if ratio and base.get(name)]  # fmt: skip
    if not logs:
        return {"update_low": math.nan, "update_median": math.nan, "update_high": math.nan}
    low, median, high = np.exp(np.quantile(logs, (0.0, 0.5, 1.0)))
    return {"update_low": low, "update_median": median, "update_high": high}


def markdown(result: Any) -> list[str]:
    head = ("network", "method", "accuracy", "gain", "interval", "pooled", "best lr", "lrs within 1 point", "diverged",
            "max abs log lambda", "update ratio / baseline")  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in result.sort_values(["held_out"], kind="stable").itertuples():
        near = f"{row.lr_low:g} .. {row.lr_high:g} ({row.lrs_near_best})"
        update = f"{row.update_low:.2g} .. {row.update_median:.2g} .. {row.update_high:.2g}"
        method = row.method + (f" (= {row.same_as})" if row.same_as else "")
        network = row.network + (" (held out)" if row.held_out else "")
        best = f"{row.best_lr:g}{'*' if row.at_edge else ''}"
        cells = (network, method, f"{row.accuracy:.2f}", f"{row.gain:+.2f}", f"{row.interval:.2f}",
                 f"{row.pooled_interval:.2f}", best, near, str(row.diverged), f"{row.max_log_lambda:.2f}",
                 update)  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def choice(result: Any, column: str) -> list[str]:
    """The rule of the module's docstring, with the interval of the given column."""
    lines, passed = [], []
    known = set(result[(result.method == BASELINE) & ~result.held_out].network)
    for method in METHODS:
        if method == BASELINE:
            continue
        rows = result[(result.method == method) & ~result.held_out]
        needed = {n for n in known if same_as(n, method) is not None}
        if not len(rows) or set(rows.network) != needed:
            lines.append(f"- {method}: not judged, {len(rows)} of {len(needed)} networks are complete")
            continue
        harmed = [f"{r.network} ({r.gain:+.2f})" for r in rows.itertuples() if r.gain < -getattr(r, column)]
        # Where `exclude` has no meaning it is the default, so that means are over the same networks.
        filled = [result[(result.method == (method if n in needed else "default")) & (result.network == n)].gain
                  for n in sorted(known)]  # fmt: skip
        gain = float(np.mean([g.iloc[0] for g in filled if len(g)]))
        worst = rows.loc[rows.gain.idxmin()]
        held = result[(result.method == method) & result.held_out]
        apart = ", ".join(f"{r.network} {r.gain:+.2f}" for r in held.itertuples()) or "none"
        verdict = f"harms {', '.join(harmed)}" if harmed else "passes"
        lines.append(
            f"- {method}: {verdict}; mean gain {gain:+.2f}, worst {worst.network} {worst.gain:+.2f}; held out: {apart}"
        )
        if not harmed:
            passed.append((gain, method))
    lines += ["", f"Chosen: **{max(passed)[1]}**, mean gain {max(passed)[0]:+.2f}" if passed else "Chosen: none passes"]
    return lines


# ---- command line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="the .npz file that practice_data.py makes")
    parser.add_argument("--out", type=Path, default=Path("practice.jsonl"), help="rows, one run a line")
    parser.add_argument("--summarize", action="store_true", help="write tables and the choice, train nothing")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=[n for n in NETWORKS if n not in TINY])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--lrs", nargs="+", type=float, help="in place of each network's own grid")
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--images", type=int, default=20_000, help="training images")
    parser.add_argument("--test-images", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--time-limit", type=float, default=1e9, help="seconds after which no job is started")
    parser.add_argument("--grace", type=float, default=40.0, help="seconds that running jobs have after the limit")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--engine", choices=("auto", "branches", "graph", "eager"), default="auto")
    parser.add_argument("--mps", choices=("auto", "off"), default="auto")
    options = parser.parse_args()
    if options.summarize:
        return summarize(options)
    if not options.data:
        parser.error("expected --data FILE.npz; practice_data.py makes it")
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
