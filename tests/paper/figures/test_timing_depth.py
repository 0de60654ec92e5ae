"""Timing by depth and step: both panels, hardware, one run."""

import pandas as pd
import pytest

from paper.figures import style, timing_depth
from tests.paper.drawing import drawn

SECONDS = {"graph": 0.02, "diag_g": 0.01, "solve": 0.06, "apply": 0.01, "total": 0.1, "epoch": 8.0}


def _table(batches=16, deviation=0.1, poolings=("plain", "exact")):
    common = {"n": 5, "batches": batches, "epoch_batches": 391, "hardware": "NVIDIA H200"}
    rows = [
        {
            "panel": "depth", "hidden_layers": depth, "parameters": 1.5e6 + 2.5e5 * depth, "step": step,
            "seconds_mean": depth * seconds, "seconds_sd": deviation * seconds, **common,
        }
        for depth in (1, 4, 8) for step, seconds in SECONDS.items()
    ]  # fmt: skip
    rows += [
        {"panel": "split", "network": network, "pooling": pooling, "step": step, "seconds_mean": seconds,
         "seconds_sd": deviation * seconds, **common}
        for network in ("mlp", "cifar_nv", "resnet18_c") for pooling in poolings for step, seconds in SECONDS.items()
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    "table", [_table(), _table(391, float("nan")), _table(deviation=2.0), _table(poolings=("exact",))]
)
def test_it_draws(table):
    drawn(timing_depth.plot, table)


def test_panels():
    with style.look(8.0):
        figure = timing_depth.plot(_table())
    left, right = figure.axes
    assert figure.get_suptitle() == "NVIDIA H200; epoch scaled up from 16 of 391 batches"
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["one training epoch", "rescaling"]
    assert [text.get_text() for text in left.get_xticklabels()] == ["1\n1.8M", "4\n2.5M", "8\n3.5M"]
    shares = [round(bar.get_height()) for bar in right.patches]
    assert shares == [10, 20, 60, 10] * 3
    assert [text.get_text() for text in right.texts].count("100 ms") == 3
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["diag(G)", "graph", "solve", "apply"]


def test_every_part_has_its_percentage():
    with style.look(8.0):
        _, right = timing_depth.plot(_table().replace({"seconds_mean": {0.06: 0.066, 0.01: 0.004}})).axes
    found = [(text.get_text(), text.get_position()[0] > 0.3) for text in right.texts if "%" in text.get_text()][:4]
    assert found == [("4%", True), ("20%", False), ("66%", False), ("4%", True)]
