"""ENorm against a literal implementation, element by element, and as a part of training: formats, devices, graphs."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from paper.enorm import ENorm
from pathcond.checks import PathCondError
from pathcond.graph import extract_graph
from tests.cases import BY_NAME, Lambda, outputs


@dataclass(frozen=True)
class Case:
    """A network of `tests.cases`, and by hand: its weights in order, its biases, and units that make half a step."""

    network: str
    weights: str
    biases: str
    coupled: tuple[int, ...] = ()
    batchnorm: str = "affine"

    def make(self) -> tuple[nn.Module, Tensor]:
        return BY_NAME[self.network].model(), BY_NAME[self.network].input()


CASES = {
    "mlp": Case("mlp", "0.weight 2.weight 4.weight", "0.bias 2.bias"),
    "orientation": Case("by_hand", "w1 w2", "b1"),
    "grouped": Case("grouped", "0.weight 2.weight 4.2.weight", "0.bias 2.bias"),
    "transposed": Case("transposed", "0.weight 2.weight 4.weight 6.2.weight", "0.bias 2.bias 4.bias"),
    "residual": Case("residual_mlp", "stem.weight a.weight b.weight head.weight", "stem.bias a.bias b.bias"),
    "coupled": Case("residual_self", "a.weight b.weight h.weight", "a.bias b.bias", coupled=(1, 2, 3, 4)),
    "concat": Case("concat", "a.weight b.weight c.weight head.2.weight", "a.bias b.bias c.bias"),
    "gains": Case("layer_scale", "a.weight gain b.weight c.2.weight", "a.bias shift b.bias"),
    "affine": Case("depthwise", "1.weight 3.weight 4.weight 6.weight 8.2.weight", "1.bias 4.bias 6.bias"),
    "exclude": Case("depthwise", "0.weight 3.weight 6.weight 8.2.weight", "0.bias 3.bias 6.bias", batchnorm="exclude"),
}


def literal_cycle(model: nn.Module, x: Tensor, case: Case, p: float, c: float, biases: bool = True) -> None:
    """One cycle, unit by unit: masks over all elements, every weight written as soon as its unit's scale is known."""
    graph = extract_graph(model, x, batchnorm=case.batchnorm)
    tensors = dict(model.named_parameters())
    weights, shifts = case.weights.split(), case.biases.split()
    assert set(graph.params) == {*weights, *shifts}
    index = {n: tuple(t.expand(graph.shapes[n]) for t in (s.row, s.col)) for n, s in graph.params.items()}
    unit = 1
    for size in graph.groups:
        scales = {}
        for h in range(unit, unit + size):
            into = out = 0.0
            for depth, name in enumerate(weights):
                row, col = index[name]
                power = c ** (-p * depth) * tensors[name].detach().abs() ** p
                into += float(power[(row == h) & (col != h)].sum())
                out += float(power[(row != h) & (col == h)].sum())
            if into and out:
                scales[h] = (out / into) ** (1 / (2 * p) / (2 if h in case.coupled else 1))
        for h, scale in scales.items():
            for name in (*weights, *(shifts if biases else ())):
                row, col = index[name]
                tensors[name].data[row == h] *= scale
                tensors[name].data[col == h] /= scale
        unit += size


def close(a: Tensor, b: Tensor, tol: float) -> bool:
    a, b = a.detach(), b.detach()
    return float((a - b).abs().amax()) <= tol * float(b.abs().amax())


@pytest.mark.parametrize(("p", "c", "biases"), [(1, 1.1, True), (2, 1.0, True), (2, 1.1, False), (3.5, 0.9, False)])
@pytest.mark.parametrize("name", CASES)
def test_step_is_the_literal_cycle(name: str, p: float, c: float, biases: bool) -> None:
    case = CASES[name]
    model, x = case.make()
    expected, _ = case.make()
    enorm = ENorm(model, x, p=p, c=c, biases=biases, batchnorm=case.batchnorm)
    for _ in range(2):
        literal_cycle(expected, x, case, p, c, biases)
        enorm.step()
    before = dict(case.make()[0].named_parameters())
    assert any(not torch.equal(before[n], q) for n, q in model.named_parameters())
    for n, q in expected.named_parameters():
        assert close(dict(model.named_parameters())[n], q, 1e-12), n


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_objective_never_rises_and_ends_balanced_with_the_same_function(name: str, p: float) -> None:
    case = CASES[name]
    model, x = case.make()
    enorm = ENorm(model, x, p=p, c=1.1, batchnorm=case.batchnorm)
    weights = [model.get_parameter(n).detach() for n in case.weights.split()]
    by_hand = sum(1.1 ** (-p * depth) * float(w.abs().pow(p).sum()) for depth, w in enumerate(weights))
    values, before = [float(enorm.objective())], [outputs(model, x, mode) for mode in (True, False)]
    assert values[0] == pytest.approx(by_hand, rel=1e-12)
    for _ in range(400):
        enorm.step()
        values.append(float(enorm.objective()))
    assert values[1] < values[0]
    assert all(new <= old * (1 + 1e-14) for old, new in zip(values, values[1:], strict=False))
    for mode, y in zip((True, False), before, strict=True):
        assert name == "exclude" or close(outputs(model, x, mode), y, 1e-10)
    balanced = copy.deepcopy(model)
    enorm.step()
    assert all(close(q, balanced.get_parameter(n), 1e-9) for n, q in model.named_parameters())


@pytest.mark.parametrize(("name", "still"), [("mlp", {2, 4}), ("affine", {6, 8}), ("exclude", {6, 8})])
def test_units_before_the_last_layer_can_be_left_alone(name: str, still: set[int]) -> None:
    case = CASES[name]
    model, x = case.make()
    before = copy.deepcopy(model)
    ENorm(model, x, last_layer=False, batchnorm=case.batchnorm).step()
    for n in f"{case.weights} {case.biases}".split():
        module = int(n.split(".")[0])
        after, first = model.get_parameter(n), before.get_parameter(n)
        if module == max(still) or (module in still and n.endswith("bias")):
            assert torch.equal(after, first), n
        elif module not in still:
            assert not torch.equal(after, first), n
    assert name == "exclude" or close(outputs(model, x, True), outputs(case.make()[0], x, True), 1e-10)


# ---- as a part of training


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, groups=2, bias=False),
        nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(24, 5), nn.ReLU(), nn.Linear(5, 3),
    )  # fmt: skip


def batch(n: int = 16) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(n, 2, 8, 8, generator=g), torch.randint(0, 3, (n,), generator=g)


class NoHost(TorchDispatchMode):
    """Fails on operations that make the host wait for values, or whose shapes depend on them."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "unique", "_unique2", "item")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in self.FORBIDDEN, f"{func} synchronizes with the device"
        if func.overloadpacket.__name__.startswith("index"):
            indices = [i for i in args[1] if i is not None] if isinstance(args[1], (list, tuple)) else []
            assert all(i.dtype != torch.bool for i in indices), f"the shape of {func} depends on values"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("biases", [True, False])
def test_state_follows_the_parameters(biases: bool) -> None:
    """Averages of gradients are divided by the factor of the parameter, averages of squares by its square."""
    model, (x, y) = net().double(), batch()
    optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)
    enorm = ENorm(model, x[:1].double(), optimizer, biases=biases, c=2.0)
    nn.functional.cross_entropy(model(x.double()), y).backward()
    optimizer.step()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    state = copy.deepcopy(optimizer.state_dict()["state"])
    enorm.step()
    moved = set()
    for i, (name, p) in enumerate(model.named_parameters()):
        factor = p.detach() / before[name]
        moved |= {name} if not torch.equal(p, before[name]) else set()
        for key, power in {"exp_avg": 1, "exp_avg_sq": 2, "max_exp_avg_sq": 2}.items():
            torch.testing.assert_close(optimizer.state[p][key], state[i][key] / factor**power, rtol=1e-10, atol=0)
    assert {"0.weight", "4.weight", "7.weight", "9.weight"} <= moved
    assert ("0.bias" in moved) == biases
    with pytest.raises(PathCondError, match="none of the rescaled parameters"):
        ENorm(model, x[:1].double(), torch.optim.Adam(net().parameters()))


def test_step_is_free_of_host_round_trips() -> None:
    model, (x, y) = net(), batch()
    optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)
    enorm = ENorm(model, x[:1], optimizer, p=1, c=1.1)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    with NoHost():
        enorm.step()


def test_dead_and_broken_units_stay() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        model[0].weight[0] = 0  # nothing enters
        model[2].weight[:, 1] = 0  # nothing leaves
        model[0].weight[2, 0] = math.nan
    before = [p.detach().clone() for p in model.parameters()]
    ENorm(model, torch.ones(1, 3, dtype=torch.float64)).step()
    for p, old in zip(
        (model[0].weight, model[0].bias, model[2].weight.T), (before[0], before[1], before[2].T), strict=True
    ):
        torch.testing.assert_close(p[:3].detach(), old[:3], rtol=0, atol=0, equal_nan=True)
        assert not torch.equal(p[3], old[3])
    assert torch.isfinite(model[2].weight).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_formats_are_kept(dtype: torch.dtype) -> None:
    model, (x, _) = net().eval(), batch()
    model = model.to(dtype)
    reference = copy.deepcopy(model).double()
    enorm, exact = ENorm(model, x[:1].to(dtype)), ENorm(reference, x[:1].double())
    enorm.step()
    exact.step()
    eps = torch.finfo(dtype).eps
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        assert p.dtype == dtype
        torch.testing.assert_close(p.double(), q, rtol=4 * eps, atol=0)


def test_grads_flags_and_the_callers_mode_are_left_alone() -> None:
    model, (x, y) = net(), batch()
    model[3].weight.requires_grad_(False)
    nn.functional.cross_entropy(model(x), y).backward()
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    expected = copy.deepcopy(model)
    ENorm(expected, x[:1]).step()
    enorm = ENorm(model, x[:1])
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        enorm.step()
    for p, q, grad in zip(model.parameters(), expected.parameters(), grads, strict=True):
        assert torch.equal(p, q)
        assert (p.grad is None) == (grad is None)
        assert grad is None or (p.grad is not None and torch.equal(p.grad, grad))
    assert [p.requires_grad for p in model.parameters()].count(False) == 1
    assert model.training


@pytest.mark.parametrize("options", [{"p": 0}, {"p": -1}, {"p": math.inf}, {"p": "2"}, {"c": 0.0}, {"c": math.nan}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PathCondError, match="positive number"):
        ENorm(net(), batch()[0][:1], **options)


def test_a_graph_can_be_reused_but_not_of_another_model() -> None:
    model, (x, _) = net(), batch()
    graph = extract_graph(model, x[:1], batchnorm="exclude")
    enorm = ENorm(model, x[:1], graph=graph)
    assert enorm.graph is graph
    before = model[4].weight.detach().clone()
    enorm.step()
    assert torch.equal(model[4].weight, before)
    with pytest.raises(PathCondError, match="Extract a new graph"):
        ENorm(nn.Linear(2, 2), torch.ones(1, 2), graph=graph)


def test_a_model_without_units_is_left_as_it_is() -> None:
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    enorm = ENorm(model, torch.ones(1, 2))
    enorm.step()
    assert torch.equal(model.weight, before)
    assert float(enorm.objective()) == 0.0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_cuda_graph_replays_the_step(kind: str) -> None:
    model, (x, y) = net().double().cuda(), (t.cuda() for t in batch())
    x = x.double()
    made: dict[str, Any] = {
        "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9),
        "adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.01, capturable=True),
    }
    twin = copy.deepcopy(model)
    optimizers = [made[kind](m) for m in (model, twin)]
    steps = [ENorm(m, x[:1], o, c=1.1) for m, o in zip((model, twin), optimizers, strict=True)]

    def train(m: nn.Module, optimizer: torch.optim.Optimizer, enorm: ENorm) -> None:
        optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(m(x), y).backward()
        optimizer.step()
        enorm.step()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            train(model, optimizers[0], steps[0])
            train(twin, optimizers[1], steps[1])
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        train(model, optimizers[0], steps[0])
    for _ in range(10):
        graph.replay()
        train(twin, optimizers[1], steps[1])
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-8, atol=1e-10)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_cuda_step_agrees_with_the_cpu_and_notices_a_move() -> None:
    model, (x, _) = net().double(), batch()
    moved = copy.deepcopy(model).cuda()
    here, there = ENorm(model, x[:1].double()), ENorm(moved, x[:1].double().cuda())
    for _ in range(3):
        here.step()
        try:
            torch.cuda.set_sync_debug_mode("error")
            there.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for p, q in zip(model.parameters(), moved.parameters(), strict=True):
        torch.testing.assert_close(p, q.cpu(), rtol=1e-12, atol=1e-14)
    moved.cpu()
    with pytest.raises(PathCondError, match="after model.to"):
        there.step()


# ---- units with powers or inverse scales


def relu2(x):
    return functional.relu(x).square()


def scores(s, x: Tensor) -> Tensor:
    """Queries that another layer reads too."""
    q = s.a(x)
    return s.b(q) + (q @ s.c(x).mT).softmax(-1).amax(-1, keepdim=True)


@pytest.mark.parametrize(
    ("forward", "c"),
    [(lambda s, x: s.b(h := functional.relu(s.a(x))) + s.c(h**2), nn.Linear(4, 2)), (scores, nn.Linear(3, 4))],
    ids=["powers", "inverse"],
)
def test_enorm_leaves_units_with_powers_and_inverse_scales(forward, c):
    torch.manual_seed(0)
    model, x = Lambda(forward, a=nn.Linear(3, 4), b=nn.Linear(4, 2), c=c).double(), torch.randn(5, 3).double()
    assert extract_graph(model, x).units == 4
    before = copy.deepcopy(model.state_dict())
    ENorm(model, x).step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_enorm_balances_the_other_units():
    torch.manual_seed(0)
    model = Lambda(
        lambda s, x: s.c(functional.relu(s.b(relu2(s.a(x))))), a=nn.Linear(3, 4), b=nn.Linear(4, 5), c=nn.Linear(5, 2)
    ).double()
    x = torch.randn(4, 3).double()
    y, before = outputs(model, x, False), copy.deepcopy(model.state_dict())
    enorm = ENorm(model, x)
    for _ in range(3):
        enorm.step()
    torch.testing.assert_close(outputs(model, x, False), y, rtol=1e-12, atol=1e-12)
    assert torch.equal(model.a.weight, before["a.weight"])
    assert not torch.equal(model.c.weight, before["c.weight"])
