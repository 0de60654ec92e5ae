"""Random networks of the supported operations: whatever the graph, the function and the path-lifting stay."""

import math

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pathcond
from tests.cases import assert_diag_g_follows, assert_function_kept
from tests.reference import signed_matrix, signed_sweeps

STEPS = [
    "conv", "grouped", "depthwise", "transposed", "bn", "ln", "gn", "relu", "leaky", "prelu", "abs", "dropout",
    "max_pool",
    "avg_pool", "pad", "add", "cat", "split", "shuffle", "scale", "shift", "constant", "tanh", "sigmoid_gate",
    "in_place",
    "permute", "reuse", "branch", "mean_gate", "maximum", "square", "cube", "product", "gated_square",
]  # fmt: skip


class RandomNet(nn.Module):
    """A program of steps on a list of 4-d values; each step takes a random earlier value of the list."""

    def __init__(self, program: list[tuple[str, int, int]]) -> None:
        super().__init__()
        self.program: list[tuple[str, list[int], str]] = []
        self.layers = nn.ModuleDict()
        channels = [3]
        for index, (step, a, b) in enumerate(program):
            a, b = len(channels) - 1 - a % min(3, len(channels)), b % len(channels)
            made = self._plan(step, index, channels, a, b)
            if made:
                channels.append(made)
                self.program.append((step, [a, b], f"step{index}"))
        self.channels = channels
        self.head = nn.Linear(channels[-1], 2)

    def _plan(self, step: str, index: int, channels: list[int], a: int, b: int) -> int:
        """Make the step's layer; returns its number of channels, 0 if it does not fit."""
        c, name = channels[a], f"step{index}"
        layers: dict[str, nn.Module] = {
            "conv": nn.Conv2d(c, 4, 3, padding=1), "grouped": nn.Conv2d(c, 4, 1, groups=2 if c % 2 == 0 else 1),
            "depthwise": nn.Conv2d(c, c, 3, padding=1, groups=c), "transposed": nn.ConvTranspose2d(c, 4, 3, padding=1),
            "bn": nn.BatchNorm2d(c), "ln": nn.LayerNorm(4), "gn": nn.GroupNorm(1, c), "prelu": nn.PReLU(c),
            "dropout": nn.Dropout(0.3), "reuse": nn.Conv2d(c, c, 1),
        }  # fmt: skip
        if step in layers:
            self.layers[name] = layers[step]
            conv = isinstance(layers[step], (nn.Conv2d, nn.ConvTranspose2d))
            return layers[step].out_channels if conv else c  # type: ignore[return-value,union-attr]
        if step in ("scale", "shift"):
            self.register_parameter(name, nn.Parameter(torch.randn(c, 1, 1)))
        if step in ("add", "maximum", "gated_square") and channels[b] != c:
            return 0
        if step == "cat":
            return c + channels[b] if c + channels[b] <= 12 else 0
        if step in ("split", "shuffle") and c % 2:
            return 0
        return c // 2 if step == "split" else c

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for step, (a, b), name in self.program:
            values.append(self._step(step, name, values[a], values[b]))
        return self.head(values[-1].mean((2, 3)))

    def _step(self, step: str, name: str, x: Tensor, y: Tensor) -> Tensor:
        if name in self.layers:
            out = self.layers[name](x)
            return self.layers[name](F.relu(out)) if step == "reuse" else out
        n, c, h, w = x.shape
        if step in ("scale", "shift"):
            p = getattr(self, name)
            return x * p if step == "scale" else x + p
        if step == "in_place":
            x = x.clone()
            x[:, : c // 2 + 1].relu_()
            x[:, :1] += 0.5 * x[:, -1:]
            return x
        if step == "branch":
            return x if x.dim() == 3 else torch.where(x > 0, x, 0.1 * x)
        simple = {
            "relu": F.relu, "leaky": F.leaky_relu, "abs": torch.abs, "tanh": torch.tanh,
            "max_pool": lambda x: F.max_pool2d(x, 3, 1, 1), "avg_pool": lambda x: F.avg_pool2d(x, 3, 1, 1),
            "pad": lambda x: F.pad(x, (1, 1, 1, 1))[:, :, 1:-1, 1:-1], "constant": lambda x: (2 * x - x / 3) * 0.7,
            "add": lambda x: x + y, "maximum": lambda x: torch.maximum(x, y), "cat": lambda x: torch.cat([x, y], 1),
            "split": lambda x: x.chunk(2, 1)[1],
            "sigmoid_gate": lambda x: x * torch.sigmoid(x.mean((2, 3), keepdim=True)),
            "shuffle": lambda x: x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w),
            "permute": lambda x: x.permute(0, 2, 3, 1).flip(1).permute(0, 3, 1, 2),
            "mean_gate": lambda x: x.mean(1, True) * 1.0 + x * 0,
            "square": lambda x: 0.5 * F.relu(x) ** 2, "cube": lambda x: F.leaky_relu(x, 0.3).pow(3) / 2,
            "product": lambda x: F.relu(x) * x, "gated_square": lambda x: y * torch.square(F.relu(x)),
        }  # fmt: skip
        return simple[step](x)


steps = st.tuples(st.sampled_from(STEPS), st.integers(0, 2), st.integers(0, 20))


programs = st.lists(steps, min_size=2, max_size=14)
many = settings(max_examples=14, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def build(program: list[tuple[str, int, int]]) -> tuple[RandomNet, Tensor]:
    torch.manual_seed(0)
    model = RandomNet(program).double()
    for name, b in model.named_buffers():
        if "running" in name:
            b.uniform_(0.5, 1.5)
    return model, torch.randn(2, 3, 4, 4, dtype=torch.float64)


@many
@given(programs)
def test_function_path_lifting_and_solver(program):
    """Any scales keep the function and are followed by diag(G); sweeps are the literal ones; the optimum stays one."""
    model, x = build(program)
    graph = pathcond.extract_graph(model, x)
    assert_function_kept(model, x, graph)
    assert_diag_g_follows(model, x, graph, 1e-8)
    g = pathcond.compute_diag_g(model, x, graph=graph)
    solution = pathcond.solve(graph, g, sweeps=3)
    torch.testing.assert_close(
        2 * solution.log_scales, signed_sweeps(*signed_matrix(graph, g), 3), rtol=1e-9, atol=1e-9
    )
    values = solution.objective
    assert all(b <= a + 1e-11 * max(1.0, abs(a)) for a, b in zip(values, values[1:], strict=False))
    best = pathcond.solve(graph, g, method="optimum")
    if best.result is pathcond.Result.OPTIMUM and math.isfinite(best.objective[-1]) and graph.units:
        pathcond.apply_scales_(model, graph, best.log_scales)
        again = pathcond.solve(graph, pathcond.compute_diag_g(model, x, graph=graph), method="optimum")
        assert float(again.log_scales.abs().amax()) < 1e-5
