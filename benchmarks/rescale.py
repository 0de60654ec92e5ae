"""How fast is the rescaling? Against the literal algorithm, by step, by number of parameters, and in memory.

    python benchmarks/rescale.py [--device cuda] [--out FOLDER] [--skip-literal] [--largest 1e8] [--skip-models]
        [--processor-time]

Times are medians after warm-up; compare them within one run. Against the literal algorithm and for torchvision's models
they are the best of several, interleaved: other work on a machine only adds time. Memory is the peak of the
resident set above that before the call, one process per model. Records of runs are in ``benchmarks/records``.
With ``--processor-time`` the times of the paper's networks are those of the processor on one thread, for machines with
other work.

What was found
- Literal algorithm, unit by unit: about 0.2 ms a unit and sweep, nearly all of it the overhead of small tensor calls.
  Per-layer matrix-vector products with a scalar recurrence in plain Python give the same iterates.
- Graph: two forward passes on fake tensors. The rest is torch's own dispatch.
- On the CPU, half of the rest are the convolutions of diag(G) themselves. They are made in float32 where the model is:
  convolutions in float64 are several times slower.
- diag(G): logarithms of scales kept on the device cost five tiny kernels each; kept on the host, one wait a layer.
- Solver: entries are summed to blocks between units on the device, and moved to the CPU in one transfer. There a layer
  takes a matrix-vector product per block, and a loop over plain numbers: 0.4 us a unit on aarch64. Newton's method for
  the recurrence of a whole layer is no faster: three rounds of twenty small tensor calls each.
- Apply: the factors of all parameters are moved to the device together; a bound for each parameter checks its range.
- Summing g in its own float32 instead of float64 changes u by 4e-7 and saves 3 ms of an MLP's 40.
"""

import argparse
import copy
import gc
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchvision

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "src")]

import pathcond
from paper.models import cifar_nv, mlp, resnet18_c
from tests.reference import literal_iterates, problem_of

NETS = {"MLP 3x500": mlp, "CIFAR-NV": cifar_nv, "ResNet-18-C": resnet18_c}
MODELS = {"resnet50": 8, "vgg16": 8, "vit_b_16": 8, "mlp": 8}  # batch size of the call whose memory is measured


def now() -> float:
    return time.process_time() if "--processor-time" in sys.argv else time.perf_counter()


def sync(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def warm_up(device: str) -> None:
    """Keep a GPU busy for two seconds: an idle one has a lower clock."""
    start, x = time.perf_counter(), torch.ones(4096, 4096, device=device) if device == "cuda" else None
    while x is not None and time.perf_counter() - start < 2:
        x @ x
        sync(device)


def clock(work: Callable[[], Any], device: str, repeats: int, before: Callable[[], None] | None = None) -> list[float]:
    """Seconds of each repeat, after two warm-ups; ``before`` is run before each, outside the time.

    As in ``timeit``, garbage is not collected meanwhile.
    """
    times = []
    for i in range(repeats + 2):
        if before is not None:
            before()
        gc.collect()
        gc.disable()
        sync(device)
        start = now()
        try:
            work()
            sync(device)
        finally:
            gc.enable()
        if i >= 2:
            times.append(now() - start)
    return times


def steps(model: torch.nn.Module, x: torch.Tensor, graph: Any, device: str) -> tuple[dict[str, float], Any]:
    """Rescale as in the paper's experiments; returns the seconds of each step, and the solution."""
    marks = [now()]

    def done(result: Any) -> Any:
        sync(device)
        marks.append(now())
        return result

    g = done(pathcond.compute_diag_g(model, x, graph=graph, pooling="plain"))
    solution = done(pathcond.solve(graph, g))
    done(pathcond.apply_scales_(model, graph, solution.log_scales))
    return {s: b - a for s, a, b in zip(("diag_g", "solve", "apply"), marks, marks[1:], strict=False)}, solution


def literal_seconds(
    model: torch.nn.Module, x: torch.Tensor, ours: Callable[[], list[float]]
) -> tuple[float, list[float], torch.Tensor]:
    """Time of the literal algorithm with ten sweeps, graph and diag(G) included; times of ours; the literal u.

    Ours is run between any two sweeps of the literal one, so that both see the same load. The literal time is that of
    its fastest sweep, ten times.
    """
    start = now()
    graph = pathcond.extract_graph(model, x, batchnorm="exclude")
    g = pathcond.compute_diag_g(model, x, graph=graph, pooling="plain")
    iterates = literal_iterates(problem_of(graph, g))
    seconds, sweeps, times, u = now() - start, list[float](), list[float](), torch.zeros(0)
    for _ in range(10):
        times += ours()
        start = now()
        u = next(iterates)
        sweeps.append(now() - start)
    return seconds + 10 * min(sweeps), times, u


def one_net(name: str, device: str, repeats: int, literal: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model = NETS[name]().to(device).eval()
    x = torch.ones(1, 3, 32, 32, device=device)
    start = copy.deepcopy(model.state_dict())
    graph = pathcond.extract_graph(model, x, batchnorm="exclude")
    reports = []

    def restore() -> None:
        model.load_state_dict(start)

    def reused() -> None:
        reports.append(steps(model, x, graph, device))

    def whole() -> None:
        steps(model, x, pathcond.extract_graph(model, x, batchnorm="exclude"), device)

    extract = clock(lambda: pathcond.extract_graph(model, x, batchnorm="exclude"), device, repeats)
    clock(reused, device, repeats, restore)
    everything = clock(whole, device, repeats, restore)
    seconds = {s: statistics.median(taken[s] for taken, _ in reports[2:]) for s in ("diag_g", "solve", "apply")}
    row: dict[str, Any] = {
        "net": name, "parameters": sum(p.numel() for p in model.parameters()), "units": graph.units,
        "graph": statistics.median(extract), **seconds, "after_graph": sum(seconds.values()),
        "everything": statistics.median(everything),
    }  # fmt: skip
    if literal:
        model.load_state_dict(start)
        slow, times, u = literal_seconds(copy.deepcopy(model), x, lambda: clock(whole, device, 2, restore))
        apart = float((u / 2 - reports[-1][1].log_scales).abs().amax())
        row["everything"] = min(times)
        row |= {"literal": slow, "speed_up": slow / row["everything"], "literal_differs_by": apart}
    return row


def peak_memory(work: Callable[[], Any], device: str) -> int:
    """Most bytes in use during some work above those in use before; on a CPU of the whole process (Linux)."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = resident("VmRSS")
    work()
    return resident("VmHWM") - before


def resident(field: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def scaled_mlp(parameters: float) -> torch.nn.Module:
    """Eight hidden layers of one width, sized to a number of parameters."""
    width = max(8, round((parameters / 8) ** 0.5))
    return mlp(width, (width,) * 8, width, batchnorm=False)


def one_size(parameters: float, device: str) -> dict[str, float]:
    """Time and peak extra memory of one rescaling, in units of the parameters' own memory."""
    torch.manual_seed(0)
    small = scaled_mlp(1e5).to(device)
    pathcond.rescale_(small, torch.ones(1, small[1].in_features, device=device), check=False)
    model = scaled_mlp(parameters).to(device)
    x = torch.ones(1, model[1].in_features, device=device)
    own = sum(p.numel() * p.element_size() for p in model.parameters())
    graph = pathcond.extract_graph(model, x)
    extra = peak_memory(lambda: pathcond.rescale_(model, x, graph=graph, check=False), device)
    times = clock(lambda: pathcond.rescale_(model, x, graph=graph, check=False), device, 3)
    return {"parameters": own / 4, "seconds": statistics.median(times), "extra_memory": extra / own}


def one_model(name: str) -> dict[str, Any]:
    """Peak extra memory of the default call on a batch; on one core, times of ``rescale_`` and of a training step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    pathcond.rescale_(resnet18_c(), torch.randn(2, 3, 32, 32))  # what is loaded once
    model = scaled_mlp(1e8) if name == "mlp" else torchvision.models.get_model(name, weights=None)
    shape = (model[1].in_features,) if name == "mlp" else (3, 224, 224)
    own = sum(p.numel() * p.element_size() for p in model.parameters())
    batch = torch.randn(MODELS[name], *shape)
    extra = peak_memory(lambda: pathcond.rescale_(model, batch), "cpu")
    model.eval()  # BatchNorm cannot train on a batch of one
    x, times, step = batch[:1], list[dict[str, float]](), list[float]()
    for _ in range(3):
        start = now()
        model(x).sum().backward()
        step.append(now() - start)
        model.zero_grad()
        times.append(dict(pathcond.rescale_(model, x).seconds))
    best = {key: min(t[key] for t in times) for key in times[0]}
    check = best.pop("check")
    seconds = sum(best.values())
    return {
        "model": name, "parameters": own / 4, "extra_memory": extra / own, "rescale": seconds, "check": check,
        "forward_backward": min(step), "ratio": seconds / min(step),
    }  # fmt: skip


def in_processes(device: str, names: list[str]) -> list[dict[str, Any]]:
    """Rows of sizes or models, each from a process of its own, so that each peak is its own."""
    command = [sys.executable, "-W", "ignore", __file__, "--device", device, "--one"]
    runs = [subprocess.run([*command, name], check=True, capture_output=True, text=True) for name in names]  # noqa: S603
    return [json.loads(run.stdout) for run in runs]


def sizes(largest: float) -> list[str]:
    return [str(10 ** (exponent / 2)) for exponent in range(10, 1 + round(2 * len(f"{largest:.0f}") - 2))]


def draw(folder: Path) -> None:
    """One picture of all records in a folder: time against the number of parameters."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(5.2, 3.6), layout="constrained")
    for (path, colour), marker in zip(
        zip(sorted(folder.glob("rescale_*.json")), ("#0072B2", "#D55E00"), strict=False), "os", strict=False
    ):
        record = json.loads(path.read_text())
        rows = record["sizes"]
        if not rows:
            continue
        p, seconds = [r["parameters"] for r in rows], [r["seconds"] for r in rows]
        axes.loglog(p, seconds, marker + "-", color=colour, label=record["hardware"].split(";")[0])
        axes.loglog(p, [seconds[-1] * q / p[-1] for q in p], ":", color=colour, lw=1)
    axes.plot([], [], ":", color="0.4", lw=1, label="proportional to p")
    axes.set(xlabel="number of parameters p", ylabel="seconds", ylim=(1e-3, None))
    axes.set_title("Rescaling an MLP with 8 hidden layers, graph kept", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(folder / "rescale.png", dpi=160)


def hardware(device: str) -> str:
    name = (
        torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    kind = "; processor time" if "--processor-time" in sys.argv else ""
    return f"{name}; torch {torch.__version__}; Python {platform.python_version()}{kind}"


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as markdown, times in milliseconds."""
    times = ("graph", "diag_g", "solve", "apply", "after_graph", "everything", "rescale", "check", "forward_backward")
    heads = list(rows[0])
    cells = [[f"{1000 * r[k]:.1f} ms" if k in times else f"{r[k]:.4g}" if isinstance(r[k], float) else str(r[k])
              for k in heads] for r in rows]  # fmt: skip
    return "\n".join("| " + " | ".join(line) + " |" for line in [heads, ["---"] * len(heads), *cells])


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the rescaling.")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--skip-literal", action="store_true", help="do not run the literal algorithm")
    parser.add_argument("--largest", type=float, default=1e8, help="parameters of the largest MLP; 0 to skip sizes")
    parser.add_argument("--out", type=Path, help="folder for the tables, numbers and the plot")
    parser.add_argument("--skip-models", action="store_true", help="do not measure torchvision's models")
    parser.add_argument("--processor-time", action="store_true", help="of the paper's networks, on one thread")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.processor_time:
        torch.set_num_threads(1)
    if options.one:
        model = options.one in MODELS
        print(json.dumps(one_model(options.one) if model else one_size(float(options.one), options.device)))
        return
    print(hardware(options.device))
    warm_up(options.device)
    nets = [one_net(name, options.device, options.repeats, not options.skip_literal) for name in NETS]
    print(table(nets))
    by_size = in_processes(options.device, sizes(options.largest)) if options.largest else []
    models = [] if options.skip_models or options.device != "cpu" else in_processes("cpu", list(MODELS))
    for rows in filter(None, (by_size, models)):
        print(table(rows))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        record = {"hardware": hardware(options.device), "nets": nets, "sizes": by_size, "models": models}
        (options.out / f"rescale_{options.device}.json").write_text(json.dumps(record, indent=1) + "\n")
        draw(options.out)


if __name__ == "__main__":
    main()
