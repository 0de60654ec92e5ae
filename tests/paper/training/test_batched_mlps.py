"""Stacked networks against modules of torch, after every step, in float64."""

import copy

import pytest
import torch

from paper import models
from paper.cli import PaperError
from paper.training import torch_layers
from paper.training.batched_mlps import BatchedMLPs
from paper.training.modules import chain
from tests.paper.training.reference import AUTOENCODER, BARE, CPU, MLP, assert_same, enorm_by_unit, take_step

RATES = (0.05, 0.3, 1.0)
SIZES = (16, 16, 7)  # of the batches of an epoch; the last is smaller
NETWORKS = {"batchnorm": MLP, "bare": BARE, "no bias": {**BARE, "bias": False}, "autoencoder": AUTOENCODER}
MODELS = {
    f"{name} {activation}": {**model, "activation": activation}
    for name, model in NETWORKS.items()
    for activation in ("relu", "gelu", "silu")
}


class Pair:
    """A stack, and its runs as modules with an optimizer each."""

    def __init__(self, modules, rates, task):
        self.modules = [module.double() for module in modules]
        self.optimisers = [torch.optim.SGD(m.parameters(), lr=lr) for m, lr in zip(self.modules, rates, strict=True)]
        self.stack = BatchedMLPs(self.modules, CPU, torch.float64)
        self.rate = torch.tensor(rates, dtype=torch.float64).view(-1, 1, 1)
        self.task, self.source = task, torch.Generator().manual_seed(5)

    def step(self, size, enorm_runs=None, after=lambda run, module: None):
        """A step of both on random images, each run its own."""
        runs, n = len(self.modules), self.stack.shape.widths[0]
        x = torch.randn(runs, size, n, dtype=torch.float64, generator=self.source)
        labels = torch.randint(0, 10, (runs, size), generator=self.source)
        for run, (module, optimiser) in enumerate(zip(self.modules, self.optimisers, strict=True)):
            take_step(module, [optimiser], x[run], labels[run], self.task)
            after(run, module)
        self.stack.step(x, labels if self.task == "classify" else x, self.rate, self.task, enorm_runs)

    def check(self):
        for run, module in enumerate(self.modules):
            copied = copy.deepcopy(module)
            for tensor in copied.state_dict().values():
                tensor.zero_()
            self.stack.write_to(run, copied)
            assert_same(copied, module)


def task_of(model):
    return "reconstruct" if model["kind"] == "autoencoder" else "classify"


@pytest.mark.parametrize("name", MODELS)
def test_every_step_is_that_of_torch(name):
    model = MODELS[name]
    pair = Pair([models.make(model, seed) for seed in range(3)], RATES, task_of(model))
    began = [t.clone() for t in pair.stack.tensors()]
    for size in SIZES * 2:
        pair.step(size)
        pair.check()
    assert not any(torch.equal(a, b) for a, b in zip(began, pair.stack.tensors(), strict=True))


@pytest.mark.parametrize("name", [name for name in MODELS if "no bias" not in name])
def test_enorm_balances_its_runs_after_every_step(name):
    model = MODELS[name]
    pair = Pair([models.make(model, seed) for seed in range(4)], (*RATES, 0.1), task_of(model))
    for size in SIZES:
        pair.step(size, slice(1, 3), lambda run, module: enorm_by_unit(module) if run in (1, 2) else None)
        pair.check()


def test_enorm_needs_a_chain_of_layers():
    with pytest.raises(PaperError, match="expected a chain of layers"):
        chain(models.make({"kind": "resnet18_c", "width": 0.03}, 0))


def test_enorm_passes_over_units_with_nothing_on_one_side():
    module = models.make(BARE, 0).double()
    with torch.no_grad():
        module[1].weight[0] = 0  # nothing enters
        module[3].weight[:, 1] = 0  # nothing leaves
    stack = BatchedMLPs([module], CPU, torch.float64)
    torch_layers.enorm_cycle(stack.weights, stack.biases)
    found = copy.deepcopy(module)
    stack.write_to(0, found)
    enorm_by_unit(module)
    assert_same(found, module)
    assert torch.equal(found[1].bias[:2], module[1].bias[:2])
