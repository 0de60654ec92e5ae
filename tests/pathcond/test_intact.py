"""Runs leave nothing behind: caches, objects, nested containers, hooks, globals; what cannot be mended is refused."""

import logging
import queue
import threading
from collections import deque
from functools import lru_cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

import pathcond
from tests.cases import Lambda

TABLES: dict[int, Tensor] = {}
SEEN: list[Tensor] = []


@lru_cache
def cached(n: int) -> Tensor:
    return torch.linspace(0.5, 1, n).double() * 2


def held(n: int) -> Tensor:
    if n not in TABLES:
        TABLES[n] = torch.linspace(0.5, 1, n).double()
    return TABLES[n]


class State:
    last: Tensor | None = None

    def __init__(self) -> None:
        self.all = {"h": deque(maxlen=3)}


def net(forward) -> Lambda:
    torch.manual_seed(0)
    return Lambda(forward, a=nn.Linear(5, 8), b=nn.Linear(8, 2)).double()


X = torch.randn(3, 5, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize("table", [cached, held])
@pytest.mark.parametrize("call", [pathcond.rescale_, pathcond.extract_graph, pathcond.path_magnitudes,
                                  lambda m, x: pathcond.rescale_(m, x, check=False)])  # fmt: skip
def test_caches_of_tables_stay_real(table, call):
    cached.cache_clear()
    TABLES.clear()
    model = net(lambda s, x: s.b(F.relu(s.a(x)) * table(8)))
    call(model, X)
    found = model(X)
    assert type(table(8)) is Tensor
    cached.cache_clear()
    TABLES.clear()
    assert torch.equal(found, model(X))


def test_caches_stay_real_where_the_record_fails():
    cached.cache_clear()
    model = net(lambda s, x: s.b(F.relu(s.a(x)) * cached(8)) if s.b(F.relu(s.a(x)) * cached(8)).sum() > -1e9 else x)
    with pytest.raises(pathcond.RecordError, match="depends on the values"):
        pathcond.extract_graph(model, X)
    assert type(cached(8)) is Tensor


def _object(s, h):
    s.state.last = h
    s.state.all["h"].append(h)


def _nested(s, h):
    s.cache["k"].append((h, [h]))


class Attributes(dict):
    """As people have them."""


def _subclass(s, h):
    s.attributes["h"] = h


@pytest.mark.parametrize("keep", [_object, _nested, _subclass])
def test_what_the_model_holds_is_put_back_and_counts_as_kept(keep):
    def forward(s, x):
        h = F.relu(s.a(x))
        keep(s, h)
        return s.b(h)

    model = net(forward)
    model.state, model.cache, model.attributes = State(), {"k": []}, Attributes()
    report = pathcond.rescale_(model, X)
    assert report.units == 0
    assert "kept in the model" in report.frozen[0].reason
    assert model.state.last is None
    assert not model.state.all["h"]
    assert model.cache == {"k": []}
    assert not model.attributes


class Taker:
    def __init__(self) -> None:
        self.taken: list[Tensor] = []

    def hook(self, module, args, out):
        self.taken.append(out)


@pytest.mark.parametrize("kind", ["closure", "method", "global"])
def test_hooks_that_gather_activations(kind):
    taken: list[Tensor] = []
    taker = Taker()
    hooks = {"closure": lambda m, i, o: taken.append(o), "method": taker.hook, "global": lambda m, i, o: SEEN.append(o)}
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    model[1].register_forward_hook(hooks[kind])
    assert pathcond.rescale_(model, X).units == 8
    assert [taken, taker.taken, SEEN] == [[], [], []]
    model(X)
    assert len(taken) + len(taker.taken) + len(SEEN) == 1
    SEEN.clear()


def test_a_result_that_is_stored_elsewhere_is_told():
    def forward(s, x):
        State.last = F.relu(s.a(x))  # in a class
        return s.b(State.last)

    model = net(forward)
    before = model(X)
    report = pathcond.rescale_(model, X)
    assert report.units == 8
    assert report.exact
    assert "stores the result of `relu` at 'the model' outside" in report.notes[0]
    assert type(State.last) is Tensor  # the check's run stored a real one
    assert torch.allclose(model(X), before)
    State.last = None


class Saver:
    out: Tensor | None = None

    def __call__(self, module, args, out):
        self.out = out


def test_an_object_as_a_hook_holds_nothing_that_the_model_reads():
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    saver = Saver()
    model[0].register_forward_hook(saver)
    assert pathcond.rescale_(model, X).units == 8
    assert not isinstance(saver.out, FakeTensor)


class Writer:
    """What a forward pass may hand words to: a queue that a thread empties."""

    def __init__(self) -> None:
        self.queue: queue.Queue[str | None] = queue.Queue()
        self.got: list[str] = []
        self.thread = threading.Thread(target=self._loop)
        self.thread.start()

    def _loop(self) -> None:
        while (word := self.queue.get()) is not None:
            self.got.append(word)
            self.queue.task_done()


def test_queues_and_logs_live_on(tmp_path):
    log = logging.Logger("of a model")
    log.addHandler(logging.FileHandler(tmp_path / "log", delay=True))

    def forward(s, x):
        s.writer.queue.put("forward")
        s.log.info("forward")
        return s.b(F.relu(s.a(x)))

    model = net(forward)
    model.writer, model.log = Writer(), log
    pathcond.rescale_(model, X)
    model(X)
    model.writer.queue.join()
    model.writer.queue.put(None)
    model.writer.thread.join(10)
    assert not model.writer.thread.is_alive()
    log.handlers[0].close()
    assert model.writer.got == ["forward"] * 5  # checked before and after, recorded in two modes, called
    assert (tmp_path / "log").read_text() == "forward\n" * 5


def test_results_in_a_cycle_are_no_leak():
    def forward(s, x):
        box = [F.relu(s.a(x))]
        box.append(box)
        return s.b(box[0])

    assert pathcond.rescale_(net(forward), X).units == 8


def test_batchnorm_that_averages_over_all_batches():
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8, momentum=None), nn.ReLU(), nn.Linear(8, 2)).double()
    assert pathcond.rescale_(model, X).units == 8
    assert model[1].momentum is None
    assert model[1].num_batches_tracked == 0


def test_a_target_on_the_memory_of_what_is_read():
    def forward(s, x):
        h = F.relu(s.a(x))
        with torch.no_grad():
            torch.add(h[:, 4:], h[:, 4:], out=h[:, :4])
        return s.b(h)

    model = net(forward)
    report = pathcond.rescale_(model, X)
    assert report.output_change < 1e-12
    assert report.graph.frozen_units == 4
