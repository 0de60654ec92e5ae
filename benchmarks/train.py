"""Speed of the training engine, on random images: python benchmarks/train.py [--device cuda] [--json FILE]

Records: benchmarks/records/train_*.json. What was learned on an H200 (torch 2.11), each found by profiling:

- Batch orders are made on the host. Unless that happens in advance, while the device works, it takes longer than steps.
- With cuBLAS, a step of 9 MLPs took 223 us: the update of the first layer, fused into the GEMM of its gradient, 56 us,
  the first GEMM 30. A Triton kernel for W -= G^T X took 80 to 127 us, copies in another layout gained nothing, and
  bfloat16 is not allowed for these networks.
- Hand-written kernels are gone: none made its network's training 1.25 times as fast and was simple. Whole layers for
  Hopper GPUs, which read a weight once, to use and to update it, made a step of 9 MLPs 1.22 times as fast and one of 9
  autoencoders (c = 1) 1.54 times; Triton kernels for BatchNorm and ENorm and a side stream gained less; fused
  convolutions made CIFAR-NV 1.23 times as fast, evaluation included (benchmarks/records/kernels_cuda.json). Times in
  benchmarks/records/train_cuda.json include all of them.
- Two or three streams (halves of a batch, conv nets in parallel) gain nothing: the device is full.
- CIFAR-NV: convolutions take 0.29 s an epoch, at 550 to 650 TFLOP/s in the large ones. A third of the rest is BatchNorm
  and max-pool as compiled.
- On a CPU, GEMMs take four fifths of a step. Torch's own BatchNorm, `index_select` (four times as fast as indexing) and
  the update as a plain GEMM instead of a batched one make it faster than a plain loop; runs of the paper's width are
  slower in a batch, as weights leave the cache. A DataLoader takes about three times as long as the engine.
"""

import argparse
import itertools
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path[:0] = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parents[1])]

from paper import cli, models
from paper.runs import training_specs
from paper.training.batched_mlps import BatchedTrainer
from paper.training.datasets import Split, Splits, factors, per_input
from paper.training.modules import ModuleTrainer
from paper.training.trainer import Run, Trainer

GRID = {"optimiser": {"name": "sgd"}, "batch": 128, "epochs": 1, "validation": 0, "test_images": 10_000}
MLP = {**GRID, "network": "mlp_3x500", "dataset": "cifar10", "images": 50_000,
       "model": {"kind": "mlp", "inputs": 3072, "hidden": [500] * 3, "outputs": 10, "activation": "relu"}}  # fmt: skip
CONV = {**GRID, "network": "cifar_nv", "model": {"kind": "cifar_nv", "width": 1.0, "image": 32}, "dataset": "cifar10",
        "images": 40_000, "validation": 10_000}  # fmt: skip
AUTO = {**GRID, "network": "autoencoder_c1", "model": {"kind": "autoencoder", "inputs": 784, "compression": 1},
        "dataset": "mnist", "images": 60_000}  # fmt: skip


def runs_of(grid: dict, methods: list[str], seeds: int, lr: float = 1e-3) -> list[Run]:
    specs = training_specs({**grid, "methods": methods, "lrs": [lr], "seeds": list(range(seeds))}, "paper")
    return [Run(spec, spec["seed"]) for spec in specs]


def random_splits(spec: dict, device: torch.device) -> Splits:
    shape = models.input_shape(spec["model"])

    def part(count: int) -> Split:
        images = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, device=device)
        return Split(images, torch.randint(0, 10, (count,), device=device))

    sizes = {"train": spec["images"], "validation": spec["validation"], "test": spec["test_images"]}
    channels = 1 if spec["dataset"] == "mnist" else 3
    scale, shift = (per_input(t, channels, spec["model"]).to(device) for t in factors(spec["dataset"]))
    return Splits({name: part(count) for name, count in sizes.items() if count}, scale, shift)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def timed(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Least wall time of several, in seconds, after one that does not count."""
    work()
    found = []
    for _ in range(repeats):
        wait(device)
        start = time.perf_counter()
        work()
        wait(device)
        found.append(time.perf_counter() - start)
    return min(found)


def epochs(trainer: Trainer, repeats: int) -> tuple[float, float]:
    """Seconds of one epoch of training, and of evaluation."""
    number = itertools.count(2)
    trained = timed(lambda: trainer.epoch(next(number)), trainer.device, repeats)
    return trained, timed(trainer.evaluate, trainer.device, repeats)


def on_gpu(device: torch.device, conv: bool) -> list[dict]:
    rows = []

    def add(work: str, seconds: float, target: float | None, **more: float) -> None:
        rows.append(
            {"work": work, "seconds": round(seconds, 4), "at most": target, **{k: round(v, 4) for k, v in more.items()}}
        )
        print(rows[-1], flush=True)

    def memory() -> float:
        """Peak since the last time, in GiB."""
        peak = torch.cuda.max_memory_allocated() / 2**30
        torch.cuda.reset_peak_memory_stats()
        return peak

    runs = runs_of(MLP, ["baseline", "pathcond", "enorm"], 3)
    splits = random_splits(runs[0].spec, device)
    start = time.perf_counter()
    trainer = BatchedTrainer(runs, splits, device)
    trainer.epoch(1)
    trainer.evaluate()
    wait(device)
    first = time.perf_counter() - start
    train, test = epochs(trainer, 5)
    add(
        "9 MLPs 3x500, epoch with evaluation",
        train + test,
        0.11,
        train=train,
        evaluation=test,
        first=first,
        GiB=memory(),
    )
    plain, _ = epochs(BatchedTrainer(runs_of(MLP, ["baseline"], 9), splits, device), 5)
    balanced, _ = epochs(BatchedTrainer(runs_of(MLP, ["enorm"], 9), splits, device), 5)
    add("ENorm's overhead a step, 9 MLPs", balanced / plain - 1, 0.15, plain=plain, enorm=balanced)
    mixed = BatchedTrainer(runs_of(MLP, ["baseline", "pathcond", "enorm"], 8), splits, device)
    train, test = epochs(mixed, 3)
    add("24 MLPs 3x500, epoch with evaluation", train + test, 0.41, train=train, evaluation=test, GiB=memory())
    del trainer, mixed, splits

    runs = runs_of(AUTO, ["baseline", "pathcond", "enorm"], 3)
    train, test = epochs(BatchedTrainer(runs, random_splits(runs[0].spec, device), device), 5)
    add("9 autoencoders c = 1, 500 epochs", 500 * (train + test), 50.0, train=train, evaluation=test, GiB=memory())

    if not conv:
        return rows
    for method in ("baseline", "enorm"):
        run = runs_of(CONV, [method], 1)[0]
        start = time.perf_counter()
        trainer = ModuleTrainer(run, random_splits(run.spec, device), device)
        trainer.epoch(1)
        trainer.evaluate()
        wait(device)
        first = time.perf_counter() - start
        train, test = epochs(trainer, 3)
        add(
            f"CIFAR-NV {method}, epoch of 40,000, training part", train, 0.5, evaluation=test, first=first, GiB=memory()
        )
    return rows


def plain_loop(module: nn.Module, images: Tensor, labels: Tensor, normal: tuple[Tensor, Tensor], batch: int) -> None:
    """What one would write: autograd and torch.optim on tensors in memory."""
    optimiser = torch.optim.SGD(module.parameters(), lr=1e-3)
    order = torch.randperm(len(images))
    for first in range(0, len(images), batch):
        at = order[first : first + batch]
        optimiser.zero_grad()
        functional.cross_entropy(module(images[at].float() * normal[0] + normal[1]), labels[at]).backward()
        optimiser.step()


def loader_loop(module: nn.Module, dataset: torch.utils.data.Dataset, batch: int) -> None:
    """What tutorials write: a DataLoader with a transform an image."""
    optimiser = torch.optim.SGD(module.parameters(), lr=1e-3)
    for x, y in torch.utils.data.DataLoader(dataset, batch, shuffle=True):
        optimiser.zero_grad()
        functional.cross_entropy(module(x), y).backward()
        optimiser.step()


class Pictures(torch.utils.data.Dataset):
    """Images as torchvision gives them: a picture, then ToTensor and Normalize."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        from torchvision import transforms
        from torchvision.transforms.functional import to_pil_image

        self.pictures, self.labels = [to_pil_image(image.view(3, 32, 32)) for image in images], labels
        self.transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.25,) * 3)])

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.transform(self.pictures[index]), self.labels[index]


def on_cpu(device: torch.device, images: int) -> list[dict]:
    """Medians of ratios, all variants interleaved in one process: the paper's network, and a narrow one."""
    return [row for width in (500, 100) for row in compare(device, images, width)]


def compare(device: torch.device, images: int, width: int) -> list[dict]:
    grid = {**MLP, "model": {**MLP["model"], "width": width}, "images": images, "test_images": 10}
    runs = runs_of(grid, ["baseline"], 3)
    splits = random_splits(runs[0].spec, device)
    engine, batched = [BatchedTrainer([run], splits, device) for run in runs], BatchedTrainer(runs, splits, device)
    modules = [models.make(run.spec["model"], run.seed) for run in runs]
    pictures = Pictures(splits.train.images, splits.train.labels)
    ways = {
        "engine": lambda: [trainer.epoch(1) for trainer in engine],
        "engine, as one batched model": lambda: batched.epoch(1),
        "plain loop": lambda: [
            plain_loop(m, splits.train.images, splits.train.labels, (splits.scale, splits.shift), 128) for m in modules
        ],
        "DataLoader with transforms": lambda: [loader_loop(m, pictures, 128) for m in modules],
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(13):
        for name, work in ways.items():
            start = time.perf_counter()
            work()
            taken[name].append(time.perf_counter() - start)
    rows = []
    for name, seconds in taken.items():
        ratios = [a / b for a, b in zip(seconds[1:], taken["engine"][1:], strict=True)]  # the first does not count
        rows.append({"work": f"3 MLPs 3x{width}, epoch of {images}: {name}", "seconds": round(min(seconds), 3),
                     "times the engine": round(statistics.median(ratios), 2)})  # fmt: skip
    for row in rows:
        print(row, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=2048, help="images of the CPU comparison")
    parser.add_argument("--no-conv", action="store_true", help="without the convolutional network, on a GPU")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    rows = on_gpu(device, not arguments.no_conv) if device.type == "cuda" else on_cpu(device, arguments.images)
    if arguments.json:
        peak = {"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}
        arguments.json.write_text(json.dumps({**cli.environment(device), **peak, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
