"""Work on two streams, simulated without a GPU: work on memory that the other stream used must wait for it."""

import contextlib
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paper.training.batched_mlps import BatchedTrainer
from paper.training.kernels import torch_layers
from paper.training.trainer import Run
from tests.paper.training.reference import CPU, WIDE, TorchHopper, make_spec, random_splits

NETWORKS = {
    "mlp": WIDE,
    "bare": {**WIDE, "batchnorm": False},
    "narrow": {**WIDE, "hidden": [72, 20, 68]},
    "autoencoder": {"kind": "autoencoder", "inputs": 72, "compression": 1},
}


class Stream:
    """Knows of each stream how much of its work is done before its own next work."""

    def __init__(self, name):
        self.name, self.known = name, {}

    def tick(self):
        self.known[self.name] = self.known.get(self.name, 0) + 1
        return self.name, self.known[self.name]

    def is_after(self, moments):
        return all(self.known.get(name, 0) >= count for name, count in moments)

    def record_event(self):
        return dict(self.known)

    def wait_event(self, event):
        self.known = {k: max(self.known.get(k, 0), event.get(k, 0)) for k in self.known | event}

    def wait_stream(self, other):
        self.wait_event(other.known)


class Watch(TorchDispatchMode):
    """Records which stream uses a tensor's memory, and uses that are too early; freed memory returns to its stream."""

    def __init__(self, current):
        super().__init__()
        self.current, self.live, self.freed, self.found = current, {}, [], set()

    def used(self, tensor, stream="main"):
        """When its memory was read and written last."""
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        if place not in self.live:
            self.live[place] = {"stream": stream, "reads": [], "writes": []}
            weakref.finalize(storage, lambda: self.freed.append(self.live.pop(place)))
        return self.live[place]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result, given = func(*args, **(kwargs or {})), {"read": [], "written": []}
        named = {a.name: v for a, v in zip(func._schema.arguments, args, strict=False)} | (kwargs or {})
        for argument in func._schema.arguments:
            tensors = [t for t in tree_leaves(named.get(argument.name)) if isinstance(t, torch.Tensor)]
            written = argument.alias_info is not None and argument.alias_info.is_write
            given["written" if written else "read"] += tensors
        old = {t.untyped_storage().data_ptr() for t in (*given["read"], *given["written"])}
        made = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        made = [t for t in made if t.untyped_storage().data_ptr() not in old]
        if made or given["written"]:  # not only a view
            self.check(func, self.current[-1], made, **given)
        return result

    def check(self, func, stream, made, read, written):
        moments = [m for t in (*read, *written) for m in self.used(t)["writes"]]
        moments += [m for t in written for m in self.used(t)["reads"]]
        if made:  # which may lie where something else was
            moments += [m for f in self.freed if f["stream"] == stream.name for m in (*f["reads"], *f["writes"])]
        if not stream.is_after(moments):
            self.found.add(f"{func} on {stream.name}")
        now = stream.tick()
        for tensor in read:
            self.used(tensor)["reads"].append(now)
        for tensor in (*written, *made):
            self.used(tensor, stream.name).update(reads=[], writes=[now])


class Ways:
    """The functions of `torch_layers`; ENorm reads and writes as `triton_layers.enorm_cycle` does."""

    norm_forward, norm_backward = staticmethod(torch_layers.norm_forward), staticmethod(torch_layers.norm_backward)
    plain_forward, plain_backward = staticmethod(torch_layers.plain_forward), staticmethod(torch_layers.plain_backward)

    @staticmethod
    def enorm_cycle(weights, biases, row, squares, done):
        scale = 1 + 0 * (weights[0] if squares is None else squares).sum()
        for layer, weight in enumerate(weights[:-1]):
            if layer < len(weights) - 2:
                scale = scale + 0 * (weight.sum() * row.sum() * weights[layer + 1].sum())
            for changed in (row if layer == 0 else weight, biases[layer]):
                if changed is not None:
                    changed.mul_(scale)
            done(layer)


def too_early(monkeypatch, name, own, methods, change=lambda stack: None):
    """Uses of memory in some steps that come too early."""
    side, current = Stream("side"), [Stream("main")]

    @contextlib.contextmanager
    def on(stream):
        current.append(stream)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", on)
    specs = [make_spec(NETWORKS[name], method, images=106, batch=22, test_images=5) for method in methods]
    runs = [Run(one, 0) for one in specs]
    trainer = BatchedTrainer(runs, random_splits(specs[0], CPU), CPU)
    trainer.stack.side, trainer.stack.layer_kernels, trainer.stack.hopper = side, Ways, TorchHopper if own else None
    if "enorm" in methods:
        trainer.stack.defer_row_scale()
    change(trainer.stack)
    with Watch(current) as watch:
        for count, size in ((2, 22), (2, 22), (1, 18)):
            trainer._graph_steps(count, size)
        trainer.stack.tensors()
    return watch.found


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("own", [True, False], ids=["own", "torch"])
@pytest.mark.parametrize("methods", [("baseline",), ("baseline", "enorm")], ids=["plain", "enorm"])
def test_nothing_comes_too_early(monkeypatch, name, own, methods):
    assert not too_early(monkeypatch, name, own, methods)


FAULTS = {
    "no word of ENorm's layers": ("_record_enorm", lambda layer: None),
    "no wait at all": ("synchronize", lambda layer=None: None),
    "no wait before work on the side stream": ("on_side_stream", None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_waits_that_lack_are_found(monkeypatch, fault):
    def change(stack):
        name, replaced = FAULTS[fault]
        setattr(stack, name, replaced or (lambda: torch.cuda.stream(stack.side)))

    assert too_early(monkeypatch, "autoencoder", True, ("baseline", "enorm"), change)
