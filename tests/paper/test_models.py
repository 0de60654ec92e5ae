"""Networks: sizes, options, seeds, errors that help, and that the rescaling keeps the function of common ones."""

import pytest
import torch
from torch import nn

import pathcond
from paper import models
from paper.seeds import generator
from tests.paper.training.reference import GPT

BLOCKS = {
    "mlp": {"kind": "mlp", "inputs": 12, "hidden": [5, 4], "outputs": 3},
    "cifar_nv": {"kind": "cifar_nv", "width": 0.03125, "image": 8},
    "resnet18_c": {"kind": "resnet18_c", "width": 0.0625, "image": 8},
    "autoencoder": {"kind": "autoencoder", "inputs": 64, "compression": 2},
}


@pytest.mark.parametrize(("model", "parameters", "units"), [
    ({"kind": "mlp"}, 2_044_010, 1_500),
    ({"kind": "cifar_nv"}, 2_618_378, 1_792),
    ({"kind": "resnet18_c"}, 11_528_266, 3_904),
    ({"kind": "resnet18_c", "held": True}, 11_528_266, 3_392),
    ({"kind": "autoencoder", "compression": 4}, 326_977, 441),
])  # fmt: skip
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
    for name, cls in (("relu", nn.ReLU), ("gelu", nn.GELU), ("silu", nn.SiLU)):
        parts = models.build({**model, "activation": name}).modules()
        assert {type(m) for m in parts if isinstance(m, nn.ReLU | nn.GELU | nn.SiLU)} == {cls}


# ---- common architectures

SIZES = {  # millions of parameters
    "vgg11": 9.2, "vgg16": 14.7, "resnet18": 11.2, "mobilenetv2": 0.7, "mobilenetv1": 3.2, "densenet": 0.18,
    "vit_tiny": 1.8,
}  # fmt: skip
TOKENS = torch.randint(0, 16, (4, 32), generator=generator(0, "input"))


@pytest.mark.parametrize("kind", SIZES)
def test_they_take_images_and_are_of_the_usual_size(kind):
    module = models.make({"kind": kind, "image": 32}, 0)
    assert module.eval()(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert models.parameters(module) / 1e6 == pytest.approx(SIZES[kind], abs=0.06)


@pytest.mark.parametrize("model", [
    {"kind": "vgg11", "width": 0.125, "batchnorm": False, "image": 32},
    {"kind": "resnet18", "width": 0.125, "image": 16},
    {"kind": "densenet", "image": 16},
    {"kind": "mobilenetv1", "image": 16},
    GPT,
], ids=lambda model: model["kind"])  # fmt: skip
def test_the_rescaling_keeps_their_function(model):
    module = models.make(model, 0).double().eval()
    x = TOKENS if model is GPT else torch.randn(4, *models.input_shape(model), dtype=torch.float64)
    before = module(x)
    report = pathcond.rescale_(module, x, damping=0.5)
    assert report.moved > 0
    if model is GPT:  # per block: gains of two norms, values, queries against keys; the last norm; not behind GELU
        assert (report.units, report.graph.frozen_channels) == (2 * 4 * 24 + 24, 2 * 4 * 24)
    torch.testing.assert_close(module(x), before, rtol=1e-9, atol=1e-9)


def test_a_gpt_predicts_every_token_from_those_before_it():
    assert set(SIZES) | set(models.TEXT) < set(models.KINDS)
    whole = {"kind": "gpt", "vocabulary": 63, "context": 128, "width": 192, "layers": 6, "heads": 3}
    assert models.parameters(models.make(whole, 0)) / 1e6 == pytest.approx(2.72, abs=0.01)
    module, x = models.make(GPT, 0), TOKENS
    y = module(x)
    assert y.shape == (4, 32, 16)
    changed = x.clone()
    changed[:, 20] = (x[:, 20] + 1) % 16
    differs = (module(changed) - y).abs().amax((0, 2)) > 0
    assert differs.tolist() == [False] * 20 + [True] * 12
