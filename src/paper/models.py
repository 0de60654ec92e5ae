"""Networks built from blocks of config.yaml: the paper's own, and common architectures.

The common ones are for 32 x 32 pixels and ten classes, from torchvision where it has them, and a GPT for text.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import pathcond
from paper.seeds import seeded

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}
CLASSES = 10


def mlp(
    inputs: int = 3072,
    hidden: Sequence[int] = (500, 500, 500),
    outputs: int = 10,
    *,
    batchnorm: bool = True,
    activation: str = "relu",
    bias: bool | None = None,
) -> nn.Sequential:
    """Fully connected network on flattened inputs, with a bias in its output layer.

    Without `bias` hidden layers have biases only if there is no BatchNorm, which has shifts of its own.
    """
    bias = not batchnorm if bias is None else bias
    layers: list[nn.Module] = [nn.Flatten()]
    for n, m in zip((inputs, *hidden[:-1]), hidden, strict=True):
        layers += [nn.Linear(n, m, bias=bias), *([nn.BatchNorm1d(m)] if batchnorm else []), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], outputs))


def cifar_nv(
    width: float = 1.0, *, batchnorm: bool = True, bn: str = "blocks", activation: str = "relu", bias: bool = True
) -> nn.Sequential:
    """The all-convolutional network CIFAR-NV with 10 classes; `width` multiplies its channels, 128, 256 and 320.

    BatchNorm follows the third and the sixth convolution (`bn` is ``blocks``), or the last one (``last``).
    """
    a, b, c = (_channels(n, width) for n in (128, 256, 320))
    norm_blocks, norm_last = batchnorm and bn == "blocks", batchnorm and bn == "last"

    def conv(n: int, m: int, size: int, norm: bool = False) -> list[nn.Module]:
        layers: list[nn.Module] = [nn.Conv2d(n, m, size, padding=size // 2, bias=bias)]
        return [*layers, *([nn.BatchNorm2d(m)] if norm else []), ACTIVATIONS[activation]()]

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
        self.activation = ACTIVATIONS[activation]()

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, n, height, width) to (batch, m, height / stride, width / stride)."""
        y = self.bn2(self.conv2(self.activation(self.bn1(self.conv1(x)))))
        return self.activation(y + self.shortcut(x))


def resnet18_c(width: float = 1.0, *, activation: str = "relu") -> nn.Sequential:
    """ResNet-18 for small images with 10 classes: 3x3 stem, no max-pool, every shortcut a convolution.

    `width` multiplies its channels, 64 to 512.
    """
    n = _channels(64, width)
    layers: list[nn.Module] = [nn.Conv2d(3, n, 3, 1, 1, bias=False), nn.BatchNorm2d(n), ACTIVATIONS[activation]()]
    for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        m = _channels(channels, width)
        layers += [BlockC(n, m, stride, activation), BlockC(m, m, 1, activation)]
        n = m
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n, 10))


def autoencoder(inputs: int = 784, compression: int = 4, *, activation: str = "relu") -> nn.Sequential:
    """Fully connected autoencoder without BatchNorm: biases in the hidden layers, none in the output layer.

    Its widths are inputs, inputs // c, inputs // c^2, inputs // c, inputs, where c is the compression.
    """
    outer, inner = inputs // compression, inputs // compression**2
    layers: list[nn.Module] = [nn.Flatten()]
    for n, m in ((inputs, outer), (outer, inner), (inner, outer)):
        layers += [nn.Linear(n, m), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, nn.Linear(outer, inputs, bias=False))


# ---- common architectures


def vgg(layers: str | list[int | str], width: float = 1.0, *, batchnorm: bool = True) -> nn.Module:
    """VGG with one linear layer behind its convolutions: torchvision's letter for 11 (A) or 16 (D) layers, or a list.

    `width` multiplies its channels, 64 to 512.
    """
    from torchvision.models.vgg import cfgs, make_layers

    chosen = cfgs[layers] if isinstance(layers, str) else layers
    plan = [entry if isinstance(entry, str) else _channels(entry, width) for entry in chosen]
    convolutions = make_layers(plan, batch_norm=batchnorm)
    _init_convolutions(convolutions)
    last = nn.Linear(_channels(512, width), CLASSES)
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), last)


def _init_convolutions(module: nn.Module) -> None:
    """Initialize convolutions as torchvision does: He's initialization by outputs, and no bias."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def resnet18(width: float = 1.0) -> nn.Module:
    """ResNet-18 with a 3x3 stem and without max-pool, initialized like torchvision's; `width` multiplies channels."""
    from torchvision.models.resnet import BasicBlock

    before = _channels(64, width)
    layers: list[nn.Module] = [nn.Conv2d(3, before, 3, padding=1, bias=False), nn.BatchNorm2d(before), nn.ReLU()]
    for stage, count in enumerate((64, 128, 256, 512)):
        channels = _channels(count, width)
        for block in range(2):
            stride = 2 if stage and not block else 1
            shortcut = None
            if stride != 1:
                shortcut = nn.Sequential(nn.Conv2d(before, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))
            layers.append(BasicBlock(before, channels, stride, shortcut))
            before = channels
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES))
    _init_convolutions(model)
    return model


def mobilenetv2(width: float = 0.5) -> nn.Module:
    """MobileNetV2 without its first and two later strides: 32 x 32 pixels end as 4 x 4; `width` multiplies channels."""
    from torchvision.models import mobilenet_v2

    blocks = [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 3, 2], [6, 64, 4, 2], [6, 96, 3, 1], [6, 160, 3, 1], [6, 320, 1, 1]]
    model = mobilenet_v2(num_classes=CLASSES, dropout=0.0, width_mult=width, inverted_residual_setting=blocks)
    model.features[0][0].stride = (1, 1)
    return model


def mobilenetv1() -> nn.Module:
    """MobileNet: 13 pairs of a depthwise and a 1 x 1 convolution, no shortcuts; 32 x 32 pixels end as 4 x 4."""
    plan = [(64, 1), (128, 1), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    before = 32

    def conv(*arguments: int, **options: int) -> list[nn.Module]:
        layer = nn.Conv2d(*arguments, bias=False, **options)
        return [layer, nn.BatchNorm2d(layer.out_channels), nn.ReLU()]

    layers = conv(3, before, 3, padding=1)
    for channels, stride in plan:
        layers += [*conv(before, before, 3, stride, 1, groups=before), *conv(before, channels, 1)]
        before = channels
    _init_convolutions(nn.Sequential(*layers))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES))


def densenet() -> nn.Module:
    """DenseNet with growth 12 and three blocks of 6 layers, a 3x3 stem and no max-pool before them."""
    from torchvision.models import DenseNet

    model = DenseNet(12, (6, 6, 6), 24, num_classes=CLASSES)
    model.features.conv0 = nn.Conv2d(3, 24, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(model.features.conv0.weight)
    model.features.pool0 = nn.Identity()
    return model


def vit_tiny(image: int = 32) -> nn.Module:
    """Vision transformer with patches of 4 x 4 pixels: width 192, 4 layers, 3 heads."""
    from torchvision.models import VisionTransformer

    return VisionTransformer(image, 4, num_layers=4, num_heads=3, hidden_dim=192, mlp_dim=768, num_classes=CLASSES)


class GPTBlock(nn.Module):
    """Causal attention and an MLP with GELU, each behind a LayerNorm and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        projected = self.query_key_value(self.norm1(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in projected)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Decoder-only transformer with learned positions and a head of its own; initialized like GPT-2."""

    def __init__(self, vocabulary: int, context: int = 128, width: int = 192, layers: int = 6, heads: int = 3) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(GPTBlock(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for name, parameter in self.named_parameters():
            if name.endswith(("output.weight", "mlp.2.weight")):  # their outputs are summed over all blocks
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers))

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (batch, tokens), integers, to logits of the token after each, (batch, tokens, vocabulary)."""
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.tokens(x) + self.positions(places))))


TEXT = ("gpt",)  # kinds that take text
_BUILDERS: list[Callable[..., nn.Module]] = [
    mlp, cifar_nv, resnet18_c, autoencoder, resnet18, mobilenetv2, mobilenetv1, densenet, vit_tiny,
]  # fmt: skip
KINDS: dict[str, Callable[..., nn.Module]] = {
    **{builder.__name__: builder for builder in _BUILDERS},
    "vgg11": partial(vgg, "A"),
    "vgg16": partial(vgg, "D"),
    "plain5": partial(vgg, [64, "M", 128, "M", 256, "M", 512, "M", 512, "M"]),
    "gpt": GPT,
}
_IMAGES = {*KINDS} - {"mlp", "autoencoder", *TEXT}  # kinds that take images of side `image`


def build(model: Mapping[str, Any]) -> nn.Module:
    """A network with weights from torch's global generator in its present state.

    `model` has its ``kind`` and the arguments of the function of that name in this module; convolutional networks may
    also have ``image``, the side of their inputs, and resnet18_c ``held`` (see :func:`units`).
    """
    known = inspect.signature(KINDS[model["kind"]]).parameters
    return KINDS[model["kind"]](**{key: value for key, value in model.items() if key in known})


def make(
    model: Mapping[str, Any], seed: int, *names: object, initialisation: str = "default", seeding: str | None = None
) -> nn.Module:
    """A network whose weights depend on the arguments alone; `names` separate streams of random numbers.

    With the seeding ``torch`` its layers are drawn right after ``torch.manual_seed(seed)``, as in the authors' code.

    The initialization is torch's ``default`` (Kaiming uniform with a = sqrt(5), so variance 1 / (3 fan_in)), or ``he``:
    weights of variance 2 / fan_in, biases as by default.
    """
    with seeded(seed, "init", *names):
        if seeding == "torch":
            torch.manual_seed(seed)
        module = build(model)
        if initialisation == "he":
            for layer in module.modules():
                if isinstance(layer, nn.Linear | nn.Conv2d):
                    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    return module


def input_shape(model: Mapping[str, Any]) -> tuple[int, ...]:
    """Shape of one input without the batch: (3, image, image), (inputs,) if fully connected, (context,) for text."""
    if model["kind"] in _IMAGES:
        return (3, *[model.get("image", 32)] * 2)
    if model["kind"] in TEXT:
        return (model["context"],)
    return (model.get("inputs", inspect.signature(KINDS[model["kind"]]).parameters["inputs"].default),)


def example_input(model: Mapping[str, Any]) -> Tensor:
    """A batch of one input of ones; for text, of the token 1."""
    return torch.ones(1, *input_shape(model), dtype=torch.long if model["kind"] in TEXT else None)


def fit_images(images: Tensor, model: Mapping[str, Any]) -> Tensor:
    """Images (batch, channels, side, side) cut around their middle to the size that a model takes, flat or not."""
    shape = input_shape(model)
    side = shape[-1] if len(shape) == 3 else math.isqrt(shape[0] // images.shape[1])
    first = (images.shape[-1] - side) // 2
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


def _channels(count: int, width: float) -> int:
    return max(1, round(count * width))
