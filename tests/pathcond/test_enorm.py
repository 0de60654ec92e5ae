"""ENorm against a literal implementation, element by element, and the promises it makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from pathcond.enorm import ENorm
from pathcond.graph import extract_graph

D = torch.float64


class Residual(nn.Module):
    """A block with a convolution as shortcut, then one with the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 3, 3, padding=1)
        self.a, self.b, self.short = (nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 5, 3, padding=1), nn.Conv2d(3, 5, 1))
        self.d, self.e = nn.Conv2d(5, 4, 3, padding=1), nn.Conv2d(4, 5, 1)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x).relu()
        h = (self.b(self.a(h).relu()) + self.short(h)).relu()
        h = (h + self.e(self.d(h).relu())).relu()
        return self.head(h.mean((2, 3)))


class Coupled(nn.Module):
    """Weights that connect the units of one layer to one another, and to themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner = nn.Linear(3, 4), nn.Linear(4, 4)
        self.gain, self.head = nn.Parameter(torch.rand(4) + 0.5), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x).relu()
        h = h + self.inner(h).relu()
        return self.head(h + self.gain * h)


class Concat(nn.Module):
    """Two branches side by side, a bias added by hand, and a weight of another orientation."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 4, bias=False), nn.Linear(3, 2)
        self.shift, self.mix = nn.Parameter(torch.randn(1, 4)), nn.Parameter(torch.randn(6, 5))
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat((self.right(x).relu(), (self.left(x) + self.shift).relu()), 1)
        return self.head((h @ self.mix).relu())


@dataclass(frozen=True)
class Case:
    """A network, its input, and by hand: its weights in order, its biases, units that only half a step is made for."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    weights: tuple[str, ...]
    biases: tuple[str, ...]
    coupled: tuple[int, ...] = ()
    batchnorm: str = "affine"

    def make(self) -> tuple[nn.Module, Tensor]:
        torch.manual_seed(0)
        model = self.build().double()
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.is_floating_point():
                tensor.data.copy_(torch.rand_like(tensor) + 0.5 if "var" in name else torch.randn_like(tensor))
        return model, torch.randn(4, *self.shape, dtype=D)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 3, padding=1), nn.LeakyReLU(),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 2),
    )  # fmt: skip


def grouped() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 1), nn.ReLU(), nn.Conv2d(4, 6, 3, groups=2), nn.ReLU(), nn.ChannelShuffle(3),
        nn.Conv2d(6, 6, 3, groups=6), nn.ReLU(), nn.ConvTranspose2d(6, 4, 2, groups=2), nn.Flatten(), nn.Linear(100, 2),
    )  # fmt: skip


def norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3, bias=False),
        nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 2),
    )  # fmt: skip


MLP_WEIGHTS, MLP_BIASES = ("0.weight", "2.weight", "4.weight"), ("0.bias", "2.bias")
RESIDUAL = tuple(f"{name}.weight" for name in ("stem", "a", "b", "short", "d", "e", "head"))
RESIDUAL_BIASES = tuple(f"{name}.bias" for name in ("stem", "a", "b", "short", "d", "e"))
CASES = {
    "mlp": Case(mlp, (3,), MLP_WEIGHTS, MLP_BIASES),
    "conv": Case(conv, (2, 8, 8), ("0.weight", "3.weight", "7.weight"), ("0.bias", "3.bias")),
    "grouped": Case(
        grouped,
        (2, 8, 8),
        ("0.weight", "2.weight", "5.weight", "7.weight", "9.weight"),
        ("0.bias", "2.bias", "5.bias", "7.bias"),
    ),
    "residual": Case(Residual, (2, 4, 4), RESIDUAL, RESIDUAL_BIASES),
    "coupled": Case(
        Coupled,
        (3,),
        ("stem.weight", "inner.weight", "gain", "head.weight"),
        ("stem.bias", "inner.bias"),
        coupled=(1, 2, 3, 4),
    ),
    "concat": Case(Concat, (3,), ("right.weight", "left.weight", "mix", "head.weight"), ("right.bias", "shift")),
    "affine": Case(
        norm,
        (2, 6, 6),
        ("1.weight", "3.weight", "4.weight", "7.weight", "8.weight", "10.weight"),
        ("1.bias", "4.bias", "8.bias"),
    ),
    "exclude": Case(
        norm,
        (2, 6, 6),
        ("0.weight", "3.weight", "7.weight", "8.weight", "10.weight"),
        ("8.bias",),
        batchnorm="exclude",
    ),
}
EXACT = [name for name in CASES if name != "exclude"]


def literal_cycle(model: nn.Module, x: Tensor, case: Case, p: float, c: float, biases: bool = True) -> None:
    """One cycle, unit by unit: masks over all elements, every weight written as soon as its unit's scale is known."""
    graph = extract_graph(model, x, batchnorm=case.batchnorm)
    tensors = dict(model.named_parameters())
    assert set(graph.params) == {*case.weights, *case.biases}
    index = {n: tuple(t.expand(graph.shapes[n]) for t in (s.row, s.col)) for n, s in graph.params.items()}
    unit = 1
    for size in graph.groups:
        scales = {}
        for h in range(unit, unit + size):
            into = out = 0.0
            for depth, name in enumerate(case.weights):
                row, col = index[name]
                power = c ** (-p * depth) * tensors[name].detach().abs() ** p
                into += float(power[(row == h) & (col != h)].sum())
                out += float(power[(row != h) & (col == h)].sum())
            if into and out:
                scales[h] = (out / into) ** (1 / (2 * p) / (2 if h in case.coupled else 1))
        for h, scale in scales.items():
            for name in (*case.weights, *(case.biases if biases else ())):
                row, col = index[name]
                tensors[name].data[row == h] *= scale
                tensors[name].data[col == h] /= scale
        unit += size


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def outputs(model: nn.Module, x: Tensor, training: bool) -> Tensor:
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    mode, _ = model.training, model.train(training)
    with torch.no_grad():
        y = torch.func.functional_call(model, buffers, (x,))
    model.train(mode)
    return y


def close(a: Tensor, b: Tensor, tol: float) -> bool:
    a, b = a.detach(), b.detach()
    return float((a - b).abs().amax()) <= tol * float(b.abs().amax())


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize(("p", "c"), [(1, 1.0), (2, 1.0), (2, 1.1), (1, 1.1), (3.5, 0.9)])
@pytest.mark.parametrize("name", CASES)
def test_step_is_the_literal_cycle(name: str, p: float, c: float, biases: bool) -> None:
    case = CASES[name]
    model, x = case.make()
    expected, _ = case.make()
    enorm = ENorm(model, x, p=p, c=c, biases=biases, batchnorm=case.batchnorm)
    for _ in range(2):
        literal_cycle(expected, x, case, p, c, biases)
        enorm.step()
    before = parameters(case.make()[0])
    assert any(not torch.equal(before[n], q) for n, q in model.named_parameters())
    for n, q in expected.named_parameters():
        assert close(dict(model.named_parameters())[n], q, 1e-12), n


def test_first_unit_by_hand_and_the_meaning_of_c() -> None:
    model, x = CASES["mlp"].make()
    first, second = (model[i].weight.detach().clone() for i in (0, 2))
    ENorm(model, x, c=1.21).step()
    scale = (second.norm(dim=0) / (1.21 * first.norm(dim=1))).sqrt()
    torch.testing.assert_close(model[0].weight.detach(), first * scale[:, None], rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", EXACT)
def test_function_is_kept_in_both_modes(name: str) -> None:
    case = CASES[name]
    model, x = case.make()
    before = [outputs(model, x, mode) for mode in (True, False)]
    enorm = ENorm(model, x)
    for _ in range(3):
        enorm.step()
    for mode, y in zip((True, False), before, strict=True):
        assert close(outputs(model, x, mode), y, 1e-10)


@pytest.mark.parametrize("name", EXACT)
def test_function_changes_without_biases(name: str) -> None:
    model, x = CASES[name].make()
    before, kept = outputs(model, x, False), parameters(model)
    ENorm(model, x, biases=False).step()
    assert not close(outputs(model, x, False), before, 1e-3)
    for bias in CASES[name].biases:
        assert torch.equal(dict(model.named_parameters())[bias], kept[bias])


def test_excluded_batchnorm_keeps_the_function_at_initialisation_only() -> None:
    torch.manual_seed(0)
    model, x = norm().double(), torch.randn(4, 2, 6, 6, dtype=D)
    before = {mode: outputs(model, x, mode) for mode in (True, False)}
    ENorm(model, x, batchnorm="exclude").step()
    assert close(outputs(model, x, False), before[False], 1e-10)
    assert not close(outputs(model, x, True), before[True], 1e-6)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_objective_never_rises_and_ends_balanced(name: str, p: float) -> None:
    case = CASES[name]
    model, x = case.make()
    enorm = ENorm(model, x, p=p, c=1.1, batchnorm=case.batchnorm)
    tensors = dict(model.named_parameters())
    by_hand = sum(
        1.1 ** (-p * depth) * float(tensors[n].detach().abs().pow(p).sum()) for depth, n in enumerate(case.weights)
    )
    values = [float(enorm.objective())]
    assert values[0] == pytest.approx(by_hand, rel=1e-12)
    for _ in range(400):
        enorm.step()
        values.append(float(enorm.objective()))
    assert values[1] < values[0]
    assert all(after <= before * (1 + 1e-14) for before, after in zip(values, values[1:], strict=False))
    balanced = parameters(model)
    enorm.step()
    assert all(close(q, balanced[n], 1e-9) for n, q in model.named_parameters())


@pytest.mark.parametrize(
    ("name", "still"), [("mlp", {2, 4}), ("conv", {3, 7}), ("affine", {8, 10}), ("exclude", {8, 10})]
)
def test_units_before_the_last_layer_can_be_left_alone(name: str, still: set[int]) -> None:
    case = CASES[name]
    model, x = case.make()
    before = parameters(model)
    ENorm(model, x, last_layer=False, batchnorm=case.batchnorm).step()
    for n in (*case.weights, *case.biases):
        module = int(n.split(".")[0])
        after, first = dict(model.named_parameters())[n].detach(), before[n]
        if module == max(still) or (module in still and n.endswith("bias")):
            assert torch.equal(after, first), n
        elif module not in still:
            assert not torch.equal(after, first), n
    assert name == "exclude" or close(outputs(model, x, True), outputs(case.make()[0], x, True), 1e-10)
