"""Draw the picture of the method for README.md: python tools/draw_method.py docs/method.png."""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#777777"
NEURON = (0.5, 0.5)


def draw_neuron(axes: Axes, title: str, incoming: str, outgoing: str, widths: tuple[float, float]) -> None:
    """One hidden neuron with three inputs and two outputs; line widths show the sizes of its weights."""
    sources, targets = [(0.08, y) for y in (0.2, 0.5, 0.8)], [(0.92, y) for y in (0.32, 0.68)]
    for x, y in sources:
        axes.plot([x, NEURON[0]], [y, NEURON[1]], color=BLUE, lw=widths[0], zorder=1)
    for x, y in targets:
        axes.plot([NEURON[0], x], [NEURON[1], y], color=ORANGE, lw=widths[1], zorder=1)
    for x, y in (*sources, *targets):
        axes.scatter(x, y, s=220, facecolor="white", edgecolor=GREY, zorder=2)
    axes.scatter(*NEURON, s=900, facecolor="white", edgecolor="black", zorder=2)
    axes.text(*NEURON, "ReLU", ha="center", va="center", fontsize=8, zorder=3)
    axes.text(0.26, 0.06, incoming, ha="center", color=BLUE, fontsize=12)
    axes.text(0.76, 0.06, outgoing, ha="center", color=ORANGE, fontsize=12)
    axes.set_title(title, fontsize=11)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.axis("off")


def main() -> None:
    """Draw the neuron before and after."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(7.6, 2.5), gridspec_kw={"wspace": 0.3, "left": 0.01, "right": 0.99}
    )
    draw_neuron(left, "before", r"$w_{in}$", r"$w_{out}$", (1.0, 4.0))
    draw_neuron(right, "after: the same function, balanced", r"$\lambda\, w_{in}$", r"$w_{out} / \lambda$", (2.2, 2.2))
    figure.text(0.5, 0.5, r"$\longrightarrow$", ha="center", va="center", fontsize=22)
    figure.savefig(Path(sys.argv[1]), dpi=160)


if __name__ == "__main__":
    main()
