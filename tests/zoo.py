"""The zoo: rescale every classification model of torchvision and 100 convolutional models of timm.

1. ``pathcond.rescale_`` with all of ten sweeps (``damping=1``) runs on the model as its library initializes it, in
   float32, with a batch of random images.
   This gives the units that are free, moved and frozen, and the time.
2. BatchNorm statistics, and parameters that started as constants, get random values, so that no mistake hides behind a
   zero. Random log-scales (normal, standard deviation 1) are applied in float64, and outputs are compared with the ones
   before, in eval and in training mode.

The exit status is 1 if a model fails. With a limit on the time the families are mixed, in the same order each time. Run
``python -m tests.zoo --help`` for the options.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
from torch import Tensor, nn

import pathcond
from tests.cases import change, changes_under_random_scales, outputs_in_mode

SEED = 0
BATCH = 4
EXACT = 1e-9  # largest relative change of an output in float64

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
    """The results of one model; errors are relative to the largest entry of the output."""

    family: str
    model: str
    parameters: int = 0
    free: int = 0
    moved: int = 0
    frozen: int = 0
    reason: str = ""
    eval_error: float = math.nan
    train_error: float = math.nan
    float32_error: float = math.nan
    seconds: float = math.nan
    status: str = "ok"
    note: str = ""

    def cells(self) -> list[str]:
        """The row's text, in the order of :data:`COLUMNS`."""
        errors = [f"{e:.0e}" if e == e else "-" for e in (self.eval_error, self.train_error, self.float32_error)]
        counts = [str(n) for n in (self.free, self.moved, self.frozen)]
        seconds = f"{self.seconds:.2f}" if self.seconds == self.seconds else "-"
        return [self.family, self.model, f"{self.parameters / 1e6:.1f}", *counts, *errors, seconds, self.status,
                self.reason]  # fmt: skip


COLUMNS = [
    "family", "model", "M params", "free", "moved", "frozen", "eval", "train", "float32", "seconds", "status",
    "main reason for frozen units",
]  # fmt: skip


def names(only: str = "*") -> list[tuple[str, str]]:
    """Family and name of every model of the zoo that matches a shell pattern, in order."""
    listed = {"torchvision": torchvision.models.list_models(module=torchvision.models), "timm": TIMM}
    return [(family, name) for family, found in listed.items() for name in found if fnmatch.fnmatch(name, only)]


def build(family: str, name: str) -> tuple[nn.Module, Tensor]:
    """A model as its library initializes it, and a batch of random images of shape (BATCH, 3, size, size)."""
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


def check(family: str, name: str, make: Callable[[str, str], tuple[nn.Module, Tensor]] = build) -> Row:
    """Rescale one model by all of ten sweeps and at random, and compare outputs.

    The row's status is ``ok``, ``refused`` (the forward pass cannot be recorded) or ``FAIL``.
    """
    row = Row(family, name)
    try:
        model, x = make(family, name)
        row = replace(row, parameters=sum(p.numel() for p in model.parameters()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pathcond.PathCondWarning)  # few units moved: the table has the number
            report = pathcond.rescale_(model.eval(), x, damping=1.0)
        row, faults = _facts(row, report)
        randomise_(model)
        row, wrong = _compare(row, model.double(), x[:2].double(), report.graph)
    except pathcond.RecordError as error:
        return replace(row, status="refused", note=str(error))
    except Exception as error:  # one broken model must not hide the others
        return replace(row, status="FAIL", note=f"{type(error).__name__}: {error}")
    faults += wrong
    notes = "; ".join((*faults, *(note for note in report.notes)))
    return replace(row, status="FAIL" if faults else "ok", note=notes)


def _facts(row: Row, report: pathcond.Rescaling) -> tuple[Row, list[str]]:
    """What the report says, and what is wrong in it."""
    reasons: Counter[str] = Counter()
    for entry in report.frozen:
        reasons[entry.reason] += entry.channels
    row = replace(
        row, free=report.units, moved=report.moved, frozen=report.graph.frozen_channels,
        reason=max(reasons, key=lambda reason: reasons[reason], default=""),
        float32_error=math.nan if report.output_change is None else report.output_change,
        seconds=sum(report.seconds.values()),
    )  # fmt: skip
    faults = [
        f"F rose from {old!r} to {new!r} in sweep {sweep}"
        for sweep, (old, new) in enumerate(zip(report.objective, report.objective[1:], strict=False), 1)
        if not new <= old + 1e-9 * abs(old)
    ]
    pure = row.family == "torchvision" and any(fnmatch.fnmatch(row.model, pattern) for pattern in PURE_RELU)
    if pure and row.free <= row.frozen:
        faults.append(f"only {row.free} of {row.free + row.frozen} units free in a ReLU network")
    return row, faults


def _compare(row: Row, model: nn.Module, x: Tensor, graph: pathcond.ScaleGraph) -> tuple[Row, list[str]]:
    """Outputs before and after random scales, in both modes; a model may amplify rounding, which is measured too."""
    moved = [outputs_in_mode(model, x * (1 + 1e-15), training) for training in (False, True)]
    before, errors = changes_under_random_scales(model, x, graph, SEED)
    rounding = list(map(change, before, moved))
    faults = [
        f"{mode} outputs changed by {error:.1e} in float64, and by {noise:.1e} if the input changes by 1e-15"
        for mode, error, noise in zip(("eval", "train"), errors, rounding, strict=True)
        if not error <= max(EXACT, 10 * noise)
    ]
    return replace(row, eval_error=errors[0], train_error=errors[1]), faults


def summary(rows: list[Row]) -> list[list[str]]:
    """Counts by family: models, those with a unit that moved, refused, failed."""
    table = []
    for family in dict.fromkeys(row.family for row in rows):
        members = [row for row in rows if row.family == family]
        states = [row.status for row in members]
        counts = (len(states), sum(row.moved > 0 for row in members), *map(states.count, ("refused", "FAIL")))
        table.append([family, *map(str, counts)])
    return table


def markdown(rows: list[Row]) -> str:
    """The zoo's tables: counts, then one line per model, then notes."""
    versions = f"torch {torch.__version__}, torchvision {torchvision.__version__}, timm {timm.__version__}"

    def table(head: list[str], body: list[list[str]]) -> str:
        lines = [head, ["---"] * len(head), *body]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    notes = [f"- `{row.model}` ({row.family}): {row.note}" for row in rows if row.note]
    parts = [
        "# The model zoo",
        "Look up whether a model of torchvision or timm can be rescaled, and what stands in the way. "
        f"Models have their default initialization and see {BATCH} random images ({versions}). "
        "`free`: hidden units that may be rescaled; `moved`: those that `rescale_` with `damping=1` changed by more "
        "than 0.1%; `frozen`: hidden channels without a free scale. `eval` and `train`: largest change of the output "
        "under random scales in float64, relative to its largest entry; `float32`: under `rescale_`. `seconds`: wall "
        "time of `rescale_`, its check included; other programs may run beside it.",
        table(["family", "models", "rescaled", "refused", "failed"], summary(rows)),
        table(COLUMNS, [row.cells() for row in rows]),
        "\n".join(["Notes:", "", *notes]) if notes else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Go through the zoo; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="*", metavar="PATTERN", help="shell pattern of model names")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no model later than this")
    parser.add_argument("--table", type=Path, metavar="PATH", help="write the tables there if no model is missing")
    options = parser.parse_args(arguments)
    start, rows, listed = time.perf_counter(), {}, names(options.only)
    if options.minutes < math.inf:
        random.Random(SEED).shuffle(listed)  # noqa: S311
    print(*COLUMNS, sep="  ", flush=True)
    for key in listed:
        if time.perf_counter() - start > 60 * options.minutes:
            break
        row = rows[key] = check(*key)
        print(*row.cells(), row.note, sep="  ", flush=True)
    found = [rows[key] for key in names(options.only) if key in rows]
    for counts in summary(found):
        print("{}: {} models, {} rescaled, {} refused, {} failed".format(*counts))
    for row in found:
        if row.status == "FAIL":
            print(f"FAIL {row.family} {row.model}: {row.note}")
    left = len(listed) - len(found)
    print(f"{time.perf_counter() - start:.0f} s" + (f"; {left} models were not reached" if left else ""))
    if options.table and not left:
        options.table.write_text(markdown(found))
    return int(not found or any(row.status == "FAIL" for row in found))


if __name__ == "__main__":
    sys.exit(main())
