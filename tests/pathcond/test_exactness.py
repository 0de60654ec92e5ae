"""Other calls than the recorded one: networks keep their function on them, or units are frozen, or it is said."""

from __future__ import annotations

import copy
import math
import operator
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import make_dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

import pathcond
from pathcond.rules import TABLE
from tests.cases import D, Lambda, assert_function_kept, mlp


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def linear(n: int = 8, m: int = 6) -> nn.Linear:
    return nn.Linear(n, m)


def net(forward: Callable[..., Any], **parts: Any) -> Lambda:
    """A function of two layers ``a`` and ``b``, or of others in their places, and of more parts."""
    torch.manual_seed(0)
    return Lambda(forward, **{"a": linear(), "b": linear(6, 2), **parts}).double()


def assert_kept(model: nn.Module, graph: pathcond.ScaleGraph, *calls: Any) -> None:
    for call in calls:
        assert_function_kept(model, call, graph)


def _crop(s: Any, x: Tensor) -> Tensor:
    h = s.a(x) + s.pos[:, :, : x.shape[2], : x.shape[3]]
    return s.b(F.relu(h)).mean((2, 3))


def _heads(s: Any, x: Tensor) -> Tensor:
    n, t, _ = x.shape
    h = F.relu(s.a(x)).reshape(n, 2, t, 3).transpose(1, 2).reshape(n, t, 6)  # right for one token alone
    return s.b(F.relu(s.c(h))).sum(1)


def _recurrent(s: Any, x: Tensor) -> Tensor:
    h = torch.zeros(len(x), 6, dtype=x.dtype)
    for t in range(x.shape[1]):
        h = F.relu(s.a(x[:, t]) + s.c(h) if hasattr(s, "a") else s.c(torch.cat((x[:, t], h), 1)))
    return s.b(h)


def _wide(s: Any, x: Tensor) -> Tensor:
    h = F.relu(F.linear(x, s.w[: s.width], s.v[: s.width]))
    return F.linear(h, s.u[:, : s.width])


with warnings.catch_warnings(action="ignore"):  # scripts are deprecated
    SCRIPT = torch.jit.script(nn.ReLU())
tokens, images = normal(2, 3, 8), normal(2, 2, 4, 4)
one_token, longer, larger = normal(2, 1, 8), normal(2, 5, 8, seed=1), normal(2, 2, 6, 5, seed=1)
READ_IN_PART: dict[str, tuple[Callable[[], nn.Module], Any, tuple[Any, ...]]] = {
    "positions": (lambda: net(lambda s, x: s.b(F.relu(s.a(x) + s.pos[: x.shape[1]])), pos=(7, 6)), tokens,
                  (longer, normal(2, 7, 8))),
    "last positions": (lambda: net(lambda s, x: s.b(F.relu(s.a(x) + s.pos[-x.shape[1] :])), pos=(7, 6)), tokens,
                       (longer,)),
    "crop": (lambda: net(_crop, a=nn.Conv2d(2, 6, 1), b=nn.Conv2d(6, 2, 1), pos=(1, 6, 9, 9)), images, (larger,)),
    "kernel": (lambda: net(lambda s, x: s.b(F.conv1d(F.relu(s.a(x)).mT, s.k[..., : x.shape[1]]).flatten(1)),
                           b=linear(4, 2), k=(4, 6, 7)), tokens, (longer,)),
    "mixing": (lambda: net(lambda s, x: s.b(F.relu(s.mix[: x.shape[1], : x.shape[1]] @ F.relu(s.a(x)))).mean(1),
                           mix=(7, 7)), tokens, (longer,)),
    "slimmable": (lambda: Lambda(_wide, w=(6, 8), v=(6,), u=(2, 6)).double(), normal(3, 8), (normal(5, 8, seed=1),)),
    "one step": (lambda: net(_recurrent, c=linear(6, 6)), one_token, (tokens, longer)),
    "one step, joined": (lambda: Lambda(_recurrent, c=linear(14, 6), b=linear(6, 2)).double(), one_token, (tokens,)),
    "nn.RNN": (lambda: Lambda(lambda s, x: s.b(s.r(x)[0][:, -1]), b=linear(6, 2), r=nn.RNN(
        8, 6, nonlinearity="relu", batch_first=True)).double(), one_token, (tokens,)),
    "array of NumPy": (lambda: net(lambda s, x: s.b(F.relu(s.a(x))[..., np.arange(6)])), tokens, (longer,)),
    "script": (lambda: net(lambda s, x: s.b(s.act(F.relu(s.a(x)))), act=SCRIPT), tokens, (longer,)),
    "batch of one in channels": (lambda: net(
        lambda s, x: s.b(F.relu(s.a(x)).permute(1, 0, 2).reshape(6, -1).t()), a=nn.Conv1d(8, 6, 1)),
        normal(1, 8, 3), (normal(2, 8, 3, seed=1),)),
    "heads of one token": (lambda: net(_heads, c=linear(6, 6)), one_token, (tokens, longer)),
    "channels by length": (lambda: net(
        lambda s, x: s.b(h := F.relu(s.a(x))).mean(1) + h[..., : x.shape[1]].sum((1, 2), keepdim=True)[:, 0]),
        one_token, (tokens, longer, normal(2, 6, 8))),
    "filled up to the largest length": (lambda: net(
        lambda s, x: s.b(torch.cat((h := F.relu(s.a(x)), h.new_ones(x.shape[0], 7 - x.shape[1], 6)), 1))),
        normal(2, 7, 8), (tokens, longer)),
    "branch on the batch": (lambda: net(
        lambda s, x: s.b(F.relu(s.a(x)) if len(x.shape) and x.shape[0] < 9 else s.a(x).tanh())), normal(3, 8),
        (normal(4, 8), normal(9, 8), normal(20, 8))),
    **{f"branch on {name}": (
        lambda test=test: net(lambda s, x: s.b(F.relu(s.a(x)) if test(x.shape[1]) else s.a(x).tanh())), tokens,
        (normal(2, 2, 8), longer, normal(2, 12, 8))) for name, test in {
            "half the length": lambda n: n // 2 <= 4, "a ratio": lambda n: n / 4 < 2.5,
            "a difference": lambda n: n - 5, "bits": lambda n: not n & 4, "a square": lambda n: n**2 < 100,
            "a rounded ratio": lambda n: round(n / 4) < 2, "some lengths": lambda n: n in (1, 2, 3, 4, 5),
        }.items()},
}  # fmt: skip


@pytest.mark.parametrize("name", READ_IN_PART)
def test_inputs_of_other_sizes(name):
    make, x, others = READ_IN_PART[name]
    model = make()
    model.width = 4
    graph = pathcond.extract_graph(model, x)
    assert_kept(model, graph, x, *others)
    model.width = 6  # of the slimmable network; a graph without a signature fits any model with its parameters
    assert_kept(model, replace(graph, signature=""), x)


def test_positions_are_free_once_all_are_read():
    """The whole table is read on an input of its length, which is tried where the model takes it."""
    make, x, others = READ_IN_PART["positions"]
    assert pathcond.extract_graph(make(), x).units == 6
    cut = net(lambda s, x: s.b(F.relu(s.a(x) + s.pos[: min(x.shape[1], 6)])), pos=(7, 6))
    graph = pathcond.extract_graph(cut, x)
    assert (graph.units, graph.frozen_channels) == (0, 6)
    assert "read a part only" in graph.frozen[0].reason


# ---- other arguments


def optional(self, x, shift=None, steps: int = 1):
    h = F.relu(self.a(x))
    h = h if shift is None else h + shift
    for _ in range(steps - 1):
        h = F.relu(self.c(h)).tanh()
    return self.b(h)


def test_arguments_that_are_left_out_are_said_or_given():
    model, x, shift = net(optional, c=linear(6, 6)), normal(3, 8), normal(3, 6)
    graph = pathcond.extract_graph(model, x)
    assert graph.exact_for.fixed == ("shift=None", "steps=1")
    assert "shift=None" in str(graph.exact_for)
    both = pathcond.extract_graph(model, pathcond.Inputs(x, (x, shift), {"x": x, "steps": 2}))
    assert (both.units, both.exact_for.inputs, both.exact_for.fixed) == (0, 3, ())
    assert_kept(model, both, x, (x, shift), (x, None, 2))


@pytest.mark.parametrize("function", ["extract_graph", "rescale_", "scale_groups", "verify_mapping"])
def test_every_function_takes_several_inputs(function):
    model, x = net(optional, c=linear(6, 6)), normal(3, 8)
    inputs = pathcond.Inputs(x, (x, normal(3, 6)))
    if function == "verify_mapping":
        mapping = [{"smooth_layer": "a", "balance_layers": ["b"]}]
        (found,), (first,) = (pathcond.verify_mapping(model, each, mapping) for each in (inputs, x))
        assert (found.change or 0) > 1e-3
        assert first.change == 0
        return
    result = getattr(pathcond, function)(model, inputs)
    assert not result.free if function == "scale_groups" else result.units == 0
    with pytest.raises(pathcond.PathCondError, match="one or more example inputs"):
        pathcond.Inputs()


def test_what_examples_give_beside_tensors_is_named():
    model, x = net(lambda s, *given, **more: s.b(F.relu(s.a(given[0])))), normal(3, 8)
    assert pathcond.extract_graph(model, (x, [1, 2])).exact_for.fixed == ("given=(tensor, [1, 2])",)
    inputs = pathcond.Inputs((x, [1, 2]), (x, {"mask": x}))
    assert pathcond.extract_graph(model, inputs).exact_for.fixed == ()


class Slots:
    __slots__ = ("order",)

    def __init__(self, order: Tensor) -> None:
        self.order = order


BOXES: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "dataclass": (make_dataclass("Batch", ["order"]), lambda box: box.order),
    "slots": (Slots, lambda box: box.order),
    "deque": (lambda order: deque([order]), lambda box: box[0]),
    "set": (lambda order: {order}, lambda box: next(iter(box))),
}


@pytest.mark.parametrize("kind", BOXES)
def test_indices_in_an_object_are_an_input(kind):
    make, read = BOXES[kind]
    model = net(lambda s, x, box: s.b(F.relu(s.a(x))[:, read(box)]))
    x, order = normal(3, 8), torch.arange(6)
    graph = pathcond.extract_graph(model, (x, make(order)))
    assert_kept(model, graph, (x, make(order)), (x, make(order.flip(0))))
    assert graph.units == 1  # the channels share one scale, because any order may come


# ---- sizes


SIZES: dict[str, Callable[[Tensor], int]] = {  # ways of code to learn the size of its input as a plain number
    "len": len,
    "iteration": lambda x: sum(1 for _ in x),
    "unbind": lambda x: len(x.unbind(0)),
    "split": lambda x: len(x.split(1)),
    "stride": lambda x: x.t().contiguous().stride()[0],
    "storage": lambda x: x.untyped_storage().nbytes() // 24,
    "numel": lambda x: torch.numel(x) // 3,
    "tensor": lambda x: 30 * bool(torch.tensor(x.shape[0]) < 6),
    "tensor by name": lambda x: 30 * bool(torch.tensor(data=x.shape[0]) < 6),
    "derived, on another size": lambda x: 30 * (x.shape[0] > 24 and x.shape[0] // 2 > 15),
    "two sizes, on another size": lambda x: 30 * (x.shape[0] > 24 and x.shape[0] > 10 * x.shape[1]),
    "range": lambda x: 30 * (x.shape[0] in range(20)),
    "int": lambda x: int(x.shape[0]),
    "root": lambda x: round(math.sqrt(x.shape[0]) * 5.3),
    "text": lambda x: int(f"{x.shape[0]}"),
    "table": lambda x: {n: n for n in range(99)}[x.shape[0]],
    "bits": lambda x: 6 * x.shape[0].bit_length(),
    "divmod": lambda x: 30 * (divmod(x.shape[0], 7)[1] == 5),
    "remainder": lambda x: 30 * (x.shape[0] % 7 == 5),
    "part": lambda x: math.floor(x.shape[0] * 0.75),
    "difference": lambda x: x.shape[0] - x.shape[1],
    "after a stride": lambda x: x[::4].shape[0] * 3,
    "loop": lambda x: [float(x[i].dim()) for i in range(x.shape[0])].__len__(),
}


@pytest.mark.parametrize("way", SIZES)
def test_branches_on_sizes_are_seen_or_said(way):
    size = SIZES[way]

    def forward(s, x):
        hidden = F.relu(s.a(x))
        return s.b(hidden if size(x) < 30 else torch.tanh(hidden))

    model, few, many = net(forward, a=linear(3)), normal(1, 3), normal(40, 3)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        graph = pathcond.extract_graph(model, few)
    if not any("not shown to be exact" in str(w.message) for w in said):
        assert_kept(model, graph, few, many)
    assert_kept(model, pathcond.extract_graph(model, pathcond.Inputs(few, many)), few, many)


Special = type("Special", (nn.Parameter,), {})


def _caught(s: Any, x: Tensor) -> bool:
    try:
        return bool(x.sum() < math.inf)
    except RuntimeError:
        return False


BRANCHES = {  # on what fake tensors may not show: a test of the code, and what is said
    "requires_grad": (lambda s, x: s.a.weight.requires_grad, ""),
    "attribute": (lambda s, x: getattr(s.a.weight, "tag", False), ""),
    "class": (lambda s, x: isinstance(s.b.weight, Special), "'b.weight' is a Special"),
    "error": (_caught, "handles an error of"),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_branches_on_tensors_are_seen_or_said(name):
    test, said = BRANCHES[name]
    model, x = net(lambda s, x: s.b((torch.tanh if test(s, x) else F.relu)(s.a(x)))), normal(3, 8)
    model.a.weight.tag, model.b.weight = True, (Special if name == "class" else nn.Parameter)(model.b.weight.detach())
    with pytest.warns(pathcond.PathCondWarning, match=said) if said else nullcontext():
        assert (pathcond.extract_graph(model, x).units == 0) == (not said)


# ---- graphs of other models


@pytest.mark.parametrize("act", [nn.Tanh, nn.Hardtanh, nn.GELU])
def test_a_graph_of_another_network_is_refused(act, tmp_path):
    x = normal(4, 8)
    relu, other = mlp(8, 6, 2).double(), mlp(8, 6, 2, act=act).double()
    report = pathcond.rescale_(relu, x)
    report.save(tmp_path / "scales")
    before = copy.deepcopy(other.state_dict())
    for attempt in (
        lambda: pathcond.apply_scales_(other, report.graph, report.solution.log_scales),
        lambda: pathcond.apply_scales_(other, pathcond.load_scales(tmp_path / "scales")),
        lambda: pathcond.rescale_(other, x, graph=report.graph),
    ):
        with pytest.raises(pathcond.ApplyError, match="Extract a graph of this model"):
            attempt()
    assert all(torch.equal(before[k], v) for k, v in other.state_dict().items())
    pathcond.apply_scales_(mlp(8, 6, 2).double(), pathcond.load_scales(tmp_path / "scales"))
    relu[1] = act()
    with pytest.raises(pathcond.ApplyError, match="Extract a graph of this model"):
        pathcond.rescale_(relu, x, graph=report.graph)


def test_a_graph_is_compared_with_its_own_model_where_one_tensor_is_given_twice(tmp_path):
    model, x = net(lambda s, x, y, *_: s.b(F.relu(s.a(x) + s.a(y) / 2))), normal(3, 8)
    for arguments in ((x, x), (x, x, {1, 2})):
        report = pathcond.rescale_(model, arguments, damping=1.0)
        pathcond.apply_scales_(copy.deepcopy(model), report.graph, report.solution.log_scales)
        report.save(tmp_path / "scales")
        with pytest.warns(match="could not be saved") if len(arguments) > 2 else nullcontext():
            pathcond.apply_scales_(copy.deepcopy(model), pathcond.load_scales(tmp_path / "scales"))


def ordered(order: Any = None) -> Lambda:
    """A network whose hidden channels are reordered by a buffer, or by an array that is no tensor."""

    def forward(s, x):
        h = s.acts[0](s.config.act(s.act(s.a(x))))[:, s.order][:, s.places.long()]
        return s.b(torch.cat((h[:, :3], torch.tanh(h[:, 3:])), 1))

    model = net(forward)
    model.register_buffer("order", order) if isinstance(order, Tensor) else setattr(model, "order", order)
    model.act, model.options, model.acts, model.config = F.relu, {}, [F.relu], SimpleNamespace(act=F.relu)
    model.register_buffer("places", torch.arange(6.0))
    return model


CHANGES: dict[str, Callable[[Any], Any]] = {
    "function": lambda model: setattr(model, "act", torch.tanh),
    "hook": lambda model: model.a.register_forward_hook(lambda module, given, out: out.tanh()),
    "forward": lambda model: setattr(model.a, "forward", lambda x: torch.tanh(x[:, :6])),
    "function in a list": lambda model: operator.setitem(model.acts, 0, torch.tanh),
    "function in an object": lambda model: setattr(model.config, "act", torch.tanh),
    "places": lambda model: model.places.copy_(torch.arange(6.0).roll(2)),
    "indices": lambda model: model.order.data.copy_(torch.arange(6).roll(2)),
    "memory": lambda model: setattr(model.b.weight, "data", model.a.weight.data[:2, :6]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_graph_of_a_model_that_was_changed_is_refused(name):
    model = ordered(torch.arange(6))
    graph = pathcond.extract_graph(model, normal(4, 8))
    pathcond.apply_scales_(model, graph, torch.ones(graph.units))
    CHANGES[name](model)
    with pytest.raises(pathcond.ApplyError, match="Extract a graph of this model"):
        pathcond.apply_scales_(model, graph, torch.ones(graph.units))


@pytest.mark.parametrize("make", [Tensor.clone, Tensor.numpy, Tensor.tolist])
def test_a_graph_of_a_model_with_other_indices_is_refused(make):
    one, same, other = (ordered(make(torch.arange(6).roll(shift))) for shift in (0, 0, 2))
    graph = pathcond.extract_graph(one, normal(4, 8))
    pathcond.apply_scales_(same, graph, torch.ones(graph.units))
    with pytest.raises(pathcond.ApplyError, match="Extract a graph of this model"):
        pathcond.apply_scales_(other, graph, torch.ones(graph.units))
    if make is Tensor.clone:  # indices without values may be any, also later ones
        unknown = pathcond.extract_graph(copy.deepcopy(one).to("meta"), normal(4, 8).to("meta"))
        assert_kept(other, unknown, normal(4, 8))


# ---- the model, its input, and the check


def test_a_small_change_is_no_rounding(monkeypatch):
    """Softplus with a large beta is a ReLU up to 0.4%, far above rounding in float32."""
    monkeypatch.setitem(TABLE, F.softplus, TABLE[F.relu])
    torch.manual_seed(0)
    model = mlp(8, 32, 2, act=lambda: nn.Softplus(beta=60.0))
    with pytest.raises(pathcond.PathCondError, match="changed by"):
        pathcond.rescale_(model, torch.randn(64, 8))


def test_a_constant_output_is_noted():
    model, x = mlp(8, 6, 2), torch.randn(4, 8)
    nn.init.zeros_(model[2].weight)
    report = pathcond.rescale_(model, x, objective="norms")
    assert any("the same for every example" in note for note in report.notes)
    assert not pathcond.rescale_(mlp(8, 6, 2), x).notes


@pytest.fixture
def one_process():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.filterwarnings("ignore")
def test_sharded_models_are_refused(version, one_process):
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    model = mlp(8, 6, 2)
    if version == 1:
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    elif torch.__version__ < (2, 7):
        pytest.skip("the second version of FSDP needs a GPU in this torch")
    else:
        fully_shard(model, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (1,)))
        model(torch.ones(1, 8))  # its parameters are plain tensors now
    with pytest.raises(pathcond.PathCondError, match="before it is sharded"):
        pathcond.rescale_(model, torch.ones(1, 8))


# ---- operations


def test_pruned_layers_are_rescaled():
    model = mlp(8, 6, 2).double()
    prune.l1_unstructured(model[0], "weight", 0.3)
    prune.ln_structured(model[2], "weight", 0.5, n=2, dim=1)
    report = pathcond.rescale_(model, normal(3, 8), damping=1.0)
    assert (report.units, report.graph.frozen_channels) == (6, 0)
    assert report.output_change < 1e-12


def test_a_training_mode_that_draws_is_left_out_with_a_warning():
    """As in BART, whose layers are dropped at random in training."""
    dropping = net(lambda s, x: s.b(F.relu(s.a(x)) if not s.training or torch.rand([]) < 0.9 else s.c(x)), c=linear())
    with pytest.warns(pathcond.PathCondWarning, match="train mode could not be recorded"):
        graph = pathcond.extract_graph(dropping.train(), normal(3, 8))
    assert graph.exact_for.modes == ("eval",)


def test_a_dict_as_the_only_argument():
    model, x = net(lambda s, batch: s.b(F.relu(s.a(batch["x"])))), normal(3, 8)
    assert pathcond.rescale_(model, ({"x": x},)).units == 6
    for function in (pathcond.rescale_, pathcond.extract_graph):
        with pytest.raises(pathcond.RecordError, match=r"pass \(batch,\)"):
            function(model, {"x": x})
