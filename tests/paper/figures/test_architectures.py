"""Table 1 drawn: all rows, marks where the paper agrees and where it does not."""

import io

import pandas as pd

from paper.figures import architectures, style


def _table(paths="3.84125250501e+12"):
    row = {"log10_paths_paper": 12.6, "paths_all": "1.78330538796e+30", "log10_paths_all": 30.3}
    return pd.DataFrame(
        [
            {"network": "mlp", "parameters": 2_042_510, "units_table": 1500, "units_free": 1500,
             "paths_paper": paths, **row},
            {"network": "cifar_nv", "parameters": 2_616_576, "units_table": 1, "units_free": 1792,
             "paths_paper": "4.13267397288e+26", **row},
        ]
    )  # fmt: skip


def _texts(table):
    with style.look(8.0):
        figure = architectures.plot(table)
        style.stamp(figure, "scale: tiny")
        figure.savefig(io.BytesIO(), format="png")
    assert figure.get_supxlabel().startswith("free units:")
    assert figure.get_supxlabel().endswith("\nscale: tiny")
    return [text.get_text() for text in figure.axes[0].texts]


def test_marks():
    texts = _texts(_table())
    assert texts.count("✓") == 5
    assert texts.count("✗") == 1
    assert r"$3.84125 \times 10^{12}$" in texts
    assert r"$4.13 \times 10^{26}$" in texts
    assert {"MLP 3×500", "2,042,510", "1,792"} <= set(texts)
    assert _texts(_table("3.80e+12")).count("✗") == 2


def test_power():
    assert architectures.power("1.19e+100") == r"$1.19 \times 10^{100}$"
