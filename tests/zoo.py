"""The zoo: rescale every classification model of torchvision and 100 convolutional models of timm, and compare outputs.

Each model gets random weights, random BatchNorm statistics and, where its parameters start as constants, random values
there too, so that no mistake hides behind a zero. Then

1. random log-scales (normal, standard deviation 1) are applied in float64, and outputs are compared with the ones
   before, in eval and in training mode;
2. they are undone, the model is cast to float32, and ``pathcond.rescale_`` runs as a user would call it.

A model whose random weights amplify rounding so much that its float32 output is off by more than the tolerance before
anything is rescaled counts as ``noisy``: float64 decides there, and float32 only bounds the change by that error.

Run ``python -m tests.zoo --help`` for the options. The exit status is 1 if a model fails. With a limit on the time the
models come in an order that mixes the families, the same each time, and those left out are counted.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
from torch import Tensor, nn

import pathcond
from pathcond.record import tensors_in

SEED = 0
BATCH = 2
EXACT = 1e-9  # largest relative change of an output in float64
CLOSE = 1e-4  # and in float32
NOISY = 10.0  # times the model's own rounding error in float32, where that is above CLOSE already

# Families without any activation but ReLU: most of their units must be free.
PURE_RELU = (
    "alexnet", "vgg*", "resnet*", "wide_resnet*", "resnext*", "densenet*", "googlenet", "inception_v3", "squeezenet*",
    "mnasnet*", "shufflenet*", "regnet_x_*",
)  # fmt: skip

# Inputs are 64x64 except where the architecture asks for more.
SIZES = {
    "torchvision": {"inception_v3": 299, "maxvit_t": 224, "vit_h_14": 56},
    "timm": {"inception_v3": 128, "inception_v4": 128, "inception_resnet_v2": 128},
}

TIMM = [
    "resnet18", "resnet26t", "resnet34d", "resnet50", "resnet50_gn", "resnet33ts", "resnet51q", "resnetaa34d",
    "resnetblur18", "resnetrs50", "wide_resnet50_2", "resnext50_32x4d", "resnext26ts", "seresnet18",
    "seresnext26d_32x4d", "legacy_seresnet18", "legacy_seresnext26_32x4d", "ecaresnet26t", "ecaresnetlight",
    "ecaresnext26t_32x4d", "gcresnet33ts", "skresnet18", "skresnext50_32x4d", "res2net50_26w_4s", "res2next50",
    "resnest14d", "resnest50d_4s2x40d", "resnetv2_18d", "resnetv2_50", "resnetv2_50d_gn", "resnetv2_50d_frn",
    "resnetv2_50x1_bit", "nf_resnet26", "nf_seresnet26", "nf_ecaresnet26", "nf_regnet_b0", "nfnet_l0", "eca_nfnet_l0",
    "dm_nfnet_f0", "densenet121", "densenetblur121d", "rdnet_tiny", "vgg11", "vgg13_bn", "regnetx_002", "regnetx_008",
    "regnety_004", "regnety_040_sgn", "regnetz_005", "regnetz_b16", "regnetz_b16_evos", "regnetv_040",
    "mobilenetv1_100", "mobilenetv2_100", "mobilenetv3_large_100", "tf_mobilenetv3_small_minimal_100",
    "mobilenetv4_conv_small", "mobilenetv4_conv_blur_medium", "mobileone_s0", "efficientnet_b0", "efficientnet_lite0",
    "efficientnet_es", "efficientnet_b0_gn", "efficientnet_blur_b0", "efficientnet_cc_b0_4e", "tf_efficientnet_b0",
    "efficientnetv2_rw_t", "mnasnet_small", "semnasnet_075", "spnasnet_100", "fbnetc_100", "mixnet_s", "tf_mixnet_s",
    "hardcorenas_a", "lcnet_050", "tinynet_e", "rexnet_100", "ghostnet_100", "ghostnetv2_100", "repghostnet_050",
    "repvgg_a0", "gernet_s", "convnext_atto", "convnextv2_atto", "hrnet_w18_small", "dla34", "dla60_res2net", "dpn68",
    "inception_v3", "inception_v4", "inception_resnet_v2", "xception41", "legacy_xception", "cspresnet50",
    "cspdarknet53", "cs3darknet_s", "darknetaa53", "tresnet_m", "selecsls42", "ese_vovnet19b_dw",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """What came out for one model; errors are relative to the largest entry of the output."""

    family: str
    model: str
    parameters: int = 0
    units: int = 0
    frozen: int = 0
    eval_error: float = float("nan")
    train_error: float = float("nan")
    float32_error: float = float("nan")
    rounding: float = float("nan")
    graph_seconds: float = float("nan")
    seconds: float = float("nan")
    status: str = "ok"
    note: str = ""
    reasons: tuple[pathcond.Frozen, ...] = field(default=(), repr=False)

    def cells(self) -> list[str]:
        """The row's text, in the order of :data:`COLUMNS`."""
        errors = [f"{e:.0e}" if e == e else "-" for e in (self.eval_error, self.train_error, self.float32_error)]
        times = [f"{s:.2f}" if s == s else "-" for s in (self.graph_seconds, self.seconds)]
        millions = f"{self.parameters / 1e6:.1f}"
        return [self.family, self.model, millions, str(self.units), str(self.frozen), *errors, *times, self.status]


COLUMNS = {
    "family": 11, "model": 34, "M params": 8, "free": 7, "frozen": 7, "eval": 6, "train": 6, "float32": 7,
    "graph s": 7, "total s": 7, "status": 7,
}  # fmt: skip


def names(part: str | None = None, only: str = "*") -> Iterator[tuple[str, str]]:
    """Family and name of every model of the zoo, in order.

    Args:
        part: ``torchvision``, ``timm``, or None for both.
        only: shell pattern that names must match.
    """
    listed = {"torchvision": torchvision.models.list_models(module=torchvision.models), "timm": TIMM}
    for family, found in listed.items():
        if part in (None, family):
            yield from ((family, name) for name in found if fnmatch.fnmatch(name, only))


def in_order(minutes: float, part: str | None = None, only: str = "*") -> list[tuple[str, str]]:
    """The same, with families mixed if there is a limit on the time."""
    listed = list(names(part, only))
    if minutes < math.inf:
        random.Random(SEED).shuffle(listed)  # noqa: S311
    return listed


def build(family: str, name: str) -> tuple[nn.Module, Tensor]:
    """A model with random weights, and a batch of two random images; shapes (2, 3, size, size)."""
    torch.manual_seed(SEED)
    size = SIZES[family].get(name, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if family == "timm":
            model = timm.create_model(name, pretrained=False)
        else:
            options: dict[str, Any] = {"image_size": size} if name.startswith("vit_") else {}
            options |= {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
            model = torchvision.models.get_model(name, weights=None, **options)
    randomise_(model)
    return model, torch.randn(BATCH, 3, size, size)


@torch.no_grad()
def randomise_(model: nn.Module) -> None:
    """Random BatchNorm statistics, and random values for every parameter that starts as a constant."""
    for module in model.modules():
        mean, var = getattr(module, "running_mean", None), getattr(module, "running_var", None)
        if isinstance(mean, Tensor) and isinstance(var, Tensor):
            mean.normal_(0.0, 0.1)
            var.uniform_(0.5, 2.0)
    for p in model.parameters():
        low, high = torch.aminmax(p)
        if low == high:
            p.normal_(0.0, 0.1) if low == 0 else p.uniform_(0.5, 1.5)


@torch.no_grad()
def outputs(model: nn.Module, x: Tensor, training: bool) -> list[Tensor]:
    """Outputs in a mode, with the same random draws each time; buffers and modes are left as found."""
    buffers = [(b, b.clone()) for b in model.buffers()]
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.train(training)
        torch.manual_seed(SEED)
        return tensors_in(model(x))
    finally:
        for buffer, value in buffers:
            buffer.copy_(value)
        for module, mode in modes:
            module.training = mode


def change(before: list[Tensor], after: list[Tensor]) -> float:
    """Largest change of an output relative to its largest entry; NaN if one is not finite."""
    found = [(b - a).abs().amax() / b.abs().amax() for b, a in zip(before, after, strict=True)]
    return float(torch.stack(found).amax())


def check(family: str, name: str, make: Callable[[str, str], tuple[nn.Module, Tensor]] = build) -> Row:
    """Rescale one model at random and as ``rescale_`` does, and compare outputs.

    Args:
        family: ``torchvision`` or ``timm``.
        name: the model's name there.
        make: builds the model and a batch of inputs.

    Returns:
        The model's row. Its status is ``ok``, ``noisy``, ``refused`` (a clear error instead of a graph) or ``FAIL``.
    """
    row = Row(family, name)
    try:
        model, x = make(family, name)
        row = replace(row, parameters=sum(p.numel() for p in model.parameters()))
        row = _check_random(row, model, x)
        if row.status == "ok":
            row = _check_rescale(row, model.float(), x.float())
    except Exception as error:  # one broken model must not hide the others
        return replace(row, status="FAIL", note=f"{type(error).__name__}: {error}")
    return row


def _check_random(row: Row, model: nn.Module, x: Tensor) -> Row:
    """Random scales in float64, in both modes; the model is given back as it was, up to rounding."""
    rough = [t.double() for t in outputs(model, x, training=False)]
    model, x = model.double(), x.double()
    start = time.perf_counter()
    try:
        graph = pathcond.extract_graph(model, x[:1])
    except pathcond.PathCondError as error:
        return replace(row, status="refused" if str(error) else "FAIL", note=str(error) or "refused without a message")
    seconds = time.perf_counter() - start
    u = torch.randn(graph.units, dtype=torch.float64, generator=torch.Generator().manual_seed(SEED))
    before = [outputs(model, x, training) for training in (False, True)]
    pathcond.apply_scales_(model, graph, u)
    errors = [change(b, outputs(model, x, training)) for b, training in zip(before, (False, True), strict=True)]
    pathcond.apply_scales_(model, graph, -u)
    row = replace(
        row, units=graph.units, frozen=graph.frozen_units, eval_error=errors[0], train_error=errors[1],
        rounding=change(before[0], rough), graph_seconds=seconds, note="; ".join(graph.notes), reasons=graph.frozen,
    )  # fmt: skip
    faults = [
        f"{mode} outputs moved by {error:.1e} in float64"
        for mode, error in zip(("eval", "train"), errors, strict=True)
        if not error <= EXACT
    ]
    pure = row.family == "torchvision" and any(fnmatch.fnmatch(row.model, pattern) for pattern in PURE_RELU)
    if pure and graph.units <= graph.frozen_units:
        faults.append(f"only {graph.units} of {graph.units + graph.frozen_units} units free in a ReLU network")
    return _judged(row, faults)


def _check_rescale(row: Row, model: nn.Module, x: Tensor) -> Row:
    """``rescale_`` with its defaults, in float32 and eval mode."""
    start = time.perf_counter()
    report = pathcond.rescale_(model.eval(), x[:1])
    seconds = time.perf_counter() - start
    error = float("nan") if report.output_change is None else report.output_change
    row = replace(row, float32_error=error, seconds=seconds)
    faults = []
    if row.rounding > CLOSE and error <= NOISY * row.rounding:
        note = f"float32 alone is off by {row.rounding:.0e} before anything is rescaled"
        row = replace(row, status="noisy", note="; ".join(filter(None, (note, row.note))))
    elif not error <= CLOSE:
        faults.append(f"rescale_ moved outputs by {error:.1e} in float32")
    for sweep, (old, new) in enumerate(zip(report.objective, report.objective[1:], strict=False), 1):
        if not new <= old + 1e-9 * abs(old):
            faults.append(f"F rose from {old!r} to {new!r} in sweep {sweep}")
    return _judged(row, faults)


def _judged(row: Row, faults: list[str]) -> Row:
    note = "; ".join(filter(None, (*faults, row.note)))
    return replace(row, status="FAIL" if faults else row.status, note=note)


def summary(rows: list[Row]) -> list[list[str]]:
    """Counts by family: models, recorded, refused, noisy, failed."""
    table = []
    for family in dict.fromkeys(row.family for row in rows):
        members = [row for row in rows if row.family == family]
        states = [row.status for row in members]
        recorded = sum(row.graph_seconds == row.graph_seconds for row in members)  # NaN without a graph
        counts = (len(states), recorded, *map(states.count, ("refused", "noisy", "FAIL")))
        table.append([family, *map(str, counts)])
    return table


def markdown(rows: list[Row]) -> str:
    """The zoo's tables: counts, then one line a model, then notes."""

    def table(head: list[str], body: list[list[str]]) -> str:
        lines = [head, ["---"] * len(head), *body]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    notes = [f"- `{row.model}` ({row.family}): {row.note}" for row in rows if row.note]
    parts = [
        "# The model zoo",
        f"Random weights, torch {torch.__version__}, torchvision {torchvision.__version__}, timm {timm.__version__}. "
        "`eval` and `train`: change of the output under random scales in float64; `float32`: under `rescale_`. "
        "`total s` is the time of `rescale_`, `graph s` that of `extract_graph` alone.",
        table(["family", "models", "recorded", "refused", "noisy", "failed"], summary(rows)),
        table(list(COLUMNS), [row.cells() for row in rows]),
        "\n".join(["Notes:", "", *notes]) if notes else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Go through the zoo; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="*", metavar="PATTERN", help="shell pattern of model names")
    parser.add_argument("--part", choices=("torchvision", "timm"), help="one family only")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no model later than this")
    parser.add_argument("--table", type=Path, metavar="PATH", help="write the tables there, as markdown")
    parser.add_argument("--reasons", action="store_true", help="print what froze units of each model")
    options = parser.parse_args(arguments)
    if options.table and options.minutes < math.inf:
        parser.error("expected --table without --minutes: a table has all models")
    print(_line(list(COLUMNS)), flush=True)
    rows = []
    start = time.perf_counter()
    listed = in_order(options.minutes, options.part, options.only)
    for family, name in listed:
        if time.perf_counter() - start > 60 * options.minutes:
            break
        row = check(family, name)
        rows.append(row)
        print(_line(row.cells()), f"  {row.note}" if row.note else "", flush=True)
        for reason in row.reasons if options.reasons else ():
            print(f"    {reason}", flush=True)
    for counts in summary(rows):
        print("{}: {} models, {} recorded, {} refused, {} noisy, {} failed".format(*counts))
    left = len(listed) - len(rows)
    print(f"{time.perf_counter() - start:.0f} s" + (f"; {left} models were not reached in time" if left else ""))
    if options.table:
        options.table.write_text(markdown(rows))
    return int(not rows or any(row.status == "FAIL" for row in rows))


def _line(cells: list[str]) -> str:
    widths = COLUMNS.values()
    return " ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
