"""Cells of training: which there are, what they share, and names that never change."""

import copy
from pathlib import Path

import pytest

from paper import cells, config, plan
from paper.errors import PaperError
from paper.methods import METHODS

ROOT = Path(__file__).parents[2]
SHIPPED = config.check(config.load(ROOT / "config.yaml"), ROOT / "workflow/schemas/config.schema.yaml")
TRAINED = [name for name, item in plan.ITEMS.items() if item.trained]
COMMON = {
    "methods": ["baseline", "pathcond"], "lrs": [0.001], "optimiser": {"name": "sgd"}, "batch": 4, "epochs": 3,
    "dataset": "generated", "images": 20, "validation": 5, "test_images": 7, "seeds": [0, 1],
}  # fmt: skip
MLP = {"kind": "mlp", "inputs": 12, "width": 5, "outputs": 10, "activation": "relu"}
BLOCKS = {
    "mlp_depth": {**COMMON, "model": MLP, "hidden_layers": [1, 3], "target": 0.9, "shown": 3},
    "mlp_depth_lrs": {**COMMON, "model": MLP, "hidden_layers": [3], "lrs": [0.01, 0.001], "target": 0.9},
    "mlp_depth_gelu": {**COMMON, "model": {**MLP, "activation": "gelu"}, "hidden_layers": [3], "clamp": 5.0},
    "cifar_nv_lrs": {
        **COMMON, "model": {"kind": "cifar_nv", "width": 0.5, "image": 8}, "lrs": [0.01, 0.0001],
        "longer": [{"lr": 1e-4, "epochs": 9}], "smoothing": 0.2,
    },
    "autoencoder": {**COMMON, "model": {"kind": "autoencoder", "inputs": 64}, "compressions": [2, 4]},
    "controls": {
        "mlp": {**COMMON, "model": MLP, "hidden_layers": [3], "methods": ["baseline", "rows"]},
        "autoencoder": {**COMMON, "model": {"kind": "autoencoder", "inputs": 64}, "compressions": [4], "lrs": [1]},
    },
}  # fmt: skip
# Results are kept under these names. A change here makes every kept result unknown: it is not a way to mend a test.
KEYS = [
    "train/classify/mlp_1x5/baseline-lr0.001-88ea50a61fff",
    "train/classify/mlp_1x5/pathcond-lr0.001-42296a368a07",
    "train/classify/mlp_3x5/baseline-lr0.001-928b67d10400",
    "train/classify/mlp_3x5/pathcond-lr0.001-5b5f932cf82d",
    "train/rebuild/autoencoder_c2/baseline-lr0.001-f975f530e962",
    "train/rebuild/autoencoder_c2/pathcond-lr0.001-c57caf512ebc",
    "train/rebuild/autoencoder_c4/baseline-lr0.001-43d750e15cd6",
    "train/rebuild/autoencoder_c4/pathcond-lr0.001-655c1b91f6f9",
    "train/classify/mlp_3x5/baseline-lr0.01-73954e3ba533",
    "train/classify/mlp_3x5/pathcond-lr0.01-e2f99d06e2b2",
    "train/classify/cifar_nv/baseline-lr0.01-83cd10be606c",
    "train/classify/cifar_nv/baseline-lr0.0001-25f5e56dda14",
    "train/classify/cifar_nv/pathcond-lr0.01-0eadc530dd07",
    "train/classify/cifar_nv/pathcond-lr0.0001-b6c0fce6535b",
    "train/classify/mlp_3x5_gelu/baseline-lr0.001-dff0c9aca009",
    "train/classify/mlp_3x5_gelu/pathcond-lr0.001-a8fcc5a0bab3",
    "train/classify/mlp_3x5/rows-lr0.001-191c08e00f3c",
    "train/rebuild/autoencoder_c4/baseline-lr1-727badffdb94",
    "train/rebuild/autoencoder_c4/pathcond-lr1-cac532d7b4a5",
]  # fmt: skip


@pytest.fixture(autouse=True)
def first_version(monkeypatch):
    """Training as it was first, so that a version raised since is no change of the rule that names results."""
    monkeypatch.setattr(plan, "ITEMS", {name: item for name, item in plan.ITEMS.items() if name in BLOCKS})
    monkeypatch.setattr(cells, "VERSION", 1)


def configuration(scale="tiny", **changes):
    blocks = copy.deepcopy(BLOCKS)
    for item, change in changes.items():
        blocks[item].update(change)
    return {"scale": scale, "scales": {scale: blocks}}


def names(keys):
    return [key.rpartition("-")[0] for key in keys]


def test_names_never_change():
    assert set(plan.runs(configuration())) == set(KEYS)
    assert set(plan.runs(configuration("paper"))) == set(KEYS)


def test_a_name_says_task_network_method_and_rate():
    assert names(plan.sources(configuration(), "mlp_depth")) == [
        "train/classify/mlp_1x5/baseline-lr0.001", "train/classify/mlp_1x5/pathcond-lr0.001",
        "train/classify/mlp_3x5/baseline-lr0.001", "train/classify/mlp_3x5/pathcond-lr0.001",
    ]  # fmt: skip
    assert names(plan.sources(configuration(), "mlp_depth_gelu"))[0] == "train/classify/mlp_3x5_gelu/baseline-lr0.001"
    assert names(plan.sources(configuration(), "autoencoder"))[0] == "train/rebuild/autoencoder_c2/baseline-lr0.001"
    assert names(plan.sources(configuration(), "cifar_nv_lrs"))[1] == "train/classify/cifar_nv/baseline-lr0.0001"


def test_a_cell_has_all_that_its_run_needs():
    specs = plan.runs(configuration())
    (made,) = (specs[key] for key in plan.sources(configuration(), "mlp_depth_gelu") if "pathcond" in key)
    assert made == {
        "stage": "train", "scale": "tiny", "version": 1, "task": "classify", "network": "mlp_3x5_gelu",
        "model": {"kind": "mlp", "inputs": 12, "outputs": 10, "activation": "gelu", "hidden": [5, 5, 5]},
        "method": "pathcond", "lr": 0.001, "epochs": 3, "optimiser": {"name": "sgd"},
        "rescaling": {
            "rescale": True, "part": "both", "batchnorm": "exclude", "solver": "sweeps", "sweeps": 10,
            "pooling": "plain", "teleport": 0, "clamp": 5.0,
        },
        "dataset": "generated", "images": 20, "validation": 5, "test_images": 7, "batch": 4, "seeds": [0, 1],
    }  # fmt: skip


def test_items_share_the_cells_they_have_in_common():
    given = configuration()
    first, second, third = (set(plan.sources(given, name)) for name in ("mlp_depth", "mlp_depth_lrs", "controls"))
    assert names(sorted(first & second)) == [
        "train/classify/mlp_3x5/baseline-lr0.001",
        "train/classify/mlp_3x5/pathcond-lr0.001",
    ]
    assert names(first & third) == ["train/classify/mlp_3x5/baseline-lr0.001"]
    everything = [key for item in BLOCKS for key in plan.sources(given, item)]
    assert set(everything) == set(plan.runs(given))
    assert len(everything) > len(set(everything))


def test_longer_training_is_for_its_rate_alone():
    specs = plan.runs(configuration())
    epochs = {specs[key]["lr"]: specs[key]["epochs"] for key in plan.sources(configuration(), "cifar_nv_lrs")}
    assert epochs == {0.01: 3, 0.0001: 9}


def test_a_bound_changes_the_methods_that_rescale_alone():
    before, after = (plan.sources(configuration(mlp_depth_gelu={"clamp": x}), "mlp_depth_gelu") for x in (5, 4.0))
    assert before[0] == after[0]
    assert before[1] != after[1]


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": 4}, {"batch": 5}, {"images": 21}, {"validation": 6}, {"test_images": 8}, {"seeds": [0]},
        {"dataset": "mnist"}, {"optimiser": {"name": "adam"}}, {"optimiser": {"name": "sgd", "momentum": 0.9}},
        {"lrs": [0.002]}, {"model": {**MLP, "inputs": 13}}, {"model": {**MLP, "width": 6}},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_every_setting_of_training_renames_all_cells_of_its_item(change):
    old, new = plan.sources(configuration(), "mlp_depth"), plan.sources(configuration(mlp_depth=change), "mlp_depth")
    assert len(new) == len(old)
    assert not set(old) & set(new)


@pytest.mark.parametrize("change", [{"target": 0.5}, {"shown": 1}])
def test_what_only_a_figure_needs_renames_nothing(change):
    assert plan.sources(configuration(mlp_depth=change), "mlp_depth") == plan.sources(configuration(), "mlp_depth")


def test_more_methods_or_depths_leave_the_others_alone():
    old = set(plan.sources(configuration(), "mlp_depth"))
    more = {"methods": ["enorm", "pathcond", "baseline"], "hidden_layers": [1, 2, 3]}
    new = set(plan.sources(configuration(mlp_depth=more), "mlp_depth"))
    assert old < new
    assert len(new) == 9


def test_methods_have_names_of_their_own():
    given = configuration(mlp_depth={"methods": list(METHODS), "hidden_layers": [1]})
    specs = plan.runs(given)
    made = [specs[key] for key in plan.sources(given, "mlp_depth")]
    assert [cell["method"] for cell in made] == list(METHODS)
    assert len({str(cell["rescaling"]) for cell in made}) == len(METHODS)


def test_a_new_version_renames_every_cell(monkeypatch):
    monkeypatch.setattr(cells, "VERSION", 2)
    assert not set(plan.runs(configuration())) & set(KEYS)


def test_an_unknown_method_is_named():
    with pytest.raises(PaperError, match="expected one of baseline, .* got 'pathcnd'"):
        plan.runs(configuration(mlp_depth={"methods": ["pathcnd"]}))


def test_stamp_says_how_much_was_trained():
    assert plan.stamp(configuration(), "mlp_depth") == (
        "scale: tiny  ·  20 images  ·  3 epochs  ·  target 90% train accuracy  ·  2 seeds"
    )
    both = "scale: tiny  ·  20 images  ·  3 epochs  ·  2 seeds  ·  autoencoder: 20 images, 3 epochs"
    assert plan.stamp(configuration(), "controls") == both


@pytest.mark.parametrize(("lr", "epochs"), [(1e-3, "3 epochs (1,000 at lr 0.001)"), (1e-4, "3 epochs")])
def test_stamp_says_which_learning_rates_have_more_epochs(lr, epochs):
    settings = {"lrs": [1e-2, 1e-3], "longer": [{"lr": lr, "epochs": 1000}]}
    assert f"  ·  {epochs}  ·  " in plan.stamp(configuration(cifar_nv_lrs=settings), "cifar_nv_lrs")


@pytest.mark.parametrize("scale", ["paper", "preview", "tiny"])
@pytest.mark.parametrize("item", TRAINED)
def test_shipped_cells_are_those_of_the_settings(item, scale):
    block = SHIPPED["scales"][scale][item]
    found = cells.cells_of(item, block, scale)
    parts = block.values() if item == "controls" else [block]
    count = 0
    for part in parts:
        networks = len(part.get("hidden_layers", part.get("compressions", [0])))
        count += networks * len(part["methods"]) * len(part["lrs"])
    assert len({plan.key(cell) for cell in found}) == len(found) == count
    assert {cell["scale"] for cell in found} == {scale}
