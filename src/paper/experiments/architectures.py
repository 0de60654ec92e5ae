"""Table 1: parameters, hidden units and paths of six networks on CIFAR-10's images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from paper import plotting
from paper.experiments.base import Experiment
from paper.lazy import nn, pathcond, pd, torch, torchvision
from paper.settings import Block, Distinct, Field, PositiveInt
from paper.verdicts import ERRATUM, Claim, Estimate, Estimates, NotMeasured, at_least, at_most, noted

# Table 1 as the paper prints it: parameters, hidden units, paths.
TABLE_1: dict[str, tuple[int, int, str]] = {
    "mlp": (2_042_510, 1_500, "3.84e+12"),
    "cifar_nv": (2_616_576, 1_792, "4.13e+26"),
    "resnet18": (11_689_512, 4_800, "2.24e+53"),
    "resnet34": (21_797_672, 8_512, "1.19e+100"),
    "resnet50": (25_557_032, 26_560, "2.64e+136"),
    "vgg16": (138_357_544, 12_416, "5.89e+54"),
}
NAMES = {
    "mlp": "MLP 3×500", "cifar_nv": "CIFAR-NV", "resnet18": "ResNet-18", "resnet34": "ResNet-34",
    "resnet50": "ResNet-50", "vgg16": "VGG-16",
}  # fmt: skip
# Heading, place of the column's edge from 0 to 1, alignment.
COLUMNS = (
    ("network", 0.0, "left"),
    ("parameters", 0.25, "right"),
    ("hidden\nunits", 0.365, "right"),
    ("free\nunits", 0.475, "right"),
    ("paths,\npools as they are", 0.66, "right"),
    ("paths,\nin the paper", 0.82, "right"),
    ("paths,\nall", 1.0, "right"),
)


class Settings(Block):
    """Names of networks, and the side of the input images."""

    networks: Distinct[Literal["mlp", "cifar_nv", "resnet18", "resnet34", "resnet50", "vgg16"]]
    image: Annotated[PositiveInt, Field(ge=32)]


def build(name: str, image: int) -> nn.Module:
    """A network whose parameters the table counts.

    The MLP has biases everywhere and no BatchNorm, CIFAR-NV has BatchNorm and no biases, and the others are
    torchvision's for ImageNet, with 1000 classes.
    """
    from paper import models

    if name == "mlp":
        return models.mlp(3 * image**2, batchnorm=False)
    return models.cifar_nv(bias=False) if name == "cifar_nv" else getattr(torchvision.models, name)()


def measure(settings: Mapping[str, Any], device: torch.device) -> pd.DataFrame:
    """One row per network, counted on the CPU whatever the device.

    Columns network, parameters, units_table (output channels of all convolutions and widths of all linear layers,
    without the last layer), units_free (units of the scale graph, where tied channels are one), paths_paper and
    log10_paths_paper (pools left as they are), paths_all and log10_paths_all (a pool counts each of its inputs); paths
    are text with 12 significant digits.
    """
    return pd.DataFrame([_row(name, settings["image"]) for name in settings["networks"]])


def _row(name: str, image: int) -> dict[str, Any]:
    from paper import models
    from paper.paths import count_paths

    with torch.random.fork_rng(devices=[]):  # the weights do not matter
        model = build(name, image).eval()
    x = torch.ones(1, 3, image, image)
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    units = sum(m.out_channels if isinstance(m, nn.Conv2d) else m.out_features for m in layers[:-1])
    row: dict[str, Any] = {
        "network": name,
        "parameters": models.parameters(model),
        "units_table": units,
        "units_free": pathcond.extract_graph(model, x).units,
    }
    for pooling in ("paper", "all"):
        paths = count_paths(model, x, pooling=pooling)
        row |= {f"paths_{pooling}": f"{paths:.11e}", f"log10_paths_{pooling}": math.log10(paths)}
    return row


def plot(table: pd.DataFrame) -> plotting.Figure:
    """The table, with a mark at each number that equals the paper's as printed: one panel, a page wide."""
    rows = len(table) + 2.2
    figure, (axes,) = plotting.panels(1, 1, plotting.PAGE, 0.22 * rows + 0.2)
    axes.set(xlim=(0, 1), ylim=(rows, 0))
    axes.set_axis_off()
    for heading, x, side in COLUMNS:
        axes.text(x, 1.35, heading, ha=side, va="bottom", fontweight="bold", linespacing=1.1)
    for y, weight in ((0.05, 1.0), (1.55, 0.6), (len(table) + 1.75, 1.0)):
        axes.axhline(y, color=plotting.BLACK, linewidth=weight)
    for number, row in enumerate(table.to_dict("records")):
        _draw_row(axes, number + 2.15, row)
    axes.text(1.0, rows, "✓ as the paper prints it", ha="right", va="bottom", fontsize="x-small", color=plotting.GREEN)
    plotting.note(figure, "free units: scales that can be chosen freely; channels tied by skip connections share one")
    return figure


def power(number: str) -> str:
    """Text such as 3.84e+12 with its power of ten typeset."""
    digits, exponent = number.split("e")
    return rf"${digits} \times 10^{{{int(exponent)}}}$"


def _draw_row(axes: plotting.Axes, y: float, row: dict[str, object]) -> None:
    parameters, units, paths = TABLE_1[str(row["network"])]
    ours = str(row["paths_paper"])
    cells = (
        (NAMES[str(row["network"])], None),
        (f"{row['parameters']:,}", row["parameters"] == parameters),
        (f"{row['units_table']:,}", row["units_table"] == units),
        (f"{row['units_free']:,}", None),
        (power(f"{float(ours):.5e}"), f"{float(ours):.2e}" == paths),
        (power(paths), None),
        (power(f"{float(str(row['paths_all'])):.5e}"), None),
    )
    for (text, agrees), (_, x, side) in zip(cells, COLUMNS, strict=True):
        axes.text(x, y, text, ha=side, va="center")
        if agrees is not None:
            mark, colour = ("✓", plotting.GREEN) if agrees else ("✗", plotting.RED)
            axes.text(x + 0.006, y, mark, ha="left", va="center", color=colour)


def _differ(table: pd.DataFrame, column: str, place: int) -> Estimate:
    """Rows of Table 1 whose printed digits differ from ours, or that the settings leave out."""
    if table.empty:
        raise NotMeasured("no networks")
    ours = dict(zip(table["network"], table[column], strict=True))
    differ = [n for n, row in TABLE_1.items() if n not in ours or _printed(ours[n]) != _printed(row[place])]
    return noted(Estimate.exact(len(differ), digits=0), ", ".join(differ))


def _printed(number: int | str) -> str:
    """A number with the digits that the paper prints: 3.84e+12."""
    return f"{number:,}" if isinstance(number, int) else f"{float(number):.2e}"


def _three_columns(table: pd.DataFrame) -> Estimates:
    columns = (("parameters", "parameters"), ("hidden units", "units_table"), ("paths", "paths_paper"))
    return {name: _differ(table, column, place) for place, (name, column) in enumerate(columns)}


_CLAIMS = (
    Claim(
        "table1",
        "Table 1: parameters, hidden units, and paths with max pools kept as maxima and average pools as averages",
        "six rows",
        "rows that differ in a printed digit",
        _three_columns,
        at_most(0.0),
        unit="of six rows differ",
        cases="column",
    ),
    Claim(
        "table1_paths_exact",
        "The true numbers of paths, with one path for each input of a pool, are larger than in Table 1",
        "said to be exact",
        "rows that differ in a printed digit",
        lambda table: _differ(table, "paths_all", 2),
        at_least(1.0),
        ERRATUM,
        unit="of six rows differ",
    ),
)


EXPERIMENT = Experiment(
    name="architectures",
    title="Parameters, hidden units and paths",
    where="Table 1",
    caption=(
        "Parameters, hidden units and paths of {networks_count} networks on images of {image}x{image} pixels, with a "
        "mark at each number that agrees with the paper. Free units are the scales that can be chosen freely: channels "
        "tied by skip connections share one. Paths are counted in two ways: with pools kept as maxima and averages, as "
        "in the paper, and with one path for each input of a pool."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    keys=("network",),
    measure=measure,
)
