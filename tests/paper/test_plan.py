"""Names of measurements: the same for ever for the same settings, and new when a setting that counts is."""

import copy
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paper import config, plan
from paper.errors import PaperError

ROOT = Path(__file__).parents[2]
ITEMS = plan.ITEMS
SHIPPED = config.check(config.load(ROOT / "config.yaml"), ROOT / "workflow/schemas/config.schema.yaml")
BLOCKS = {
    "networks": {
        "mlp": {"kind": "mlp", "inputs": 8, "hidden": [4, 4], "outputs": 2},
        "conv": {"kind": "cifar_nv", "width": 0.5, "image": 8},
    },
    "toy": {"draws": 20, "lr": 0.02, "starts": [[0.2, 2.5, 5.0]], "seeds": [0]},
    "regimes": {"variances": [0.001, 0.1], "log10_alpha": {"first": -1.0, "last": 2.0, "count": 3}, "seeds": [0, 1]},
    "timing": {"networks": ["mlp", "conv"], "dataset": "cifar10", "batches": 1234, "repeats": 2},
    "timing_depth": {"hidden_layers": [1, 2], "dataset": "cifar10", "batches": 4, "repeats": 2},
    "bcd": {"networks": ["conv", "mlp"], "poolings": ["plain"], "sweeps": 3, "seeds": [0, 1, 2]},
    "architectures": {"networks": ["mlp"], "image": 32},
    "smooth": {"activations": ["gelu"], "samples": 16, "clamp": 5.0, "seeds": [0]},
    "theory": {"draws": 100000, "seeds": [0], "cases": {"small": {"widths": [3, 4], "a": [0.001], "biases": True}}},
    "criteria": {"target": 1.0, "lengths": [2, 3], "seeds": [0, 1]},
}
# Results are kept under these names. A change here makes every kept result unknown: it is not a way to mend a test.
KEYS = [
    "measure/toy/all-7c33625addfc",
    "measure/regimes/all-56161d8f6164",
    "measure/timing/mlp-cdb10299ab8f",
    "measure/timing/conv-87add5d3b3dd",
    "measure/timing_depth/all-dbd94bc04478",
    "measure/bcd/conv-a06d16d40da2",
    "measure/bcd/mlp-989bb309c978",
    "measure/architectures/all-842208024566",
    "measure/theory/all-4a59b99cfe16",
    "measure/criteria/all-00133e89fe96",
    "measure/smooth/all-ccf601c7112a",
]  # fmt: skip


@pytest.fixture(autouse=True)
def first_versions(monkeypatch):
    """Items as they were first, so that a version raised since is no change of the rule that names results."""
    items = {name: replace(item, version=1) for name, item in plan.ITEMS.items() if name in BLOCKS}
    monkeypatch.setattr(plan, "ITEMS", items)
    monkeypatch.setattr(plan, "LATER", {})


def configuration(scale="tiny"):
    return {"scale": scale, "scales": {scale: copy.deepcopy(BLOCKS)}}


def spec(**settings):
    return {"stage": "measure", "scale": "tiny", "item": "toy", "part": "all", "version": 1, "settings": settings}


def changed(path, value):
    given = configuration()
    *parents, last = path.split(".")
    block = given["scales"]["tiny"]
    for name in parents:
        block = block[name]
    block[last] = value
    return given


def test_names_never_change():
    assert set(plan.runs(configuration())) == set(KEYS)


def test_a_name_says_item_and_part_and_a_digest():
    for key, made in plan.runs(configuration()).items():
        assert key == f"measure/{made['item']}/{made['part']}-{plan.digest(made)}"
        assert len(plan.digest(made)) == 12
        assert int(plan.digest(made), 16) >= 0


def test_a_spec_has_all_that_its_run_needs():
    specs = plan.runs(configuration())
    by_item = {(made["item"], made["part"]): made for made in specs.values()}
    assert by_item["toy", "all"] == {
        "stage": "measure", "scale": "tiny", "item": "toy", "version": 1, "part": "all", "settings": BLOCKS["toy"],
    }  # fmt: skip
    assert by_item["bcd", "conv"]["settings"] == {
        "poolings": ["plain"], "sweeps": 3, "seeds": [0, 1, 2], "network": "conv",
        "model": {"kind": "cifar_nv", "width": 0.5, "image": 8},
    }  # fmt: skip


def test_one_and_one_point_nought_are_the_same_number():
    assert plan.digest(spec(lr=1, seeds=[0, 1])) == plan.digest(spec(lr=1.0, seeds=[0.0, 1.0]))
    assert plan.digest(spec(lr=1)) != plan.digest(spec(lr=2))
    assert plan.digest(spec(lr=1)) != plan.digest(spec(lr=True))
    assert plan.digest(spec(lr=1)) != plan.digest(spec(lr="1"))


def test_the_order_of_keys_is_irrelevant_and_that_of_lists_is_not():
    one = plan.digest(spec(a=1, b={"c": 2, "d": 3}))
    assert one == plan.digest(dict(reversed(spec(b={"d": 3, "c": 2}, a=1).items())))
    assert plan.digest(spec(seeds=[0, 1])) != plan.digest(spec(seeds=[1, 0]))


def test_the_scale_is_not_part_of_a_name():
    assert set(plan.runs(configuration("paper"))) == set(KEYS)
    assert plan.digest(spec(scale="a")) != plan.digest(spec(scale="b"))  # a setting of that name is


@pytest.mark.parametrize("field", ["stage", "item", "part", "version"])
def test_every_other_field_is(field):
    other = {"stage": "train", "item": "regimes", "part": "mlp", "version": 2}
    assert plan.digest({**spec(lr=1), field: other[field]}) != plan.digest(spec(lr=1))


@pytest.mark.parametrize(
    ("path", "value", "touched"),
    [
        ("toy.lr", 0.03, {"toy/all"}),
        ("regimes.log10_alpha.count", 4, {"regimes/all"}),
        ("theory.cases.small.biases", False, {"theory/all"}),
        ("criteria.seeds", [0], {"criteria/all"}),
        ("smooth.clamp", 4.0, {"smooth/all"}),
        ("architectures.image", 64, {"architectures/all"}),
        ("bcd.sweeps", 4, {"bcd/conv", "bcd/mlp"}),
        ("timing.repeats", 3, {"timing/mlp", "timing/conv"}),
        ("timing_depth.batches", 5, {"timing_depth/all"}),
        ("networks.conv.width", 1.0, {"bcd/conv", "timing/conv"}),
        ("networks.mlp.hidden", [4, 5], {"bcd/mlp", "timing/mlp"}),
        ("networks.other", {"kind": "mlp"}, set()),
    ],
)
def test_a_changed_setting_renames_exactly_what_depends_on_it(path, value, touched):
    old, new = (
        {key.removeprefix("measure/").rpartition("-")[0]: key for key in keys}
        for keys in (KEYS, plan.runs(changed(path, value)))
    )
    assert set(new) == set(old)
    assert {name for name in old if old[name] != new[name]} == touched


@pytest.mark.parametrize("scale", ["paper", "preview", "tiny"])
def test_every_leaf_of_the_shipped_settings_is_in_some_name(scale):
    """Whichever number is edited, some measurement is a new one."""
    given = {**SHIPPED, "scale": scale}
    before = set(plan.runs(given))

    def edit(block, name):
        old = block[name]
        if isinstance(old, dict):
            for inner in old:
                edit(old, inner)
        elif isinstance(old, list):
            block[name] = old[:-1]
            check(block, name, old)
        elif name not in ("kind", "dataset"):
            block[name] = not old if isinstance(old, bool) else old + 1
            check(block, name, old)

    def check(block, name, old):
        assert set(plan.runs(given)) != before, name
        block[name] = old

    given["scales"] = {scale: copy.deepcopy(SHIPPED["scales"][scale])}
    for item in plan.ITEMS:
        edit(given["scales"][scale], item)
    assert set(plan.runs(given)) == before


def test_a_new_version_renames_its_item_alone(monkeypatch):
    monkeypatch.setitem(plan.ITEMS, "bcd", replace(plan.ITEMS["bcd"], version=2))
    new = plan.runs(configuration())
    assert {key.split("/")[1] for key in set(new) ^ set(KEYS)} == {"bcd"}
    assert len(set(new) - set(KEYS)) == 2


def test_a_setting_added_later_leaves_names_alone_at_its_old_value(monkeypatch):
    monkeypatch.setattr(plan, "LATER", {"momentum": 0.0, "names": ["a", 1]})
    for momentum in (0, 0.0):
        given = changed("toy.momentum", momentum)
        given["scales"]["tiny"]["toy"]["names"] = ["a", 1.0]
        assert set(plan.runs(given)) == set(KEYS)
    (key,) = plan.sources(changed("toy.momentum", 0.9), "toy")
    assert key not in KEYS
    # The run is told of the setting whatever its name says.
    (made,) = (made for made in plan.runs(changed("toy.momentum", 0)).values() if made["item"] == "toy")
    assert made["settings"]["momentum"] == 0


def test_a_setting_that_is_not_said_to_be_later_always_counts():
    (key,) = plan.sources(changed("toy.momentum", 0.0), "toy")
    assert key not in KEYS


def test_sources_are_an_items_runs_and_those_it_also_needs():
    given = configuration()
    assert plan.sources(given, "toy") == [key for key in KEYS if key.startswith("measure/toy/")]
    timing = [key for key in KEYS if key.startswith("measure/timing/")]
    depth = [key for key in KEYS if key.startswith("measure/timing_depth/")]
    assert len(timing) == 2
    assert plan.sources(given, "timing") == timing
    assert plan.sources(given, "timing_depth") == depth + timing
    assert {key for item in plan.ITEMS for key in plan.sources(given, item)} == set(KEYS)


def test_stamp_says_scale_and_how_much():
    given = configuration()
    assert plan.stamp(given, "toy") == "scale: tiny  ·  20 draws  ·  1 seed"
    assert plan.stamp(given, "theory") == "scale: tiny  ·  100,000 draws  ·  1 seed"
    assert plan.stamp(given, "timing") == "scale: tiny  ·  1,234 batches timed  ·  2 repeats"
    assert plan.stamp(given, "smooth") == "scale: tiny  ·  16 inputs  ·  1 seed"
    assert plan.stamp(given, "bcd") == "scale: tiny  ·  3 seeds"
    assert plan.stamp(configuration("paper"), "architectures") == "scale: paper"


def test_shipped_plan_covers_every_item_at_every_scale():
    for scale in SHIPPED["scales"]:
        specs = plan.runs({**SHIPPED, "scale": scale})
        assert {made["item"] for made in specs.values()} == set(BLOCKS) - {"networks"}
        assert len(specs) == 7 + 4 + 3  # one job an item, one a network of bcd and of timing


def test_planning_needs_no_torch_and_no_tables():
    code = "import sys, paper.plan, paper.config; print(sorted({'torch', 'pandas', 'numpy'} & set(sys.modules)))"
    command, here = [sys.executable, "-c", code], {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=here)  # noqa: S603 - fixed words
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("count", [0, 1, 7, 50, 99, 100])
def test_a_pattern_picks_the_chosen_keys_and_no_other(count):
    names = [f"{stage}/{item}" for stage in ("measure", "train") for item in "ab"]
    keys = [f"{name}/m-lr{n / 64:g}-{n:012x}" for name in names for n in range(25)]
    chosen = random.Random(count).sample(keys, count)
    picked = re.compile(plan.pattern(chosen, keys))
    assert {key for key in keys if picked.fullmatch(key)} == set(chosen)


def test_a_pattern_stops_where_a_key_does():
    picked = re.compile(plan.pattern(["train/short"], ["train/short", "train/shorter"]))
    assert picked.fullmatch("train/short")
    assert not picked.fullmatch("train/shorter")


def test_a_pattern_is_short_and_keeps_to_runs():
    keys = [f"train/{n:012x}" for n in range(20_000)]
    assert len(plan.pattern(keys, keys)) < 100
    assert len(plan.pattern(keys[10_000:], keys)) < 1000
    assert not re.fullmatch(plan.pattern(keys, keys), "aggregate/toy")


@pytest.mark.parametrize("item", ITEMS)
def test_the_slice_of_an_item_has_all_that_its_table_is_made_of_and_no_other_item(item, monkeypatch):
    monkeypatch.setattr(plan, "ITEMS", ITEMS)
    part = plan.slice_of(SHIPPED, item)
    assert plan.sources(part, item) == plan.sources(SHIPPED, item)
    assert set(part["scales"]["preview"]) - {"networks"} == {item, *ITEMS[item].also}


def test_a_run_that_nobody_asks_for_is_named():
    with pytest.raises(PaperError, match=r"train/x: expected one of the \d+ runs that the configuration asks for"):
        plan.runs(configuration())["train/x"]
