"""Runs leave nothing behind: caches, objects, nested containers, hooks; what cannot be restored is reported."""

import copy
import io
import itertools
import random
import warnings
from collections import OrderedDict, deque
from functools import lru_cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathcond
from tests.cases import Lambda, mlp, random_scales


class Lazy(OrderedDict):
    """A registry that loads its entries when they are listed, as those of transformers do; here this fails."""

    def values(self):
        raise ImportError

    keys = items = copy = __iter__ = values


REGISTRY = Lazy(one=1)
TABLES: dict[int, Tensor] = {}
SEEN: list[Tensor] = []
CALLS = 0


@lru_cache
def cached(n: int) -> Tensor:
    return torch.linspace(0.5, 1, n).double() * 2


def held(n: int) -> Tensor:
    if n not in TABLES:
        TABLES[n] = torch.linspace(0.5, 1, n).double()
    return TABLES[n]


class State:
    size = property(lambda self: 1 / 0)  # as in configurations that refuse to be asked
    last: Tensor | None = None
    cache: dict[str, Tensor] = {}  # noqa: RUF012 - of the class, as in some models
    calls = 0

    def __init__(self) -> None:
        self.all = {"h": deque(maxlen=3)}


def forget() -> None:
    cached.cache_clear()
    TABLES.clear()
    SEEN.clear()
    State.cache.clear()
    global CALLS
    State.last, State.calls, CALLS = None, 0, 0
    if "made" in vars(State):
        del State.made


fresh = pytest.fixture(forget, autouse=True)


class Attributes(dict):
    """A dict of another class, as many projects have one."""


class Config:
    __slots__ = ("use_cache",)


def net(tail) -> Lambda:
    """A network that ends in a function of itself, its hidden layer and its input, with places to keep things."""
    torch.manual_seed(0)
    model = Lambda(lambda s, x: tail(s, F.relu(s.a(x)), x), a=nn.Linear(5, 8), b=nn.Linear(8, 2)).double()
    model.cache, model.loose, model.n = None, torch.zeros(4, dtype=torch.float64), 0
    model.factor = torch.ones(8, dtype=torch.float64)
    model.state, model.nested, model.attributes, model.box = State(), {"k": []}, Attributes(), []
    model.config = Config()
    model.config.use_cache = vars(model.state)["size"] = True
    model.register_buffer("kept", torch.zeros(3, 8, dtype=torch.float64))
    return model


X = torch.randn(3, 5, generator=torch.Generator().manual_seed(1)).double()


def untouched(model: Lambda) -> bool:
    loose = type(model.loose) is Tensor and model.loose.tolist() == [0.0] * 4
    held = (model.state.all["h"], model.nested["k"], model.attributes, model.box, State.cache, State.calls, CALLS)
    empty = model.cache is model.state.last is State.last is None and not any((*held, model.n, model.kept.any()))
    return model.config.use_cache and loose and empty and not hasattr(State, "made")


def test_a_registry_that_the_code_names_is_not_loaded():
    model = Lambda(lambda s, x: s.m(x) * len(REGISTRY), m=mlp(4, 6, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # for example that a variable differs from call to call
        assert pathcond.rescale_(model, torch.randn(5, 4)).units == 6
    assert dict.__len__(REGISTRY) == 1


def test_a_failing_forward_leaves_the_model_as_found():
    refused = net(lambda s, h, x: s.b(_cached(s, h, x) * cached(2)) if h.sum() > 0 else h)
    with pytest.raises(pathcond.RecordError, match="depends on the values"):
        pathcond.extract_graph(refused, X)
    assert untouched(refused)
    assert type(cached(2)) is Tensor
    model = mlp(3, 4, 2, norm=nn.BatchNorm1d)
    model[1].eval()
    flags, state, rng = [m.training for m in model.modules()], copy.deepcopy(model.state_dict()), torch.get_rng_state()
    for call in (pathcond.extract_graph, pathcond.compute_diag_g, pathcond.rescale_):
        with pytest.raises(pathcond.RecordError):
            call(model, torch.ones(1, 5))
    assert [m.training for m in model.modules()] == flags
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())
    assert torch.equal(rng, torch.get_rng_state())


# ---- state that decides what the next call does


def _cached(s, h, x):
    if s.cache is None:
        s.cache = torch.linspace(0.5, 1, 8, dtype=x.dtype)
    return s.b(h * s.cache)


def _remember(s, h, x):
    out = s.b(h) + (s.cache.sum() if s.cache is not None else 0)
    s.cache = h.detach()
    return out


def _buffer(s, h, x):
    out = s.b(h) + s.kept.sum()
    s.kept.copy_(h)
    return out


def _count(s, h, x):
    s.n += 1
    s.loose += 1
    s.loose.mul_(0.5)
    return s.b(h) + s.loose.sum()


def _written(view):
    """Reads a tensor that is no buffer, and then writes to it, or to a view or an alias of it."""

    def tail(s, h, x):
        out = s.b(h * s.factor)
        view(s.factor).copy_(view(h.detach().mean(0)))
        return out

    return tail


def _class(fail):
    def tail(s, h, x):
        State.cache["x"], State.last = x, h
        State.made = h  # type: ignore[attr-defined] - a variable that the class did not have
        y = s.b(h) + 0 * State.cache["x"].sum()
        return 2 * y if fail and s.training and float(y.detach().sum()) > 0 else y

    return tail


def _alternate(count):
    return lambda s, h, x: s.b(h if count(s) % 2 else h.tanh())


def _calls(s):
    State.calls += 1
    return State.calls


def _calls_of_the_file(s):
    global CALLS
    CALLS += 1
    return CALLS


@torch.no_grad()
def _target(s, h, x):
    torch.add(h[:, 4:], h[:, 4:], out=h[:, :4])
    return s.b(h)


def _holds(keep):
    return lambda s, h, x: (keep(s, h), s.b(h))[1]


STATES = {  # what a network does with its hidden layer, and its free units
    "table": (_cached, 8),
    "activations": (_remember, 0),
    "buffer": (_buffer, 0),
    "written in place": (_count, 8),
    "written and read later": (_written(lambda t: t), 0),
    "view": (_written(lambda t: t[:5]), 3),
    "alias": (_written(lambda t: t.data), 0),
    "class": (_class(fail=False), 8),
    "class, without training": (_class(fail=True), 8),
    "attribute": (_alternate(lambda s: setattr(s, "n", s.n + 1) or s.n), 0),
    "calls of the class": (_alternate(_calls), 0),
    "calls of the file": (_alternate(_calls_of_the_file), 0),
    "container": (_alternate(lambda s: s.box.append(1) or len(s.box)), 0),
    "target on the memory of what is read": (_target, 4),
    "object": (_holds(lambda s, h: (setattr(s.state, "last", h), s.state.all["h"].append(h))), 0),
    "size": (_holds(lambda s, h: setattr(s, "n", h.shape[1])), 8),
    "nested": (_holds(lambda s, h: s.nested["k"].append((h, [h]))), 0),
    "subclass": (_holds(lambda s, h: s.attributes.update(h=h)), 0),
}
LOG: list[int] = []


def test_what_only_the_first_call_does_raises_no_doubt_about_sizes():
    """It is recorded twice in the first pass and once in the others, which are on inputs of other sizes."""

    def tail(s, h, x):
        if not LOG:
            LOG.append(1)
        return s.b(torch.cat(h.split(4, -1), -1))

    assert pathcond.extract_graph(net(tail), X).notes == ()
    assert LOG == [1]
    found = io.StringIO()
    model = net(lambda s, h, x: (found.write(f"{len(LOG)}"), LOG.append(h if len(LOG) > 1 else 2), s.b(h))[-1])
    model.config.use_cache = False  # nothing is set in train mode
    assert pathcond.rescale_(model, X).units == 8
    assert LOG == [1, 2]  # a log without tensors lives on
    assert found.getvalue().count("1") == 1


@pytest.mark.parametrize("name", STATES)
def test_state_between_calls(name):
    """The state is restored, and scales are right for the second call too, which reads it."""
    tail, units = STATES[name]
    if name in ("written in place", "written and read later", "alias") and torch.__version__ < (2, 7):
        pytest.skip("this torch cannot write to a fake tensor that is an attribute: the model is refused")

    def twice(model: nn.Module, training: bool) -> Tensor:
        model = copy.deepcopy(model).train(training)
        with torch.no_grad():
            return torch.stack([model(X), model(X)])

    model = net(tail)
    graph = pathcond.extract_graph(model, X)
    assert graph.units == units
    assert name not in ("object", "nested", "subclass") or "kept in the model" in graph.frozen[0].reason
    pathcond.compute_diag_g(model, X)
    assert untouched(model)
    scaled = copy.deepcopy(model)
    pathcond.apply_scales_(scaled, graph, random_scales(graph))
    for mode in (False, True):
        torch.testing.assert_close(twice(scaled, mode), twice(model, mode), rtol=1e-9, atol=1e-9)
    forget()
    assert pathcond.rescale_(model, X).output_change < 1e-9
    assert untouched(model)
    assert type(model(X)) is Tensor


@pytest.mark.parametrize("turn", ["number", "iterator", "generator", "random"])
def test_state_that_decides_later_calls_is_said(turn):
    """Only two calls are recorded, and what an own random generator draws is not known."""
    turns = {"iterator": itertools.count(1), "generator": np.random.default_rng(0), "random": random.Random(0)}  # noqa: S311

    def tail(s, h, x):
        s.n += turn == "number"
        late = {"number": lambda: s.n > 2, "iterator": lambda: next(s.turns) > 2}.get(
            turn, lambda: s.turns.random() < 0
        )
        return s.b(torch.tanh(h) if late() else h)

    model = net(tail)
    model.turns = turns.get(turn)
    with pytest.warns(pathcond.PathCondWarning, match="counter" if turn == "number" else "random numbers"):
        assert pathcond.extract_graph(model, X).units == 8
    fresh = {"generator": np.random.default_rng(0), "random": random.Random(0)}.get(turn)  # noqa: S311
    assert fresh is None or model.turns.random() == fresh.random()


# ---- caches, objects, hooks


@pytest.mark.parametrize("table", [cached, held])
@pytest.mark.parametrize("call", [pathcond.rescale_, lambda m, x: pathcond.rescale_(m, x, check=False)])
def test_caches_of_tables_stay_real(table, call):
    model = net(lambda s, h, x: s.b(h * table(8)))
    call(model, X)
    found = model(X)
    assert type(table(8)) is Tensor
    forget()
    assert torch.equal(found, model(X))


class Taker(list):
    def hook(self, module, args, out):
        self.append(out)


@pytest.mark.parametrize(
    ("kind", "units"), [("closure", 8), ("method", 8), ("global", 8), ("read again", 0), ("counter", 0)]
)
def test_hooks(kind, units):
    taken: list[Tensor] = []
    taker, count = Taker(), 0

    def read_again(m, i, o):
        taken.append(o)
        return o + taken[-2] if len(taken) > 1 else o

    def counter(m, i, o):
        nonlocal count
        count += 1
        return o if count % 2 else o.tanh()

    hooks = {
        "closure": lambda m, i, o: taken.append(o), "method": taker.hook, "global": lambda m, i, o: SEEN.append(o),
        "read again": read_again, "counter": counter,
    }  # fmt: skip
    model = mlp(5, 8, 2).double()
    model[1].register_forward_hook(hooks[kind])
    assert pathcond.rescale_(model, X).units == units
    assert [taken, taker, SEEN, count] == [[], [], [], 0]
    model(X)
    assert len(taken) + len(taker) + len(SEEN) + count == 1
