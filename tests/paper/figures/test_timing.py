"""Timing figure: shares of an epoch, hardware, and whether epochs were scaled up."""

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


def test_shares():
    with style.look(8.0):
        (axes,) = timing.plot(table()).axes
    dots = [container.lines[0] for container in axes.containers]
    assert [dot.get_xdata()[0] for dot in dots] == pytest.approx([0, 0.8, 1.8, 1.2, 2.2]), "no second one of the MLP"
    assert [dot.get_ydata()[0] for dot in dots] == pytest.approx([1.0] * 5)
    assert len({dot.get_marker() for dot in dots}) == 2
    assert (axes.get_yscale(), axes.get_ylim()[0]) == ("linear", 0.0)
    assert [text.get_text() for text in axes.texts] == ["1.0%\n84 ms"] * 5
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["pools as they are", "exact pools"]
    names = ["MLP (no pools)", "CIFAR-NV", "ResNet-18-C"]
    assert [text.get_text() for text in axes.get_xticklabels()] == [f"{name}\nepoch:\n8.4 ± 0.8 s" for name in names]
    assert axes.get_title() == "CPU x86_64, 2 threads\nepoch scaled up from 4 of 391 batches"


@pytest.mark.parametrize(("seconds", "text"), [(0.0382, "38.2 ms"), (1.25, "1.25 s")])
def test_duration(seconds, text):
    assert timing.duration(seconds) == text


def test_whole_epochs_are_called_so():
    assert timing.hardware_note(table(391)) == "CPU x86_64, 2 threads\nwhole epochs timed"


@pytest.mark.parametrize(
    ("share", "text"), [(0.00035, "0.035%"), (0.0101, "1.0%"), (0.0994, "9.9%"), (0.22, "22%"), (1.03, "103%")]
)
def test_percent(share, text):
    assert timing.percent(share) == text


def test_long_epochs_are_written_out():
    assert timing._name("cifar_nv", {"seconds_mean": 1512.3, "seconds_sd": float("nan")}).endswith("\n1,512 s")
    assert timing._name("cifar_nv", {"seconds_mean": 151.23, "seconds_sd": 12.0}).endswith("\n151 ± 10 s")
