"""Common architectures: shapes, sizes, and that the rescaling keeps their function."""

import pytest
import torch

import pathcond
from paper import models, networks

SIZES = {  # millions of parameters
    "vgg11": 9.2, "resnet18": 11.2, "mobilenetv2": 2.2, "efficientnet_b0": 4.0, "convnext_atto": 3.4, "vit_tiny": 2.7,
    "mixer": 1.9,
}  # fmt: skip


@pytest.mark.parametrize("kind", networks.KINDS)
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
    ],
    ids=lambda model: model["kind"],
)
def test_the_rescaling_keeps_their_function(model):
    module = models.make(model, 0).double().eval()
    x = torch.randn(4, *models.input_shape(model), dtype=torch.float64)
    before = module(x)
    report = pathcond.rescale_(module, x)
    assert report.moved > 0
    torch.testing.assert_close(module(x), before, rtol=1e-9, atol=1e-9)
