"""The three networks the paper times: MLP 3x500 with BatchNorm, CIFAR-NV, ResNet-18 type C."""

from torch import Tensor, nn


def mlp(widths: tuple[int, ...] = (3072, 500, 500, 500, 10), batchnorm: bool = True) -> nn.Module:
    """Fully connected; with BatchNorm no biases in hidden layers."""
    layers: list[nn.Module] = [nn.Flatten()]
    for n, m in zip(widths[:-2], widths[1:-1], strict=True):
        layers += [nn.Linear(n, m, bias=not batchnorm), *([nn.BatchNorm1d(m)] if batchnorm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


def cifar_nv(bias: bool = True) -> nn.Module:
    """The all-convolutional network: BatchNorm after the third and the sixth convolution."""
    layers: list[nn.Module] = []
    for n, m in ((3, 128), (128, 256)):
        for i in range(3):
            layers += [nn.Conv2d(n if i == 0 else m, m, 3, padding=1, bias=bias)]
            layers += [nn.BatchNorm2d(m)] if i == 2 else []
            layers += [nn.ReLU()]
        layers += [nn.MaxPool2d(3, 2, 1)]
    layers += [nn.Conv2d(256, 320, 3, padding=1, bias=bias), nn.ReLU(), nn.Conv2d(320, 320, 1, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(320, 10, 1, bias=bias), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class BlockC(nn.Module):
    """Residual block with a learned 1x1 shortcut."""

    def __init__(self, n: int, m: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(n, m, 3, stride, 1, bias=False), nn.BatchNorm2d(m)
        self.conv2, self.bn2 = nn.Conv2d(m, m, 3, 1, 1, bias=False), nn.BatchNorm2d(m)
        self.shortcut = nn.Sequential(nn.Conv2d(n, m, 1, stride, bias=False), nn.BatchNorm2d(m))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + self.shortcut(x))


def resnet18_c() -> nn.Module:
    """ResNet-18 for 32x32 images, every shortcut a convolution."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    n = 64
    for m, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [BlockC(n, m, stride), BlockC(m, m, 1)]
        n = m
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


NETS = {"MLP 3x500": mlp, "CIFAR-NV": cifar_nv, "ResNet-18-C": resnet18_c}
