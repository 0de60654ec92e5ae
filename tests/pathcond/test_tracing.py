"""The tracer: which models, inputs and outputs can be recorded, and the errors for the others."""

import io
from collections import deque, namedtuple
from dataclasses import make_dataclass
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathcond
from tests.cases import one_hidden_layer as net

X = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))


# ---- what goes in


Batch = make_dataclass("Batch", ["x"])
Pair = namedtuple("Pair", ["x", "y"])


class Attributes(dict):
    __getattr__ = dict.__getitem__


def test_inputs_in_containers():
    model = net(lambda s, p: s.b(F.relu(s.a(p.x + p.y))))
    for given in (Pair(X, X), Attributes(x=X, y=X)):
        assert pathcond.rescale_(model, (given,)).units == 8
    model = net(lambda s, xs: {"out": s.b(F.relu(s.a(xs[0]) + s.c(xs[1]))), "n": 3}, c=nn.Linear(2, 8))
    assert pathcond.extract_graph(model, ((X, X[:, :2]),)).units == 8
    assert pathcond.extract_graph(nn.Bilinear(5, 5, 2), {"input1": X, "input2": X}).units == 0
    for given in (Batch(X), (Batch(X),)):
        assert pathcond.rescale_(net(lambda s, p: s.b(F.relu(s.a(p.x)))), given).units == 8


INTEGERS = {
    "uint8": (lambda s, i: i.float() / 255, torch.zeros(3, 5, dtype=torch.uint8)),
    "bool": (lambda s, i: i.to(torch.float32), torch.zeros(3, 5, dtype=torch.bool)),
    "one-hot": (lambda s, i: F.one_hot(i, 5).float(), torch.zeros(3, dtype=torch.long)),
    "cosine": (lambda s, i: torch.cos(i.float()[:, None] * torch.arange(5.0)), torch.arange(3)),
    "indexed": (lambda s, i: s.table[i], torch.arange(3)),
    "gain": (lambda s, i: i.float() * s.gain, torch.zeros(3, 5, dtype=torch.int32)),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_read_as_data(name):
    make, i = INTEGERS[name]
    for given in (i, (i, X)):  # alone, and beside other data
        model = net(lambda s, i, *x: s.b(F.relu(s.a(make(s, i)) + (s.c(*x) if x else 0))), c=nn.Linear(5, 8))
        model.table, model.gain = nn.Parameter(torch.randn(10, 5)), nn.Parameter(torch.randn(5))
        report = pathcond.rescale_(model, given)
        assert (report.units, report.no_path) == (13 if name == "gain" else 8, 0)
        assert report.objective[-1] < report.objective[0]
        assert pathcond.compute_diag_g(model, given)["a.weight"].gt(0).all()


def test_integers_count_as_ones_and_masks_as_they_are():
    found = pathcond.compute_diag_g(net(lambda s, i: s.b(F.relu(s.a(i.float())))), torch.arange(15).reshape(3, 5))
    for name, g in pathcond.compute_diag_g(net(lambda s, x: s.b(F.relu(s.a(x)))), X).items():
        torch.testing.assert_close(found[name], g)
    model = net(lambda s, x, i: s.b(F.relu(s.a(torch.cat((x, F.one_hot(i, 4).float()), 1)))), 9)
    assert pathcond.compute_diag_g(model, (X, torch.zeros(3, dtype=torch.long)))["a.weight"].gt(0).all()
    masked = net(
        lambda s, ids, m: s.b(F.relu(s.a(s.e(ids))) + (1.0 - m[..., None].float()) * -1e30), e=nn.Embedding(7, 5)
    )
    g = pathcond.compute_diag_g(masked, (torch.arange(6).reshape(1, 6), torch.ones(1, 6, dtype=torch.long)))
    assert max(float(t.max()) for t in g.values()) < 1e6


# ---- what comes out


class Box:
    """An output with tensors in its attributes, as caches of keys and values are."""

    def __init__(self, first: Tensor, rest: list[Tensor]) -> None:
        self.first, self.rest, self.itself = first, {"rest": rest}, self


def test_outputs_in_attributes_are_outputs():
    """The units of a are frozen, because they leave the model in an attribute; those of c stay free."""
    model = net(
        lambda s, x: Box(s.b(h := F.relu(s.a(x))), [h + 0, s.d(F.relu(s.c(x)))]), c=nn.Linear(5, 4), d=nn.Linear(4, 2)
    )
    graph = pathcond.extract_graph(model, X)
    assert set(graph.layers) == {"c"}
    assert pathcond.rescale_(model, X).output_change < 1e-5
    assert pathcond.extract_graph(net(lambda s, x: (s.b(F.relu(s.a(x))), x.shape, len(x))), X).units == 8
    with pytest.raises(pathcond.RecordError, match="at least one tensor"):
        pathcond.extract_graph(net(lambda s, x: None), X)
    assert pathcond.extract_graph(net(lambda s, x: deque([{s.b(h := F.relu(s.a(x)))}, {"h": h}])), X).units == 0
    for hide in (iter, partial(partial, print), lambda hidden: lambda: hidden):
        with pytest.raises(pathcond.RecordError, match="in which tensors could hide"):
            pathcond.extract_graph(net(lambda s, x, hide=hide: (s.b(h := F.relu(s.a(x))), hide([h]))), X)


# ---- calls


REFUSED = {
    "control flow": (
        lambda s, x: s.a(x) if x.sum() > 0 else s.a(-x),
        r"depends on the values.*x\.sum\(\) > 0.*torch.where",
    ),
    "vmap": (lambda s, x: s.b(torch.vmap(lambda z: F.relu(s.a(z)))(x)), "torch.vmap is not recorded"),
    "dlpack": (lambda s, x: s.b(F.relu(torch.from_dlpack(s.a(x).detach()))), "torch.from_dlpack.*hand on the tensor"),
    "inference": (torch.inference_mode()(lambda s, x: s.b(F.relu(s.a(x)))), "torch.no_grad instead"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_forward_passes_that_cannot_be_recorded(name):
    forward, words = REFUSED[name]
    with pytest.raises(pathcond.RecordError, match=f"(?s){words}"):
        pathcond.extract_graph(net(forward), X)


def test_the_default_device_is_the_callers_in_the_forward_pass_alone():
    seen = io.StringIO()
    model = net(lambda s, x: (seen.write(torch.empty(0).device.type + " "), s.b(F.relu(s.a(x))))[1])
    with torch.device("meta"):
        report = pathcond.rescale_(model, X)
        assert torch.empty(0).device.type == "meta"
    assert set(seen.getvalue().split()) == {"meta"}
    assert report.log_scales["a"].device.type == "cpu"
