"""What models and the library are given: whole numbers, odd containers, wrong arguments, another default device."""

import io
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import pathcond
from pathcond import ops
from tests.cases import Lambda, mlp

X = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))


class Net(Lambda):
    def forward(self, *inputs):
        return self._run(self, *inputs)


def net(forward, n: int = 5, **more: nn.Module) -> Net:
    torch.manual_seed(0)
    return Net(forward, a=nn.Linear(n, 8), b=nn.Linear(8, 2), **more)


WHOLE = {
    "uint8": (lambda s, i: i.float() / 255, torch.zeros(3, 5, dtype=torch.uint8)),
    "bool": (lambda s, i: i.to(torch.float32), torch.zeros(3, 5, dtype=torch.bool)),
    "one-hot": (lambda s, i: F.one_hot(i, 5).float(), torch.zeros(3, dtype=torch.long)),
    "cosine": (lambda s, i: torch.cos(i.float()[:, None] * torch.arange(5.0)), torch.arange(3)),
    "picked": (lambda s, i: s.table[i], torch.arange(3)),
    "bag": (lambda s, i: F.embedding_bag(i, s.table), torch.ones(3, 4, dtype=torch.long)),
    "gain": (lambda s, i: i.float() * s.gain, torch.zeros(3, 5, dtype=torch.int32)),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("beside", [False, True])
def test_whole_numbers_read_as_data(name, beside):
    make, i = WHOLE[name]
    forward = lambda s, i, *x: s.b(F.relu(s.a(make(s, i)) + (s.c(*x) if x else 0)))  # noqa: E731
    model = net(forward, c=nn.Linear(5, 8))
    model.table, model.gain = nn.Parameter(torch.randn(10, 5)), nn.Parameter(torch.randn(5))
    report = pathcond.rescale_(model, (i, X) if beside else i)
    assert report.units == (13 if name == "gain" else 8)
    assert not report.solution.dead
    assert report.objective_after < report.objective_before
    assert report.output_change < 1e-5
    assert pathcond.path_magnitudes(model, (i, X) if beside else i)["a.weight"].gt(0).all()
    assert pathcond.count_paths(model, (i, X) if beside else i) > 0


def test_whole_numbers_count_as_ones():
    whole, plain = net(lambda s, i: s.b(F.relu(s.a(i.float())))), net(lambda s, x: s.b(F.relu(s.a(x))))
    found = pathcond.path_magnitudes(whole, torch.arange(15).reshape(3, 5))
    for name, g in pathcond.path_magnitudes(plain, X).items():
        torch.testing.assert_close(found[name], g)


def test_columns_of_whole_numbers_beside_others():
    model = net(lambda s, x, i: s.b(F.relu(s.a(torch.cat((x, F.one_hot(i, 4).float()), 1)))), 9)
    g = pathcond.path_magnitudes(model, (X, torch.zeros(3, dtype=torch.long)))
    assert g["a.weight"].gt(0).all()


def test_masks_of_whole_numbers_stay_constants():
    def forward(s, ids, mask):
        h = F.relu(s.a(s.e(ids)))
        return s.b(h + (1.0 - mask[..., None].float()) * -1e30)

    model = net(forward, e=nn.Embedding(7, 5))
    ids, mask = torch.arange(6).reshape(1, 6), torch.ones(1, 6, dtype=torch.long)
    g = pathcond.path_magnitudes(model, (ids, mask))
    assert max(float(t.max()) for t in g.values()) < 1e6


def normed() -> nn.Sequential:
    layers = [weight_norm(nn.Linear(5, 8, bias=False)), nn.ReLU(), weight_norm(nn.Linear(8, 2, bias=False))]
    return nn.Sequential(*layers)


def test_models_without_a_magnitude_are_reported():
    model = net(lambda s, x: torch.einsum("bi,oi->bo", F.relu(s.a(x)), s.b.weight))
    for case in (model, normed(), net(lambda s, x: torch.einsum("bi,oi->bo", x, s.a.weight))):
        report = pathcond.rescale_(case, X)
        assert (report.units, report.objective, report.residual) == (0, (0.0,), 0.0)
        assert report.result is pathcond.Result.NOTHING
    assert "einsum" in str(pathcond.rescale_(model, X))


@dataclass
class Batch:
    x: Tensor


Pair = namedtuple("Pair", ["x", "y"])


class Open(dict):
    __getattr__ = dict.__getitem__


def test_containers_stay_what_they_are():
    model = net(lambda s, p: s.b(F.relu(s.a(p.x + p.y))))
    for given in (Pair(X, X), Open(x=X, y=X)):
        assert pathcond.rescale_(model, (given,)).units == 8
    report = pathcond.rescale_(net(lambda s, p: s.b(F.relu(s.a(p.x)))), Batch(X))
    assert report.units == 0
    assert "no tensor" in report.notes[-1]


@pytest.mark.parametrize("given", [None, np.ones((3, 5), dtype=np.float32), (3, 5), X[:, :4]])
def test_wrong_arguments_are_named(given):
    for call in (pathcond.rescale_, pathcond.extract_graph):
        with pytest.raises(pathcond.RecordError) as caught:
            call(mlp(5, 8, 2), given)
        if not isinstance(given, Tensor):
            assert "holds no tensor" in str(caught.value)
            assert "fake version" not in str(caught.value)
    with pytest.raises(pathcond.PathCondError, match="smooth to be True or False, got 'no'"):
        pathcond.rescale_(mlp(5, 8, 2), X, smooth="no")  # pyright: ignore[reportArgumentType]


def _derived(s, x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(s.b(F.relu(s.a(x))).sum(), x)[0]


REFUSED = {
    "vmap": (lambda s, x: s.b(torch.vmap(lambda z: F.relu(s.a(z)))(x)), "torch.vmap is not recorded"),
    "inference": (torch.inference_mode()(lambda s, x: s.b(F.relu(s.a(x)))), "torch.no_grad instead"),
    "derivative": (_derived, "takes derivatives"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_recorded_is_named(name):
    forward, words = REFUSED[name]
    with pytest.raises(pathcond.RecordError, match=words):
        pathcond.rescale_(net(forward), X)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_wrapped_models_are_to_be_unwrapped():
    with pytest.raises(pathcond.PathCondError, match="model.module"):
        pathcond.rescale_(nn.DataParallel(mlp(5, 8, 2)), X)
    with pytest.raises(pathcond.PathCondError, match="then script"):
        pathcond.rescale_(torch.jit.script(mlp(5, 8, 2)), X)


def test_numbers_drawn_like_a_value_do_not_hold_it():
    makers = (torch.randn_like, torch.rand_like, torch.ones_like, lambda h: torch.full_like(h, 2.0))
    for make in makers:
        report = pathcond.rescale_(net(lambda s, x, make=make: s.b((h := F.relu(s.a(x))) * make(h))), X)
        assert (report.units, report.graph.frozen_units) == (8, 0)
        assert report.output_change < 1e-5


def test_layers_beyond_what_float64_squares():
    model = mlp(5, 8, 6, 2).double()
    model[0].weight.data.mul_(1e200)
    model[2].weight.data.mul_(1e-200)
    report = pathcond.rescale_(model, X.double())
    assert report.objective_after < report.objective_before
    assert report.output_change < 1e-9


def test_tensors_are_made_on_the_cpu_whatever_the_default_device():
    seen = io.StringIO()
    model = net(lambda s, x: (seen.write(torch.get_default_device().type + " "), s.b(F.relu(s.a(x))))[1])
    plain = net(lambda s, x: s.b(F.relu(s.a(x))))
    with torch.device("meta"):
        report = pathcond.rescale_(model, X)
        assert torch.get_default_device().type == "meta"
    assert set(seen.getvalue().split()) == {"meta"}
    assert report.u["a"].device.type == "cpu"
    torch.testing.assert_close(report.solution.u, pathcond.rescale_(plain, X).solution.u)


@torch.library.custom_op("pathcond_inputs::rect", mutates_args=())
def rect(x: Tensor) -> Tensor:
    return x.clamp(min=0.0)


@rect.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_registering_what_torch_sees_as_one_operation():
    overload = torch.ops.pathcond_inputs.rect.default
    for given in (rect, torch.ops.pathcond_inputs.rect):
        pathcond.register_op(given, like=torch.relu)
        assert pathcond.rescale_(net(lambda s, x: s.b(rect(s.a(x)))), X).units == 8
        del ops.TABLE[overload]
    ops.TABLE.pop(torch.ops.pathcond_inputs.rect)
    for given in (lambda x: x.clamp(min=0.0), nn.ReLU, nn.ReLU()):
        with pytest.raises(pathcond.PathCondError, match="custom_op"):
            pathcond.register_op(given, like=torch.relu)


def test_advice_on_overflow_fits_the_format():
    for dtype, words in ((torch.float32, r"model.double\(\)"), (torch.float16, r"model.float\(\)")):
        model = mlp(5, 8, 2).to(dtype)
        graph = pathcond.extract_graph(model, X.to(dtype))
        with pytest.raises(pathcond.ApplyError, match=words):
            pathcond.apply_scales_(model, graph, torch.full((8,), 200.0))
