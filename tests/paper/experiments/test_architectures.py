"""Table 1: the paper's numbers, and path counts to the recorded digits, which exact integer arithmetic gave too."""

import pandas as pd
import pytest
import torch

from paper import results
from paper.experiments import architectures
from paper.experiments.architectures import TABLE_1
from tests.paper.experiments.tables import ROOT


@pytest.mark.parametrize(
    "network", [pytest.param(name, marks=[pytest.mark.slow] * (name in ("resnet50", "vgg16"))) for name in TABLE_1]
)
def test_the_paper_s_row_and_recorded_counts(network, tmp_path):
    table = architectures.measure({"networks": [network], "image": 32}, torch.device("cpu"))
    (path,) = (ROOT / "results/paper/measure/architectures").glob("*.csv")
    recorded = results.read_table(path).query("network == @network").reset_index(drop=True)
    results.write_table(tmp_path / "table.csv", table)
    pd.testing.assert_frame_equal(results.read_table(tmp_path / "table.csv"), recorded, rtol=1e-14, atol=0)
    row = table.iloc[0]
    assert (row["parameters"], row["units_table"], f"{float(row['paths_paper']):.2e}") == TABLE_1[network]
