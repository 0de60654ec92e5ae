"""The configuration: overlays, setups, and every mistake named by its place, all at once."""

import copy
import json
import sys
from pathlib import Path

import pytest

from paper import config, plan
from paper.cli import PaperError

ROOT = Path(__file__).parents[2]
TINY = config.merged(config.load(ROOT / "config.yaml"), {**config.load(ROOT / "config/tiny.yaml"), "preset": "tiny"})
E = "experiments."

# Place in the configuration, its new value (... removes it), and what the message says.
VALUES = {
    "unknown key": ("devise", "cpu", "(top level): unknown key 'devise'; did you mean 'device'?"),
    "unknown experiment": (E + "cifar_vn", {}, "experiments: unknown key 'cifar_vn'; did you mean 'cifar_nv'?"),
    "missing key": (E + "toy.lr", ..., "experiments.toy: expected the key lr, which is not there."),
    "unknown setup": (E + "mlp_depth.setup", "mlp_cifr", "mlp_depth.setup: expected one of mlp_cifar"),
    "text for a number": (E + "toy.lr", "fast", "toy.lr: expected a number, got 'fast' (str)."),
    "list for a block": (E + "toy", [], "experiments.toy: expected keys and values, got [] (list)."),
    "part of an integer": ("setups.mlp_cifar.epochs", 2.5, "epochs: expected an integer, got 2.5 (float)."),
    "empty seeds": (E + "toy.seeds", [], "toy.seeds: expected at least 1 entries, got []."),
    "negative lr": (E + "mlp_depth.lrs", [-1e-3], "lrs.0: expected more than 0, got -0.001."),
    "lr of NaN": (E + "mlp_depth.lrs", ["NaN"], "lrs.0: expected a number, got 'NaN'"),
    "lr of infinity": (E + "mlp_depth.lrs", ["1e999"], "lrs.0: expected a finite number, got '1e999'"),
    "lr twice": (E + "mlp_depth.lrs", ["1e-3", 0.001], "lrs: expected no entry twice, got 0.001 again"),
    "unknown data set": ("setups.mlp_cifar.dataset", "cifar", "dataset: expected one of cifar10, mnist, gen"),
    "unknown network": (E + "bcd.networks", ["vgg"], "bcd.networks: no network 'vgg'"),
    "too many images": ("setups.cifar_nv.images", 9999, "images and validation: expected at most 640 of"),
    "an image by itself": ("setups.mlp_cifar.images", 33, "expected no last batch of one image"),
    "momentum of Adam": ("setups.mlp_cifar.optimiser", {"name": "adam", "momentum": 0}, "unknown key 'momentum'"),
    "Muon with ENorm": ("setups.cifar_nv.optimiser.name", "muon", "expected plain sgd with enorm, got another"),
    "too few outputs": ("setups.mlp_cifar.model.outputs", 5, "model.outputs: expected 10, the classes"),
    "too large images": ("setups.cifar_nv.model.image", 64, "model.image: expected at most 8, the side"),
    "a layer of no units": (E + "autoencoder.compressions", [40], "compressions: expected at most 13, which"),
    "nesterov alone": (E + "mlp_depth.optimiser", {"name": "sgd", "nesterov": True}, "expected momentum above 0 with"),
    "another rate": (E + "cifar_nv_lrs.longer", [{"lr": 0.5, "epochs": 9}], "longer: expected learning rates of lrs"),
    "no name of a network": (E + "bcd.networks", [["mlp"]], "bcd.networks: no network ['mlp']; did you mean"),
    "a key of others": (E + "mlp_depth.smoothing", 0.2, "mlp_depth: unknown key 'smoothing'"),
    "another method": (E + "cifar_nv.more_seeds", [{"methods": ["half"], "seeds": [2]}], "seeds.methods: expected"),
    "a rate of new seeds": (
        E + "cifar_nv.more_seeds", [{"methods": ["baseline"], "seeds": [8], "lrs": [0.5]}], "seeds.lrs: expected some",
    ),
    "a depth of new seeds": (
        E + "cifar_nv.more_seeds", [{"methods": ["baseline"], "seeds": [8], "hidden_layers": [3]}], "without a sweep",
    ),
    "another network": (E + "practice.resnet18.model.kind", "vgg11", "resnet18.model.kind: expected resnet18, as the"),
    "no baseline": (E + "practice.resnet18.methods", ["half"], "sigma 0: expected baseline among the methods"),
    "no seed of all": (
        E + "practice.resnet18_more",
        {"setup": "practice", "model": {"kind": "resnet18", "image": 8}, "optimiser": {"name": "sgd"}, "lrs": [1.0],
         "seeds": [9]},
        "resnet18, 2 epochs, sigma 0: expected a seed that all methods have at all learning rates, got none; add one",
    ),
    "no grid": (E + "unequal", {}, "unequal: expected at least one training grid, got null for all."),
    "two of a kind": (E + "cifar_nv_all.other_starts", {"setup": "cifar_nv", "seeding": "torch"}, "expected another"),
    "few neurons": (E + "regimes.neurons", 2, "neurons: expected at least one per layer"),
    "no variance": (E + "theory.cases", {"odd": {"widths": [2, 2, 2], "biases": True}}, "expected either a or"),
    "a dead neuron": (E + "toy.starts", [[-0.2, 1.0, 1.0]], "expected starts u, v, w with u > 0"),
    "inputs of no image": (E + "timing_depth.inputs", 7, "inputs: expected 3 x s x s"),
    "a width without depths": (
        "setups.cifar_nv.model", {"kind": "mlp", "inputs": 192, "width": 16, "outputs": 10},
        "hidden_layers: expected a list if, and only if, model is an mlp with a width, got [] for",
    ),
    "a depth that is not there": (E + "mlp_depth.shown", 7, "shown: expected one of hidden_layers"),
    "a grid without end": (E + "regimes.log10_alpha.count", 10**7, "count: expected at most 10000, got 10000000."),
}  # fmt: skip
# Bytes of a file that is no configuration, and what the message says.
TEXTS = {
    "an empty file": (b"", "expected keys and values, got NoneType."),
    "a key twice": (b"preset: tiny\npreset: paper\n", "line 2: key 'preset' is given twice in one block; keep one of"),
    "half a list": (b"a: [1, 2\n", "is not YAML"),
    "other bytes": (b"\xff\xfe\x00", "is not YAML"),
    "a call": (b"a: !!python/object/apply:os.mkdir [made]\n", "could not determine a constructor for the tag"),
}


def put(content, path, value):
    *parents, last = path.split(".")
    for name in parents:
        content = content.setdefault(name, {})
    if value is ...:
        del content[last]
    else:
        content[last] = value


@pytest.mark.parametrize("name", VALUES)
def test_a_wrong_value_is_named_by_its_place(name):
    path, value, says = VALUES[name]
    content = copy.deepcopy(TINY)
    put(content, path, value)
    with pytest.raises(PaperError) as caught:
        config.check(content)
    assert str(caught.value).startswith("the configuration has ")
    assert says in str(caught.value)


def test_all_mistakes_are_listed():
    content = copy.deepcopy(TINY)
    for path, value in (("device", "gpu"), (E + "toy.lr", "fast"), (E + "toy.stepz", 3), (E + "bcd.sweeps", 0)):
        put(content, path, value)
    with pytest.raises(PaperError) as caught:
        config.check(content)
    assert str(caught.value).startswith("the configuration has 4 mistakes:\n")


def test_numbers_may_be_text():
    content = config.merged(TINY, {"experiments": {"toy": {"lr": "2e-2", "steps": "3e2"}}})
    assert config.check(content).plain == config.check(TINY).plain


@pytest.mark.parametrize("name", TEXTS)
def test_a_file_that_is_no_configuration_is_named(name, tmp_path):
    content, says = TEXTS[name]
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(PaperError) as caught:
        config.read(tmp_path, "paper")
    assert "config.yaml" in str(caught.value)
    assert says in str(caught.value)


def test_a_preset_of_your_own_is_a_file_and_an_unknown_one_is_refused(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config.yaml").write_text((ROOT / "config.yaml").read_text())
    (tmp_path / "config/mine.yaml").write_text(json.dumps({"setups": {"mlp_cifar": {"epochs": 7}}}))
    plain = config.read(tmp_path, "mine").plain  # one edit of a setup changes all of its experiments
    blocks = plain["mlp_depth"], plain["controls"]["mlp"], plain["cifar_nv"]
    assert [block["epochs"] for block in blocks] == [7, 7, 128]
    with pytest.raises(PaperError, match=r"preset: expected one of paper, preview, tiny, got 'papr'; did you mean"):
        config.read(ROOT, "papr")


def test_wrong_blocks_of_the_queue_are_named_and_it_takes_other_values(tmp_path, monkeypatch):
    (tmp_path / "workflow").mkdir()
    for block, says in (
        (None, "mine: expected keys and values, got None"),
        ({"setup": ["mlp_cifar"]}, "mine.setup: expected one of mlp_cifar"),
        ({"setup": "cifar_nv", "network": "../../x"}, "mine.network: expected a name such as mlp_2x16, got '../../x'"),
        ({"setup": "mlp_cifar", "network": "one"}, "network: expected none for a block of 7 networks, got 'one'"),
    ):
        (tmp_path / "workflow/queue.yaml").write_text(json.dumps({"mine": block}))
        with pytest.raises(PaperError, match=says):
            list(config.read_queue(tmp_path, config.read(ROOT)))
    over, output = json.dumps({"setups": {"mlp_cifar": {"batch": 7}}}), tmp_path / "specs.json"
    monkeypatch.setattr(sys, "argv", ["", "--queue", "optimisers_muon", "--over", over, "--output", str(output)])
    plan.main()
    assert {spec["batch"] for spec in json.loads(output.read_text())} == {7}
