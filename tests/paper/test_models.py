"""The paper's networks: sizes, options, seeds, and errors that help."""

import math

import pytest
import torch
from torch import nn

from paper import models
from paper.errors import PaperError

BLOCKS = {
    "mlp": {"kind": "mlp", "inputs": 12, "hidden": [5, 4], "outputs": 3},
    "cifar_nv": {"kind": "cifar_nv", "width": 0.03125, "image": 8},
    "resnet18_c": {"kind": "resnet18_c", "width": 0.0625, "image": 8},
    "autoencoder": {"kind": "autoencoder", "inputs": 64, "compression": 2},
}


@pytest.mark.parametrize(
    ("model", "parameters", "units"),
    [
        ({"kind": "mlp"}, 2_044_010, 1_500),
        ({"kind": "mlp", "batchnorm": False}, 2_042_510, 1_500),
        ({"kind": "cifar_nv"}, 2_618_378, 1_792),
        ({"kind": "cifar_nv", "bias": False}, 2_616_576, 1_792),
        ({"kind": "resnet18_c"}, 11_528_266, 3_904),
        ({"kind": "resnet18_c", "held": True}, 11_528_266, 3_392),
        ({"kind": "autoencoder", "compression": 4}, 326_977, 441),
    ],
)
def test_sizes_of_the_paper(model, parameters, units):
    module = models.build(model)
    assert models.parameters(module) == parameters
    graph = models.units(module, models.example_input(model), model)
    assert graph.units == units == sum(graph.groups)


@pytest.mark.parametrize("kind", BLOCKS)
def test_every_kind_runs_and_is_fixed_by_its_seed(kind):
    model = BLOCKS[kind]
    state = torch.get_rng_state()
    first, again, other, elsewhere = (models.make(model, seed, *name) for seed, *name in ((0,), (0,), (1,), (0, "x")))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    for different in (other, elsewhere):
        assert not torch.equal(next(first.parameters()), next(different.parameters()))
    x = models.example_input(model)
    assert tuple(x.shape[1:]) == models.input_shape(model)
    out = first.eval()(x)
    assert out.shape == (1, {"mlp": 3, "autoencoder": 64}.get(kind, 10))


def test_biases_and_batchnorm():
    def biases(module):
        return [m.bias is not None for m in module.modules() if isinstance(m, nn.Linear | nn.Conv2d)]

    def norms(module):
        return [i for i, m in enumerate(module) if isinstance(m, nn.BatchNorm2d)]

    assert biases(models.mlp(4, [3, 3])) == [False, False, True]
    assert biases(models.mlp(4, [3, 3], batchnorm=False)) == [True, True, True]
    assert biases(models.mlp(4, [3, 3], bias=True)) == [True, True, True]
    assert biases(models.autoencoder(16, 2)) == [True, True, True, False]
    blocks, last = models.cifar_nv(0.03), models.cifar_nv(0.03, bn="last")
    assert [blocks[i - 1].out_channels for i in norms(blocks)] == [4, 8]
    assert [last[i - 1].out_channels for i in norms(last)] == [10]
    assert norms(models.cifar_nv(0.03, batchnorm=False)) == []


@pytest.mark.parametrize(("name", "cls"), [("relu", nn.ReLU), ("gelu", nn.GELU), ("silu", nn.SiLU)])
@pytest.mark.parametrize("kind", BLOCKS)
def test_activations(kind, name, cls):
    module = models.build({**BLOCKS[kind], "activation": name})
    assert any(isinstance(m, cls) for m in module.modules())
    assert sum(isinstance(m, nn.ReLU | nn.GELU | nn.SiLU) for m in module.modules()) == sum(
        isinstance(m, cls) for m in module.modules()
    )


def test_initialisations():
    model = {"kind": "mlp", "inputs": 300, "hidden": [400], "outputs": 200}
    for initialisation, gain in (("default", 1 / 3), ("he", 2.0)):
        module = models.make(model, 0, initialisation=initialisation)
        for layer in (module[1], module[-1]):
            n = layer.in_features
            assert float(layer.weight.detach().var()) * n == pytest.approx(gain, rel=0.05)
            assert float(layer.weight.detach().abs().max()) <= math.sqrt(3 * gain / n) * (1 + 1e-6)
        assert float(module[-1].bias.detach().abs().max()) <= 1 / math.sqrt(module[-1].in_features)


def test_images_are_cut_and_flattened():
    images = torch.arange(2 * 3 * 6 * 6, dtype=torch.float32).reshape(2, 3, 6, 6)
    flat = models.fit_images(images, {"kind": "mlp", "inputs": 48})
    assert torch.equal(flat, images[..., 1:5, 1:5].reshape(2, 48))
    assert torch.equal(models.fit_images(images, {"kind": "mlp", "inputs": 108}), images.reshape(2, 108))
    assert torch.equal(models.fit_images(images, {"kind": "cifar_nv", "image": 2}), images[..., 2:4, 2:4])
    for model in ({"kind": "resnet18_c"}, {"kind": "mlp", "inputs": 50}):
        with pytest.raises(PaperError, match=r"got images of shape \(3, 6, 6\)"):
            models.fit_images(images, model)
