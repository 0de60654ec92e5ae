"""What is recorded: items that lack a run, runs of other settings, damaged ones."""

import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest

from paper import cli, recorded, store
from paper.config import check, load
from paper.errors import PaperError
from paper.plan import ITEMS, key, runs, settings, sources, stamp

ROOT = Path(__file__).parents[2]
CONFIG, SCHEMA = ROOT / "config.yaml", ROOT / "workflow/schemas/config.schema.yaml"


def config(**more):
    return check({**load(CONFIG), "scale": "paper", **more}, SCHEMA)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Every run of the paper's scale, in name."""
    folder = tmp_path_factory.mktemp("results")
    for name, spec in runs(config()).items():
        store.write_result(
            folder / f"{name}.csv", pd.DataFrame({"x": [1.0]}), spec, {"seconds": 1.0, "hardware": "A GPU"}
        )
    return folder


@pytest.fixture
def results(made, tmp_path):
    return shutil.copytree(made, tmp_path / "paper")


def test_all_there(results):
    assert recorded.items(config(only_recorded=True), results) == ITEMS
    lines = recorded.told(config(), results).splitlines()
    assert lines[0] == "paper: 17 of 17 items are complete"
    assert len(lines) == 19
    assert all(line.endswith("complete") for line in lines[:-1])
    assert lines[-1] == f"{len(runs(config())) / 60:.1f} minutes on A GPU"


@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_a_missing_run_takes_its_items_away(results, suffix):
    timing = [name for name in sources(config(), "timing") if "/mlp-" in name]
    (results / f"{timing[0]}.csv").with_suffix(suffix).unlink()
    without = set(ITEMS) - {"timing", "timing_depth"}
    assert set(recorded.items(config(only_recorded=True), results)) == without
    assert recorded.items(config(), results) == ITEMS
    assert set(runs(config(), without)) == set(runs(config())) - set(sources(config(), "timing_depth"))
    said = recorded.told(config(), results)
    assert "paper: 15 of 17 items are complete" in said
    assert said.count(f"\n    {timing[0]}\n") == 2


def test_cells_are_shared_by_items(results):
    (shared,) = (name for name in sources(config(), "mlp_depth_lrs") if "mlp_3x500/baseline-lr0.001-" in name)
    (results / f"{shared}.csv").unlink()
    gone = set(ITEMS) - set(recorded.items(config(only_recorded=True), results))
    assert gone == {"mlp_depth_lrs", "controls"}


def lose(results, item, *names):
    """Remove runs of an item, one a name."""
    for name in names:
        (key_,) = (key for key in sources(config(), item) if name in key)
        (results / f"{key_}.csv").unlink()


def test_learning_rates_that_lack_a_run_are_left_out(results):
    every = config()
    lose(results, "cifar_nv_lrs", "baseline-lr0.0001", "pathcond-lr0.01", "enorm-lr0.01")
    fewer = recorded.narrowed(every, results)
    assert settings(fewer, "cifar_nv_lrs")["lrs"] == [1e-3, 5e-4]
    assert {item for item in ITEMS if settings(fewer, item) != settings(every, item)} == {"cifar_nv_lrs"}
    assert set(sources(fewer, "cifar_nv_lrs")) == {
        key for key in sources(every, "cifar_nv_lrs") if "lr0.001-" in key or "lr0.0005-" in key
    }
    assert fewer["left_out"] == {"cifar_nv_lrs": ["lr 0.01, 0.0001"]}
    line = stamp(every, "cifar_nv_lrs")
    shorter = line.replace(" (500 at lr 0.0001)", "")
    assert len(shorter) < len(line)
    assert stamp(fewer, "cifar_nv_lrs") == f"{shorter}  ·  without lr 0.01, 0.0001"
    assert stamp(fewer, "mlp_depth_lrs") == stamp(every, "mlp_depth_lrs")
    said = recorded.told(every, results)
    assert "cifar_nv_lrs       9 of  12 runs  drawn without lr 0.01, 0.0001, lacks\n" in said
    assert "paper: 16 of 17 items are complete" in said


def test_a_method_that_claims_do_not_need_is_left_out_alone(results):
    every = config()
    lose(results, "cifar_nv_lrs", "baseline-lr0.0001", "enorm-lr0.01", "enorm-lr0.0005")
    fewer = recorded.narrowed(every, results)
    gone = set(sources(every, "cifar_nv_lrs")) - set(sources(fewer, "cifar_nv_lrs"))
    assert sorted(key.split("/")[-1].rpartition("-")[0] for key in gone) == [
        "baseline-lr0.0001", "enorm-lr0.0001", "enorm-lr0.0005", "enorm-lr0.01", "pathcond-lr0.0001",
    ]  # fmt: skip
    assert set(sources(fewer, "cifar_nv")) == set(sources(every, "cifar_nv"))
    words = "without lr 0.0001, enorm at lr 0.01, enorm at lr 0.0005"
    assert stamp(fewer, "cifar_nv_lrs").endswith(f"  ·  3 seeds  ·  {words}")
    assert f"cifar_nv_lrs       9 of  12 runs  drawn {words}, lacks\n" in recorded.told(every, results)


def test_elsewhere_a_method_takes_its_learning_rate_with_it(results):
    lose(results, "autoencoder_lrs", "c4/enorm-lr0.01-")
    fewer = recorded.narrowed(config(), results)
    assert fewer["left_out"] == {"autoencoder_lrs": ["lr 0.01"]}


def test_one_learning_rate_is_no_comparison(results):
    every = config()
    for key_ in sources(every, "autoencoder_lrs"):
        if "c1/" in key_ and "lr0.001-" not in key_:
            (results / f"{key_}.csv").unlink()
    assert recorded.narrowed(every, results) == {**every, "left_out": {}}
    assert "autoencoder_lrs   30 of  36 runs  not drawn, lacks" in recorded.told(every, results)


def test_runs_of_other_settings_are_named(results):
    spec = next(iter(runs(config()).values()))
    other = {**spec, "settings": {**spec["settings"], "lr": 7.0}}
    store.write_result(results / f"{key(other)}.csv", pd.DataFrame({"x": [1.0]}), other, {})
    store.write_table(results / "aggregate" / "not-a-run.csv", pd.DataFrame({"x": [1.0]}))
    assert recorded.unused(config(), results) == [key(other)]


def altered_table(path):
    path.write_text(path.read_text().replace("1.0", "2.0"))


def altered_record(path):
    file = path.with_suffix(".json")
    file.write_text(file.read_text().replace('"seconds": 1.0', '"seconds": 2.0'))


def other_settings(path):
    file = path.with_suffix(".json")
    file.write_text(file.read_text().replace('"draws": 2000', '"draws": 2001'))


@pytest.mark.parametrize("alter", [altered_table, altered_record, other_settings])
def test_an_altered_run_is_refused(results, alter, monkeypatch, capsys):
    (name,) = sources(config(), "toy")
    path = results / f"{name}.csv"
    before = path.read_bytes(), path.with_suffix(".json").read_bytes()
    alter(path)
    assert (path.read_bytes(), path.with_suffix(".json").read_bytes()) != before
    with pytest.raises(PaperError, match=path.name):
        recorded.told(config(), results)
    options = {"--config": CONFIG, "--schema": SCHEMA, "--scale": "paper", "--results": results.parent}
    monkeypatch.setattr(sys, "argv", ["recorded", *(str(word) for option in options.items() for word in option)])
    with pytest.raises(SystemExit, match="2"):
        cli.run(recorded.main)
    assert path.name in capsys.readouterr().err
    assert path.exists()
