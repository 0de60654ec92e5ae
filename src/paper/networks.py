"""Common architectures: for 32 x 32 pixels and ten classes, from torchvision where it has them, and a GPT for text."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 10


def vgg11(width: float = 1.0, *, batchnorm: bool = True) -> nn.Module:
    """VGG-11 with one linear layer behind its convolutions.

    Args:
        width: multiplies the numbers of channels, 64 to 512.
        batchnorm: BatchNorm after each convolution.
    """
    from torchvision.models.vgg import make_layers

    plan: list[str | int] = [64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"]
    plan = [entry if isinstance(entry, str) else _channels(entry, width) for entry in plan]
    layers = make_layers(plan, batch_norm=batchnorm)
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(_channels(512, width), CLASSES))


def resnet18(width: float = 1.0) -> nn.Module:
    """ResNet-18 with a 3x3 stem and without max-pool; initialised like torchvision's.

    Args:
        width: multiplies the numbers of channels, 64 to 512.
    """
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
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def mobilenetv2() -> nn.Module:
    """MobileNetV2 of half the width, without its first and two later strides: 32 x 32 pixels end as 4 x 4."""
    from torchvision.models import mobilenet_v2

    blocks = [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 3, 2], [6, 64, 4, 2], [6, 96, 3, 1], [6, 160, 3, 1], [6, 320, 1, 1]]
    model = mobilenet_v2(num_classes=CLASSES, dropout=0.0, width_mult=0.5, inverted_residual_setting=blocks)
    model.features[0][0].stride = (1, 1)
    return model


def efficientnet_b0() -> nn.Module:
    """EfficientNet-B0 without its last stride, so that 32 x 32 pixels end as 2 x 2; no dropout, no stochastic depth."""
    from torchvision.models import efficientnet_b0

    model = efficientnet_b0(num_classes=CLASSES, dropout=0.0, stochastic_depth_prob=0.0)
    model.features[6][0].block[1][0].stride = (1, 1)
    return model


def convnext_zepto() -> nn.Module:
    """ConvNeXt of the size called zepto, with patches of 2 x 2 pixels."""
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    stages = [CNBlockConfig(32, 64, 2), CNBlockConfig(64, 128, 2), CNBlockConfig(128, 256, 4)]
    model = ConvNeXt([*stages, CNBlockConfig(256, None, 2)], num_classes=CLASSES)
    stem = nn.Conv2d(3, 32, 2, 2)
    nn.init.trunc_normal_(stem.weight, std=0.02)
    nn.init.zeros_(stem.bias)  # pyright: ignore[reportArgumentType]
    model.features[0][0] = stem  # pyright: ignore[reportIndexIssue]
    return model


def vit_tiny(image: int = 32) -> nn.Module:
    """Vision transformer with patches of 4 x 4 pixels: width 192, 4 layers, 3 heads.

    Args:
        image: side of the images.
    """
    from torchvision.models import VisionTransformer

    return VisionTransformer(image, 4, num_layers=4, num_heads=3, hidden_dim=192, mlp_dim=768, num_classes=CLASSES)


class MixerBlock(nn.Module):
    """Two residual MLPs: over the tokens, then over the channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_tokens = nn.Sequential(nn.Linear(tokens, width // 2), nn.GELU(), nn.Linear(width // 2, tokens))
        self.over_channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        x = x + self.over_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_channels(self.norm2(x))


def mixer(image: int = 32, width: int = 192, depth: int = 4) -> nn.Module:
    """MLP-Mixer with patches of 4 x 4 pixels.

    Args:
        image: side of the images.
        width: channels of a token.
        depth: number of blocks.
    """
    tokens = (image // 4) ** 2
    return nn.Sequential(
        nn.Conv2d(3, width, 4, 4), nn.Flatten(2), Transpose(), *(MixerBlock(tokens, width) for _ in range(depth)),
        nn.LayerNorm(width), Transpose(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, CLASSES),
    )  # fmt: skip


class Transpose(nn.Module):
    """Swap the last two axes."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, n, m) to (batch, m, n)."""
        return x.transpose(1, 2)


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
    """Decoder-only transformer with learned positions and a head of its own; initialised like GPT-2."""

    def __init__(self, vocabulary: int, context: int, width: int, layers: int, heads: int) -> None:
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


def gpt(vocabulary: int, context: int = 128, width: int = 192, layers: int = 6, heads: int = 3) -> nn.Module:
    """A small GPT.

    Args:
        vocabulary: number of tokens.
        context: tokens that it sees at once, at most.
        width: channels of a token.
        layers: number of blocks.
        heads: heads of attention.
    """
    return GPT(vocabulary, context, width, layers, heads)


TEXT = ("gpt",)  # kinds that take text
KINDS: dict[str, Callable[..., nn.Module]] = {
    "vgg11": vgg11,
    "resnet18": resnet18,
    "mobilenetv2": mobilenetv2,
    "efficientnet_b0": efficientnet_b0,
    "convnext_zepto": convnext_zepto,
    "vit_tiny": vit_tiny,
    "mixer": mixer,
    "gpt": gpt,
}


def _channels(count: int, width: float) -> int:
    return max(1, round(count * width))
