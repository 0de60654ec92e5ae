"""Optimizers of runs that train alone: the same steps as torch's, and a run that resumes exactly after a stop."""

import copy

import pytest
import torch
from torch.optim import _muon

import pathcond
from paper import models
from paper.starts import initialize, lr_factors
from paper.training.modules import ModuleTrainer
from paper.training.optimisers import Muon, optimisers, orthogonalised, rates
from paper.training.trainer import Run
from tests.paper.training.reference import (
    BARE,
    CONV,
    CPU,
    MLP,
    assert_same,
    make_spec,
    random_splits,
    take_step,
    train_epoch,
)
from tests.steps import rescale_by_steps

SETTINGS = {
    "momentum": {"name": "sgd", "momentum": 0.9},
    "nesterov": {"name": "sgd", "momentum": 0.9, "nesterov": True},
    "adam": {"name": "adam"},
    "adamw": {"name": "adamw", "weight_decay": 0.1},
    "muon decay": {"name": "muon", "weight_decay": 0.5},
}


def torchs(name, module, lr):
    """The same optimizers, built by hand from torch.optim."""
    settings = dict(SETTINGS[name])
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}.get(settings.pop("name"))
    parameters = list(module.parameters())
    if kind is not None:
        return [kind(parameters, lr, **settings)]
    matrices, rest = ([p for p in parameters if (p.ndim == 2) == flat] for flat in (True, False))
    muon = torch.optim.Muon(matrices, lr, adjust_lr_fn="match_rms_adamw", **settings)
    return [muon, torch.optim.AdamW(rest, lr, **settings)]


def train(module, mine, trainer, epoch, after=lambda: None):
    """An epoch of the module on the trainer's inputs to the last bit: Adam turns a rounding into a step."""
    splits = trainer.splits
    x = splits.train.images.float() * splits.scale + splits.shift
    train_epoch(module, mine, trainer.spec, splits, 1, epoch, after, x)


def alone(run):
    return ModuleTrainer(Run(*run), random_splits(run[0]), CPU)


def test_orthogonalised_is_near_torchs():
    for shape in ((5, 9), (9, 5), (6, 6)):
        matrix = torch.randn(shape, generator=torch.Generator().manual_seed(3))
        found = orthogonalised(matrix)
        torch.testing.assert_close(orthogonalised(torch.stack([2 * matrix, matrix]))[1], found)
        theirs = _muon._zeropower_via_newtonschulz(matrix, (3.4445, -4.7750, 2.0315), 5, 1e-7)
        torch.testing.assert_close(found, theirs.float(), rtol=0.05, atol=0.05)  # theirs is in bfloat16


@pytest.mark.parametrize(("model", "name"), [*((MLP, name) for name in SETTINGS), (CONV, "nesterov"), (CONV, "adamw")])
def test_steps_are_those_of_torch(model, name, monkeypatch):
    monkeypatch.setattr(_muon, "_zeropower_via_newtonschulz", lambda matrix, *_: orthogonalised(matrix))
    run = (make_spec(model, "pathcond", optimiser=SETTINGS[name], lr=0.01), 1)
    trainer, module = alone(run), initialize(*run).module
    began, mine = copy.deepcopy(module), torchs(name, module, 0.01)
    for epoch in (1, 2):
        trainer.epoch(epoch)
        train(module, mine, trainer, epoch)
        assert_same(trainer.module, module, 1e-6, 1e-7)
    with pytest.raises(AssertionError):
        assert_same(trainer.module, began, 1e-3, 1e-3)


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_averages_of_gradients_follow_a_rescaling(name):
    run = (make_spec(MLP, "teleport", {"teleport": 2}, optimiser=SETTINGS[name], lr=0.02), 1)
    trainer, module, x = alone(run), initialize(*run).module, models.example_input(MLP)
    (mine,) = torchs(name, module, 0.02)
    for epoch in (1, 2, 3):
        trainer.epoch(epoch)
        trainer.teleport(epoch)
        train(module, [mine], trainer, epoch)
        if epoch % 2 == 0:
            rescale_by_steps(module, x, optimizer=mine, pooling="plain", smooth=True)
        assert_same(trainer.module, module, 1e-6, 1e-7)


def test_teleport_measures_statistics_like_the_library():
    one = make_spec(CONV, "every_epoch", optimiser=SETTINGS["momentum"], lr=0.02)
    trainer = alone((one, 1))
    batch = trainer.splits.train.images[:128].float() * trainer.splits.scale + trainer.splits.shift
    module = initialize(one, 1, batch=batch).module
    (mine,) = torchs("momentum", module, 0.02)
    schedule = pathcond.Teleport(module, batch, every=1, optimizer=mine, sweeps=10)  # else as by default
    for epoch in (1, 2):
        trainer.epoch(epoch)
        trainer.teleport(epoch)
        train(module, [mine], trainer, epoch)
        assert schedule.step().moved
        assert_same(trainer.module, module, 1e-5, 1e-6)


def test_muon_takes_kernels_and_treats_them_as_matrices():
    start, slope = torch.randn(6, 2, 3, 3), torch.randn(6, 2, 3, 3)
    kernel, matrix = start.clone(), start.flatten(1).clone()
    kernel = kernel.to(memory_format=torch.channels_last)
    kernels, rest = optimisers(models.make(CONV, 0), {"name": "muon"}, 0.1)
    assert {p.ndim for one in kernels.param_groups for p in one["params"]} == {4}
    assert {p.ndim for one in rest.param_groups for p in one["params"]} == {1}
    pair = [Muon([p.requires_grad_()], 0.1, 0.01, 0.9) for p in (kernel, matrix)]
    for _ in range(3):
        kernel.grad, matrix.grad = slope, slope.flatten(1)
        for one in pair:
            one.step()
    torch.testing.assert_close(kernel.detach().flatten(1), matrix.detach(), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(kernel.detach(), start)


def test_schedules():
    steps = 10
    cycle = rates({"lr": 2.0, "schedule": {"name": "one_cycle", "warmup": 0.2}}, steps)
    assert cycle.tolist() == pytest.approx([1.0, 2.0, 2.0, 1.75, 1.5, 1.25, 1.0, 0.75, 0.5, 0.25])
    cosine = rates({"lr": 2.0, "schedule": {"name": "cosine"}}, steps)
    assert cosine[0] == 2.0
    assert cosine[5].item() == pytest.approx(1.0)
    assert (cosine.diff() < 0).all()
    assert 0 < cosine[-1] < 0.1
    assert rates({"lr": 0.3}, 3).tolist() == [0.3] * 3


def test_learning_rates_by_layer_are_those_of_the_rescaled_network():
    """Where all units of a layer have one scale, plain SGD on the rescaled network is SGD with these rates."""
    model = {**BARE, "activation": "relu", "bias": False}
    module = models.make(model, 0).double()
    x = torch.randn(9, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(9) % 10
    graph = pathcond.extract_graph(module, x)
    by_group = zip(graph.groups, (0.7, -1.1, 0.4), strict=True)
    u = torch.cat([torch.full((size,), value, dtype=torch.float64) for size, value in by_group])
    scaled = copy.deepcopy(module)
    pathcond.apply_scales_(scaled, graph, u / 2)
    rescaled_rates = optimisers(module, {"name": "sgd"}, 0.1, lr_factors(graph, u))
    plain = optimisers(scaled, {"name": "sgd"}, 0.1)
    for _ in range(3):
        take_step(module, rescaled_rates, x, labels, "classify")
        take_step(scaled, plain, x, labels, "classify")
    pathcond.apply_scales_(scaled, graph, -u / 2)
    for name in ("1.weight", "3.weight", "5.weight"):
        torch.testing.assert_close(scaled.get_parameter(name), module.get_parameter(name), rtol=1e-9, atol=1e-9)
