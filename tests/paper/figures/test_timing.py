"""Timing figure: bars, shares of an epoch, hardware, and whether epochs were scaled up."""

import io

import pandas as pd
import pytest

from paper.figures import style, timing

SECONDS = {"graph": 0.02, "diag_g": 0.01, "solve": 0.05, "apply": 0.004, "total": 0.084, "epoch": 8.4}


def table(batches=4, deviation=0.1, networks=("mlp", "cifar_nv", "resnet18_c"), poolings=("plain", "exact")):
    rows = [
        {
            "network": network, "pooling": pooling, "step": step, "seconds_mean": seconds,
            "seconds_sd": deviation * seconds, "n": 5, "parameters": 10, "units": 3, "batches": batches,
            "epoch_batches": 391, "hardware": "CPU x86_64, 2 threads",
        }
        for network in networks for pooling in poolings for step, seconds in SECONDS.items()
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    "rows", [table(), table(391, float("nan")), table(deviation=2.0), table(networks=("mlp",), poolings=("exact",))]
)
def test_it_draws(rows):
    with style.look(8.0):
        figure = timing.plot(rows)
        style.stamp(figure, "scale: tiny")
        figure.savefig(io.BytesIO(), format="png")


def test_bars():
    with style.look(8.0):
        (axes,) = timing.plot(table()).axes
    heights = sorted(round(bar.get_height(), 6) for bar in axes.patches)
    assert heights == [0.084] * 6 + [8.4] * 3
    assert [text.get_text() for text in axes.texts] == ["1.0%"] * 6
    assert [text.get_text() for text in axes.get_legend().get_texts()][-1] == "one training epoch"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["MLP", "CIFAR-NV", "ResNet-18-C"]
    assert axes.get_title() == "CPU x86_64, 2 threads\nepoch scaled up from 4 of 391 batches"


def test_whole_epochs_are_called_so():
    assert timing.hardware_note(table(391)) == "CPU x86_64, 2 threads\nwhole epochs timed"


@pytest.mark.parametrize(
    ("share", "text"), [(0.00035, "0.035%"), (0.0101, "1.0%"), (0.0994, "9.9%"), (0.22, "22%"), (1.03, "103%")]
)
def test_percent(share, text):
    assert timing.percent(share) == text
