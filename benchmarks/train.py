"""Speed of the training engine, on random images: python benchmarks/train.py [--device cuda] [--json FILE]

Records: benchmarks/records/train_*.json. What was learned on an H200 (torch 2.11), each found by profiling:

- Orders of batches are made on the host; unless that is done ahead, while the device works, it takes longer than steps.
- With cuBLAS, a step of 9 MLPs took 223 us: the update of the first layer, fused into the product that makes its
  gradient, 56 us, the first product 30. A Triton kernel for W -= G^T X took 80 to 127 us, copies with the other axis
  first gained nothing, and bfloat16 is not allowed for these networks.
- Products in TF32 want the axis they sum over contiguous, which W -= G^T X and G W have not. Kernels that turn operands
  on their way to the tensor cores (`glide`, `hopper`) read a weight once, to use and to update it: 24 us for both
  products, where cuBLAS takes 48 (9 networks, 784 x 784), and 56 us for the update of the first MLP layer with the next
  step's first product, where cuBLAS takes 83. Bias, BatchNorm and activation are in the same kernels, both ways. A step
  of 9 MLPs: 171 us in place of 218; of 9 autoencoders: 161 in place of 254. They have a program for 64 units of a run,
  so few runs leave the device idle: an epoch of 1, 3 and 5 autoencoders takes 53, 58 and 62 ms, with cuBLAS 40, 54 and
  69. `stack` asks for 5.
- A compiled way back through BatchNorm took 11.6 us, since sums over examples are made in a pass of their own; as one
  kernel (`stacked`) 8.4. Trying out pointwise configurations made the small kernels slower.
- ENorm is one kernel a layer, runs beside the next step's first layer, and leaves the rows of the first weight to
  factors; its sums of squares come out of the update. So 23% became 10%.
- Two or three streams of work at once (halves of a stack, conv nets side by side) gain nothing: the device is full.
- CIFAR-NV: convolutions take 0.29 s an epoch, at 550 to 650 TFLOP/s in the large ones. A third of the rest was
  BatchNorm and max-pool as compiled; one kernel for both (`maps`) starts back from the pooled map. 10 outputs are
  padded to 64, and there is no bias where BatchNorm takes it away. Where the compiler sees through own kernels it fills
  their results before they are written, 34 ms an epoch, so they are opaque to it. Bias and ReLU in the call to cuDNN
  save 12 ms an epoch, and 17 of 184 in evaluation. Of a batch's images, 3 channels padded to 8, cuDNN makes 128
  channels in 49 us and the weight's gradient in 85; kernels for this layer (`first`) take 13 and 48. With them a
  baseline's epoch with evaluation takes 0.583 s, 0.61 before.
- On a CPU, products take four fifths of a step. Torch's own BatchNorm, `index_select` (four times as fast as indexing)
  and the update as a product of matrices, not of stacks of one, make it faster than a plain loop; runs of the paper's
  width are slower side by side, as weights leave the cache. A DataLoader takes about three times as long as the engine.
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

from paper import hardware, models
from paper.cells import cells_of
from paper.normalise import factors
from paper.train.alone import Alone
from paper.train.backend import Backend, Run
from paper.train.sets import Part, Sets, _shaped
from paper.train.together import Together

GRID = {"optimiser": {"name": "sgd"}, "batch": 128, "epochs": 1, "validation": 0, "test_images": 10_000}
MLP = {**GRID, "model": {"kind": "mlp", "inputs": 3072, "width": 500, "outputs": 10, "activation": "relu"},
       "hidden_layers": [3], "dataset": "cifar10", "images": 50_000}  # fmt: skip
CONV = {**GRID, "model": {"kind": "cifar_nv", "width": 1.0, "image": 32}, "dataset": "cifar10", "images": 40_000,
        "validation": 10_000}  # fmt: skip
AUTO = {**GRID, "model": {"kind": "autoencoder", "inputs": 784}, "compressions": [1], "dataset": "mnist",
        "images": 60_000}  # fmt: skip


def runs_of(grid: dict, methods: list[str], seeds: int, lr: float = 1e-3) -> list[Run]:
    cells = cells_of("", {**grid, "methods": methods, "lrs": [lr], "seeds": list(range(seeds))}, "paper")
    return [Run(cell, seed) for cell in cells for seed in cell["seeds"]]


def random_sets(cell: dict, device: torch.device) -> Sets:
    shape = models.input_shape(cell["model"])

    def part(count: int) -> Part:
        images = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, device=device)
        return Part(images, torch.randint(0, 10, (count,), device=device))

    sizes = {"train": cell["images"], "validation": cell["validation"], "test": cell["test_images"]}
    channels = 1 if cell["dataset"] == "mnist" else 3
    scale, shift = (_shaped(t, channels, cell["model"]).to(device) for t in factors(cell["dataset"]))
    return Sets({name: part(count) for name, count in sizes.items() if count}, scale, shift)


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


def epochs(backend: Backend, repeats: int) -> tuple[float, float]:
    """Seconds of one epoch of training, and of evaluation."""
    number = itertools.count(2)
    trained = timed(lambda: backend.epoch(next(number)), backend.device, repeats)
    return trained, timed(backend.evaluate, backend.device, repeats)


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
    sets = random_sets(runs[0].cell, device)
    start = time.perf_counter()
    backend = Together(runs, sets, device)
    backend.epoch(1)
    backend.evaluate()
    wait(device)
    first = time.perf_counter() - start
    train, test = epochs(backend, 5)
    add(
        "9 MLPs 3x500, epoch with evaluation",
        train + test,
        0.11,
        train=train,
        evaluation=test,
        first=first,
        GiB=memory(),
    )
    plain, _ = epochs(Together(runs_of(MLP, ["baseline"], 9), sets, device), 5)
    balanced, _ = epochs(Together(runs_of(MLP, ["enorm"], 9), sets, device), 5)
    add("ENorm's overhead a step, 9 MLPs", balanced / plain - 1, 0.15, plain=plain, enorm=balanced)
    mixed = Together(runs_of(MLP, ["baseline", "pathcond", "enorm"], 8), sets, device)
    train, test = epochs(mixed, 3)
    add("24 MLPs 3x500, epoch with evaluation", train + test, 0.41, train=train, evaluation=test, GiB=memory())
    del backend, mixed, sets

    runs = runs_of(AUTO, ["baseline", "pathcond", "enorm"], 3)
    train, test = epochs(Together(runs, random_sets(runs[0].cell, device), device), 5)
    add("9 autoencoders c = 1, 500 epochs", 500 * (train + test), 50.0, train=train, evaluation=test, GiB=memory())

    if not conv:
        return rows
    for method in ("baseline", "enorm"):
        run = runs_of(CONV, [method], 1)[0]
        start = time.perf_counter()
        backend = Alone(run, random_sets(run.cell, device), device)
        backend.epoch(1)
        backend.evaluate()
        wait(device)
        first = time.perf_counter() - start
        train, test = epochs(backend, 3)
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
    """Medians of ratios, all ways in turns in one process: the paper's network, and a narrow one on the same images."""
    return [row for width in (500, 100) for row in compare(device, images, width)]


def compare(device: torch.device, images: int, width: int) -> list[dict]:
    grid = {**MLP, "model": {**MLP["model"], "width": width}, "images": images, "test_images": 10}
    runs = runs_of(grid, ["baseline"], 3)
    sets = random_sets(runs[0].cell, device)
    engine, batched = [Together([run], sets, device) for run in runs], Together(runs, sets, device)
    modules = [models.make(run.cell["model"], run.seed) for run in runs]
    pictures = Pictures(sets.train.images, sets.train.labels)
    ways = {
        "engine": lambda: [backend.epoch(1) for backend in engine],
        "engine, as one batched model": lambda: batched.epoch(1),
        "plain loop": lambda: [
            plain_loop(m, sets.train.images, sets.train.labels, (sets.scale, sets.shift), 128) for m in modules
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
        arguments.json.write_text(json.dumps({**hardware.record(device), **peak, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
