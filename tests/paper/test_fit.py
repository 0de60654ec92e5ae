"""Settings that are right one by one but not together: the configuration that has them is refused, by their place."""

import pytest

from paper import data, fit
from paper.config import check
from tests.paper.test_config import SCHEMA, _read_once, changed, mistakes  # noqa: F401 - a fixture

SIDE = "the side of the images of"

# Where in the configuration, what is put there, and the mistake as it is told.
APART = {
    "momentum of Adam": (
        "tiny.mlp_depth.optimiser", {"name": "adam", "momentum": 0.9},
        "expected keys among name, weight_decay of adam, got momentum.",
    ),
    "Muon with ENorm": (
        "tiny.cifar_nv.optimiser.name", "muon",
        "expected sgd or adam with enorm, got muon: it leaves what is no matrix to adam, and the averages of two "
        "cannot follow a rescaling.",
    ),
    "too few outputs": (
        "tiny.mlp_depth.model.outputs", 5, "expected 10, the classes of generated, got 5.",
    ),
    "inputs that are no images": (
        "tiny.mlp_depth.model.inputs", 50, f"expected 3 x s x s, where s is at most 8, {SIDE} generated, got 50.",
    ),
    "an autoencoder of larger images": (
        "preview.autoencoder.model.inputs", 841, f"expected 1 x s x s, where s is at most 28, {SIDE} mnist, got 841.",
    ),
    "a layer of no units": (
        "paper.autoencoder.compressions", [28, 40],
        "expected at most 28, which leaves one of 784 // compression^2 units, got 40.",
    ),
    "larger images": ("tiny.cifar_nv.model.image", 64, f"expected at most 8, {SIDE} generated, got 64."),
    "a timed network of other classes": (
        "tiny.networks.mlp.outputs", 7, "expected 10, the classes of generated, got 7.",
    ),
    "a timed network of larger images": (
        "tiny.networks.cifar_nv.image", 9, f"expected at most 8, {SIDE} generated, got 9.",
    ),
    "timed depths of other classes": (
        "tiny.timing_depth.outputs", 9, "expected 10, the classes of generated, got 9.",
    ),
    "a dead neuron": (
        "tiny.toy.slower_start", [1, 0, 0], "expected u, v, w with u > 0 and v or w not 0, got [1, 0, 0].",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_what_does_not_go_together_is_named_once(name):
    path, value, said = APART[name]
    assert mistakes((f"scales.{path}", value)) == [f"scales.{path}: {said}"]


def test_a_convolutional_network_takes_colours():
    assert mistakes(("scales.preview.cifar_nv.dataset", "mnist")) == [
        "scales.preview.cifar_nv.model.kind: expected mlp or autoencoder for the grey images of mnist, got cifar_nv."
    ]


def test_an_image_by_itself_matters_to_batchnorm_alone():
    (line,) = mistakes(("scales.tiny.timing_depth.batch", 213))
    assert line.startswith("scales.tiny.timing_depth.batch: 640 images leave a last batch of one")
    check(changed(("scales.tiny.autoencoder.images", 257)), SCHEMA)


@pytest.mark.parametrize(
    "changes",
    [
        {"mlp_depth.optimiser": {"name": "sgd", "momentum": 0.9}, "cifar_nv.optimiser": {"name": "adam"}},
        {"controls.mlp.optimiser": {"name": "muon", "weight_decay": 0.1}},  # nothing there rescales on the way
        {"mlp_depth.model.inputs": 75, "autoencoder.model.inputs": 147, "autoencoder.compressions": [1, 12]},
    ],
)
def test_what_goes_together_passes(changes):
    check(changed(*((f"scales.tiny.{path}", value) for path, value in changes.items())), SCHEMA)


def test_the_data_sets_are_those_that_there_are():
    found = {name: known.arrays for name, known in data.DATASETS.items()}
    assert found.keys() == fit.DATASETS.keys()
    for name, known in fit.DATASETS.items():
        images = found[name]["train_images"].shape
        assert (known.train, known.test) == (images[0], found[name]["test_images"].shape[0])
        assert (known.channels, known.side, known.side) == (1, *images[1:])[-3:]
