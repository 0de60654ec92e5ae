"""Table 1: the paper's numbers, and path counts against exact integer arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet
from torchvision.models.vgg import VGG

from paper.experiments import architectures
from paper.experiments.architectures import TABLE_1

CPU = torch.device("cpu")


def exact_paths(model: nn.Module, pooling: str) -> Fraction:
    """With all parameters 1 the channels of a layer are alike: one map of integers stands for all."""
    start = np.full((32, 32), Fraction(1), dtype=object)
    value, channels = _through(model, start, 3, pooling)
    return value.sum() * channels


def _through(module: nn.Module, x: np.ndarray, channels: int, pooling: str) -> tuple[np.ndarray, int]:
    if isinstance(module, ResNet | BasicBlock | Bottleneck | VGG):
        return _model(module, x, channels, pooling)
    if isinstance(module, nn.Sequential):
        for part in module:
            x, channels = _through(part, x, channels, pooling)
        return x, channels
    if isinstance(module, nn.Conv2d):
        x = channels * _windows(x, module.kernel_size[0], module.stride[0], module.padding[0], 0).sum((2, 3))
        return x + int(module.bias is not None), module.out_channels
    if isinstance(module, nn.Linear):
        return np.array([channels * x.sum() + int(module.bias is not None)], dtype=object), module.out_features
    if isinstance(module, nn.BatchNorm2d):
        return x + 1, channels
    if isinstance(module, nn.MaxPool2d):
        cells = _windows(x, module.kernel_size, module.stride, module.padding, 0)
        return cells.max((2, 3)) if pooling == "paper" else cells.sum((2, 3)), channels
    if isinstance(module, nn.AdaptiveAvgPool2d):
        return _average(module, x, pooling), channels
    assert isinstance(module, nn.Flatten | nn.ReLU | nn.Dropout), module
    return x, channels


def _windows(x: np.ndarray, size: int, stride: int, padding: int, outside: int) -> np.ndarray:
    padded = np.pad(x, padding, constant_values=outside)
    return np.lib.stride_tricks.sliding_window_view(padded, (size, size))[::stride, ::stride]


def _average(module: nn.AdaptiveAvgPool2d, x: np.ndarray, pooling: str) -> np.ndarray:
    side = module.output_size if isinstance(module.output_size, int) else module.output_size[0]
    n = x.shape[0]
    edges = [(i * n // side, -(-(i + 1) * n // side)) for i in range(side)]
    cells = [[x[a:b, c:d] for c, d in edges] for a, b in edges]
    values = [[c.sum() / c.size if pooling == "paper" else c.sum() for c in row] for row in cells]
    return np.array(values, dtype=object)


def _model(module: nn.Module, x: np.ndarray, channels: int, pooling: str) -> tuple[np.ndarray, int]:
    if isinstance(module, VGG):
        parts = [module.features, module.avgpool, nn.Flatten(), module.classifier]
    elif isinstance(module, ResNet):
        parts = [module.conv1, module.bn1, module.maxpool, module.layer1, module.layer2, module.layer3, module.layer4]
        parts += [module.avgpool, module.fc]
    else:
        names = [n for i in (1, 2, 3) for n in (f"conv{i}", f"bn{i}") if hasattr(module, n)]
        skip = x if module.downsample is None else _through(module.downsample, x, channels, pooling)[0]
        x, channels = _through(nn.Sequential(*(getattr(module, n) for n in names)), x, channels, pooling)
        return x + skip, channels
    return _through(nn.Sequential(*parts), x, channels, pooling)


def _digits(number: Fraction) -> str:
    """A whole or broken number with 12 significant digits, rounded without floating point."""
    exponent = len(str(int(number))) - 1
    digits = round(number / Fraction(10) ** (exponent - 11))
    return f"{str(digits)[0]}.{str(digits)[1:]}e+{exponent:02d}"


@pytest.mark.parametrize("network", TABLE_1)
def test_the_paper_s_row_and_exact_counts(network):
    row = architectures.measure({"networks": [network], "image": 32}, CPU).iloc[0]
    parameters, units, paths = TABLE_1[network]
    assert row["parameters"] == parameters
    assert row["units_table"] == units
    assert f"{float(row['paths_paper']):.2e}" == paths
    model = architectures.build(network, 32)
    for pooling in ("paper", "all"):
        exact = exact_paths(model, pooling)
        assert row[f"paths_{pooling}"] == _digits(exact)
        assert row[f"log10_paths_{pooling}"] == pytest.approx(np.log10(float(exact)), rel=1e-14)
