"""Configurations that cannot be right, given to a program that reads them: each mistake is named by its place."""

import copy
import json
from pathlib import Path

import pytest
import yaml

from paper import config

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "workflow/schemas/config.schema.yaml"
SHIPPED = yaml.load((ROOT / "config.yaml").read_text(), Loader=config._Safe)  # noqa: S506 - a SafeLoader

# Where in the configuration, what is put there (... leaves it out), and what the message says.
VALUES = {
    "unknown key": ("devise", "cpu", "(top level): unknown key 'devise'; did you mean 'device'?"),
    "unknown key of an item": ("scales.tiny.mlp_depth.epoch", 3, "unknown key 'epoch'; did you mean 'epochs'?"),
    "unknown item": ("scales.tiny.cifar_vn", {}, "scales.tiny: unknown key 'cifar_vn'; did you mean 'cifar_nv'?"),
    "missing key": ("scales.tiny.toy.lr", ..., "scales.tiny.toy: expected the key lr, which is not there."),
    "missing item": ("scales.tiny.toy", ..., "scales.tiny: expected the key toy, which is not there."),
    "missing scale": ("scales.preview", ..., "scales: expected the key preview, which is not there."),
    "text for a number": ("scales.tiny.toy.lr", "fast", "expected number, got 'fast' (str)."),
    "number for a list": ("scales.tiny.mlp_depth.lrs", 0.1, "lrs: expected array, got 0.1 (float)."),
    "list for a block": ("scales.tiny.toy", [], "scales.tiny.toy: expected object, got [] (list)."),
    "null for a number": ("scales.tiny.mlp_depth.batch", None, "batch: expected integer, got None (NoneType)."),
    "part of a whole": ("scales.tiny.mlp_depth.epochs", 2.5, "epochs: expected integer, got 2.5 (float)."),
    "empty seeds": ("scales.tiny.toy.seeds", [], "toy.seeds: expected at least 1 entries, got []."),
    "empty methods": ("scales.tiny.mlp_depth.methods", [], "methods: expected at least 1 entries, got []."),
    "empty networks": ("scales.tiny.bcd.networks", [], "bcd.networks: expected at least 1 entries, got []."),
    "negative lr": ("scales.tiny.mlp_depth.lrs", [-1e-3], "lrs.0: expected more than 0, got -0.001."),
    "lr of zero": ("scales.tiny.mlp_depth.lrs", [0], "lrs.0: expected more than 0, got 0."),
    "lr of NaN": ("scales.tiny.mlp_depth.lrs", ["NaN"], "lrs.0: expected number, got 'NaN' (str)."),
    "lr of infinity": ("scales.tiny.mlp_depth.lrs", ["1e999"], "lrs.0: expected number, got inf (float)."),
    "lr twice": ("scales.tiny.mlp_depth.lrs", ["1e-3", 0.001], "lrs: expected no entry twice, got [0.001, 0.001]."),
    "seed twice": ("scales.tiny.mlp_depth.seeds", [1, 1], "seeds: expected no entry twice, got [1, 1]."),
    "negative seed": ("scales.tiny.mlp_depth.seeds", [-1], "seeds.0: expected at least 0, got -1."),
    "no epochs": ("scales.tiny.mlp_depth.epochs", 0, "epochs: expected at least 1, got 0."),
    "unknown method": ("scales.tiny.mlp_depth.methods", ["pathcnd"], "did you mean 'pathcond'?"),
    "unknown optimiser": ("scales.tiny.mlp_depth.optimiser.name", "lion", "optimiser.name: expected one of sgd"),
    "unknown data set": ("scales.tiny.mlp_depth.dataset", "cifar", "dataset: expected one of cifar10, mnist, gen"),
    "unknown device": ("device", "gpu", "device: expected one of auto, cpu, cuda, got 'gpu'"),
    "unknown scale": ("scale", "papr", "scale: expected one of paper, preview, tiny, got 'papr'; did you mean"),
    "unknown network": ("scales.tiny.bcd.networks", ["vgg"], "bcd.networks: no network 'vgg'; scales.tiny.networks"),
    "too many images": ("scales.tiny.cifar_nv.images", 9999, "images and validation: expected at most 640 of"),
    "an image by itself": ("scales.tiny.mlp_depth.images", 33, "33 images leave a last batch of one"),
    "momentum of Adam": ("scales.tiny.mlp_depth.optimiser", {"name": "adam", "momentum": 0}, "of adam, got momentum."),
    "Muon with ENorm": ("scales.tiny.cifar_nv.optimiser.name", "muon", "expected sgd or adam with enorm, got muon"),
    "too few outputs": ("scales.tiny.mlp_depth.model.outputs", 5, "mlp_depth.model.outputs: expected 10, the classes"),
    "too large images": ("scales.tiny.cifar_nv.model.image", 64, "cifar_nv.model.image: expected at most 8, the side"),
    "a layer of no units": ("scales.tiny.autoencoder.compressions", [40], "compressions: expected at most 13, which"),
    "a depth that is not there": ("scales.tiny.mlp_depth.shown", 7, "mlp_depth.shown: expected one of hidden_layers"),
}
# Bytes of a file that is no configuration, and what the message says.
TEXTS = {
    "an empty file": (b"", "expected keys and values, got NoneType."),
    "a list": (b"- 1\n- 2\n", "expected keys and values, got list."),
    "a key twice": (b"scale: tiny\nscale: paper\n", "line 2: key 'scale' is given twice in one block; keep one of"),
    "half a list": (b"a: [1, 2\n", "is not YAML"),
    "a tab": (b"a:\n\tb: 1\n", "is not YAML"),
    "other bytes": (b"\xff\xfe\x00", "is not YAML"),
    "a call": (b"a: !!python/object/apply:os.mkdir [made]\n", "could not determine a constructor for the tag"),
}


def put(content, path, value):
    *parents, last = path.split(".")
    for name in parents:
        content = content[name]
    if value is ...:
        del content[last]
    else:
        content[last] = value


@pytest.mark.parametrize("name", VALUES)
def test_a_wrong_value_is_named_by_its_place(name, place):
    path, value, says = VALUES[name]
    content = copy.deepcopy(SHIPPED)
    put(content, path, value)
    (place.folder / "config.yaml").write_text(json.dumps(content))
    said = place.refused("specs", "--schema", SCHEMA, "--output", "made.json")
    assert said.startswith("error: the configuration has ")
    assert says in said


@pytest.mark.parametrize("name", TEXTS)
def test_a_file_that_is_no_configuration_is_named(name, place):
    content, says = TEXTS[name]
    (place.folder / "config.yaml").write_bytes(content)
    said = place.refused("specs", "--schema", SCHEMA, "--output", "made.json")
    assert said.startswith("error: config.yaml")
    assert says in said
    assert not (place.folder / "made").exists()
