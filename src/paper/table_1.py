"""Table 1 as the paper prints it: parameters, hidden units and paths of six networks."""

TABLE_1: dict[str, tuple[int, int, str]] = {
    "mlp": (2_042_510, 1_500, "3.84e+12"),
    "cifar_nv": (2_616_576, 1_792, "4.13e+26"),
    "resnet18": (11_689_512, 4_800, "2.24e+53"),
    "resnet34": (21_797_672, 8_512, "1.19e+100"),
    "resnet50": (25_557_032, 26_560, "2.64e+136"),
    "vgg16": (138_357_544, 12_416, "5.89e+54"),
}
