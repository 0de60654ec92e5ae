"""Common architectures: shapes, sizes, and that the rescaling keeps their function."""

import pytest
import torch

import pathcond
from paper import models, networks
from paper.seeds import generator

SIZES = {  # millions of parameters
    "vgg11": 9.2, "resnet18": 11.2, "mobilenetv2": 0.7, "efficientnet_b0": 4.0, "convnext_zepto": 1.9, "vit_tiny": 1.8,
    "mixer": 1.25,
}  # fmt: skip
GPT = {"kind": "gpt", "vocabulary": 16, "context": 32, "width": 24, "layers": 2, "heads": 3}


def tokens(count):
    return torch.randint(0, 16, (count, 32), generator=generator(0, "input"))


@pytest.mark.parametrize("kind", SIZES)
def test_they_take_images_and_are_of_the_usual_size(kind):
    module = models.make({"kind": kind, "image": 32}, 0)
    assert module.eval()(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert models.parameters(module) / 1e6 == pytest.approx(SIZES[kind], abs=0.06)


@pytest.mark.parametrize(
    "model",
    [
        {"kind": "vgg11", "width": 0.125, "batchnorm": False, "image": 32},
        {"kind": "resnet18", "width": 0.125, "image": 16},
        {"kind": "mixer", "image": 16},
        GPT,
    ],
    ids=lambda model: model["kind"],
)
def test_the_rescaling_keeps_their_function(model):
    module = models.make(model, 0).double().eval()
    x = torch.randn(4, *models.input_shape(model), dtype=torch.float64)
    x = tokens(4) if model is GPT else x
    before = module(x)
    report = pathcond.rescale_(module, x)
    assert report.moved > 0
    torch.testing.assert_close(module(x), before, rtol=1e-9, atol=1e-9)


def test_a_gpt_predicts_every_token_from_those_before_it():
    assert set(SIZES) | set(networks.TEXT) == set(networks.KINDS)
    whole = {"kind": "gpt", "vocabulary": 63, "context": 128, "width": 192, "layers": 6, "heads": 3}
    assert models.parameters(models.make(whole, 0)) / 1e6 == pytest.approx(2.72, abs=0.01)
    module, x = models.make(GPT, 0), tokens(2)
    y = module(x)
    assert y.shape == (2, 32, 16)
    changed = x.clone()
    changed[:, 20] = (x[:, 20] + 1) % 16
    differs = (module(changed) - y).abs().amax((0, 2)) > 0
    assert differs.tolist() == [False] * 20 + [True] * 12


def test_of_a_gpt_all_units_but_those_behind_gelu_are_free():
    module = models.make(GPT, 0).double()
    graph = pathcond.extract_graph(module, models.example_input(GPT))
    # Per block: gains of two norms, values, and queries against keys; then the last norm.
    assert graph.units == 2 * 4 * 24 + 24
    assert graph.frozen_units == 2 * 4 * 24
    with torch.no_grad():
        for parameter in module.parameters():  # gains and biases too
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator(1, "input"), dtype=torch.float64))
    before = module(tokens(3))
    u = torch.randn(graph.units, generator=generator(2, "input"), dtype=torch.float64)
    pathcond.apply_scales_(module, graph, u)
    torch.testing.assert_close(module(tokens(3)), before, rtol=1e-9, atol=1e-9)
