"""Networks built from blocks of config.yaml: the paper's own are here, common architectures in `paper.networks`."""

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import pathcond
from paper import networks
from paper.errors import PaperError
from paper.seeds import seeded

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}
INITIALISATIONS = ("default", "he")


def mlp(
    inputs: int = 3072,
    hidden: Sequence[int] = (500, 500, 500),
    outputs: int = 10,
    *,
    batchnorm: bool = True,
    activation: str = "relu",
    bias: bool | None = None,
) -> nn.Sequential:
    """Fully connected network on flattened inputs.

    Args:
        inputs: numbers in one input.
        hidden: widths of the hidden layers.
        outputs: width of the output layer, which always has a bias.
        batchnorm: BatchNorm after each hidden linear layer.
        activation: relu, gelu or silu.
        bias: biases in the hidden layers; None: only without BatchNorm, which has shifts of its own.
    """
    bias = not batchnorm if bias is None else bias
    layers: list[nn.Module] = [nn.Flatten()]
    for n, m in zip((inputs, *hidden[:-1]), hidden, strict=True):
        layers += [nn.Linear(n, m, bias=bias), *([nn.BatchNorm1d(m)] if batchnorm else []), _activation(activation)]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], outputs))


def cifar_nv(
    width: float = 1.0, *, batchnorm: bool = True, bn: str = "blocks", activation: str = "relu", bias: bool = True
) -> nn.Sequential:
    """The all-convolutional network CIFAR-NV with 10 classes.

    Args:
        width: multiplies the numbers of hidden channels, 128, 256 and 320.
        batchnorm: whether there is any BatchNorm.
        bn: ``blocks``: after the third and the sixth convolution; ``last``: after the last one.
        activation: relu, gelu or silu.
        bias: biases in all convolutions.
    """
    _check_choice("bn", bn, ("blocks", "last"))
    a, b, c = (_channels(n, width) for n in (128, 256, 320))
    norm_blocks, norm_last = batchnorm and bn == "blocks", batchnorm and bn == "last"

    def conv(n: int, m: int, size: int, norm: bool = False) -> list[nn.Module]:
        layers: list[nn.Module] = [nn.Conv2d(n, m, size, padding=size // 2, bias=bias)]
        return [*layers, *([nn.BatchNorm2d(m)] if norm else []), _activation(activation)]

    layers: list[nn.Module] = []
    for n, m in ((3, a), (a, b)):
        layers += [*conv(n, m, 3), *conv(m, m, 3), *conv(m, m, 3, norm_blocks), nn.MaxPool2d(3, 2, 1)]
    layers += [*conv(b, c, 3), *conv(c, c, 1), *conv(c, 10, 1, norm_last)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class BlockC(nn.Module):
    """Residual block with a learned 1x1 shortcut, from ``n`` to ``m`` channels."""

    def __init__(self, n: int, m: int, stride: int, activation: str = "relu") -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(n, m, 3, stride, 1, bias=False), nn.BatchNorm2d(m)
        self.conv2, self.bn2 = nn.Conv2d(m, m, 3, 1, 1, bias=False), nn.BatchNorm2d(m)
        self.shortcut = nn.Sequential(nn.Conv2d(n, m, 1, stride, bias=False), nn.BatchNorm2d(m))
        self.activation = _activation(activation)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, n, height, width) to (batch, m, height / stride, width / stride)."""
        y = self.bn2(self.conv2(self.activation(self.bn1(self.conv1(x)))))
        return self.activation(y + self.shortcut(x))


def resnet18_c(width: float = 1.0, *, activation: str = "relu") -> nn.Sequential:
    """ResNet-18 for small images with 10 classes: 3x3 stem, no max-pool, every shortcut a convolution.

    Args:
        width: multiplies the numbers of channels, 64 to 512.
        activation: relu, gelu or silu.
    """
    n = _channels(64, width)
    layers: list[nn.Module] = [nn.Conv2d(3, n, 3, 1, 1, bias=False), nn.BatchNorm2d(n), _activation(activation)]
    for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        m = _channels(channels, width)
        layers += [BlockC(n, m, stride, activation), BlockC(m, m, 1, activation)]
        n = m
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n, 10))


def autoencoder(inputs: int = 784, compression: int = 4, *, activation: str = "relu") -> nn.Sequential:
    """Fully connected autoencoder without BatchNorm: biases in the hidden layers, none in the output layer.

    Args:
        inputs: numbers in one input, and outputs.
        compression: c of the widths inputs, inputs // c, inputs // c^2, inputs // c, inputs.
        activation: relu, gelu or silu.
    """
    outer, inner = inputs // compression, inputs // compression**2
    layers: list[nn.Module] = [nn.Flatten()]
    for n, m in ((inputs, outer), (outer, inner), (inner, outer)):
        layers += [nn.Linear(n, m), _activation(activation)]
    return nn.Sequential(*layers, nn.Linear(outer, inputs, bias=False))


KINDS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "cifar_nv": cifar_nv,
    "resnet18_c": resnet18_c,
    "autoencoder": autoencoder,
    **networks.KINDS,
}
# Kinds that take images, of side `image`.
_IMAGES = ("cifar_nv", "resnet18_c", *(kind for kind in networks.KINDS if kind not in networks.TEXT))
_MORE = dict.fromkeys(_IMAGES, ("image",)) | {"resnet18_c": ("image", "held")}  # keys that `build` may handle itself


def build(model: Mapping[str, Any]) -> nn.Module:
    """A network with weights from torch's global generator in its present state.

    Args:
        model: ``kind`` and the arguments of the function of that name in this module; convolutional networks may also
            have ``image``, the side of their inputs, and resnet18_c ``held`` (see :func:`units`).

    Raises:
        PaperError: the kind or a key is unknown.
    """
    kind = _kind(model)
    known = list(inspect.signature(KINDS[kind]).parameters)
    unknown = [key for key in model if key not in ("kind", *known, *_MORE.get(kind, ()))]
    if unknown:
        raise PaperError(f"keys of a model of kind {kind}: expected {', '.join(known)}; got {', '.join(unknown)}.")
    return KINDS[kind](**{key: value for key, value in model.items() if key in known})


def make(model: Mapping[str, Any], seed: int, *names: object, initialisation: str = "default") -> nn.Module:
    """A network whose weights depend on the arguments alone.

    Args:
        model: as for :func:`build`.
        seed: the seed.
        names: other values that separate the streams of random numbers, such as a depth.
        initialisation: ``default``: torch's own (Kaiming uniform with a = sqrt(5), so variance 1 / (3 fan_in)).
            ``he``: weights of variance 2 / fan_in, biases as by default.
    """
    _check_choice("initialisation", initialisation, INITIALISATIONS)
    with seeded(seed, "init", *names):
        module = build(model)
        if initialisation == "he":
            for layer in module.modules():
                if isinstance(layer, nn.Linear | nn.Conv2d):
                    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    return module


def input_shape(model: Mapping[str, Any]) -> tuple[int, ...]:
    """Shape of one input without the batch: (3, image, image), (inputs,) if fully connected, (context,) for text."""
    if _kind(model) in _IMAGES:
        side = model.get("image", 32)
        return (3, side, side)
    if model["kind"] in networks.TEXT:
        return (model["context"],)
    return (model.get("inputs", inspect.signature(KINDS[model["kind"]]).parameters["inputs"].default),)


def example_input(model: Mapping[str, Any]) -> Tensor:
    """A batch of one input of ones; for text, of the token 1."""
    return torch.ones(1, *input_shape(model), dtype=torch.long if model["kind"] in networks.TEXT else None)


def fit_windows(windows: Tensor, model: Mapping[str, Any]) -> Tensor:
    """Windows of a text, or their labels, (batch, characters), cut to the context of a model."""
    return windows[:, : model["context"]]


def fit_images(images: Tensor, model: Mapping[str, Any]) -> Tensor:
    """Images (batch, channels, side, side) cut around their middle to the size that a model takes, flat or not."""
    shape = input_shape(model)
    side = shape[-1] if len(shape) == 3 else math.isqrt(shape[0] // images.shape[1])
    room = images.shape[-1] - side
    if room < 0 or images.shape[1] * side**2 != math.prod(shape):
        raise PaperError(
            f"images for a model of kind {model['kind']}: expected {math.prod(shape)} numbers of each, got images "
            f"of shape {tuple(images.shape[1:])}. Set `inputs` or `image` to a smaller square, or take another dataset."
        )
    first = room // 2
    cut = images[..., first : first + side, first : first + side]
    return cut.flatten(1) if len(shape) == 1 else cut


def units(module: nn.Module, x: Tensor, model: Mapping[str, Any]) -> pathcond.ScaleGraph:
    """The units of a network as the paper counts them, without those of BatchNorm.

    The paper's solver does not rescale the output channels of ResNet-18-C's last block, though it could. With ``held``
    in the model they have no scale here either.
    """
    graph = pathcond.extract_graph(module, x, batchnorm="exclude")
    if not model.get("held"):
        return graph
    last = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)][-1]
    return _without(graph, graph.params[f"{last}.weight"].col)


def _without(graph: pathcond.ScaleGraph, held: Tensor) -> pathcond.ScaleGraph:
    """A graph in which these units have no scale; the others are renumbered."""
    free = torch.ones(graph.units + 1, dtype=torch.bool)
    free[held] = free[0] = False
    number = free.cumsum(0) * free
    groups = (int(part.sum()) for part in free[1:].split(list(graph.groups)))
    return dataclasses.replace(
        graph,
        units=int(free.sum()),
        layers={name: number[units] for name, units in graph.layers.items()},
        groups=tuple(size for size in groups if size),
        params={
            name: pathcond.ParamScales(number[units.row], number[units.col]) for name, units in graph.params.items()
        },
    )


def parameters(module: nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(p.numel() for p in module.parameters())


def _kind(model: Mapping[str, Any]) -> str:
    _check_choice("kind of a model", model.get("kind"), tuple(KINDS))
    return model["kind"]


def _activation(name: str) -> nn.Module:
    _check_choice("activation", name, tuple(ACTIVATIONS))
    return ACTIVATIONS[name]()


def _channels(count: int, width: float) -> int:
    return max(1, round(count * width))


def _check_choice(what: str, got: object, expected: tuple[str, ...]) -> None:
    if got not in expected:
        raise PaperError(f"{what}: expected one of {', '.join(expected)}, got {got!r}.")
