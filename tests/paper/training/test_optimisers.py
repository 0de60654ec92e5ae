"""Optimisers of runs alone: torch's own steps, and a run that goes on as if it had never stopped."""

import copy

import pytest
import torch

import pathcond
from paper import models
from paper.errors import PaperError
from paper.training.checkpoint import Checkpoint
from paper.training.initialization import initialize
from paper.training.modules import ModuleTrainer, optimisers
from paper.training.trainer import Run
from tests.paper.training.reference import (
    AUTOENCODER,
    CONV,
    CPU,
    MLP,
    assert_same,
    make_spec,
    random_splits,
    train_epoch,
)

SETTINGS = {
    "momentum": {"name": "sgd", "momentum": 0.9},
    "decay": {"name": "sgd", "momentum": 0.5, "weight_decay": 0.01},
    "nesterov": {"name": "sgd", "momentum": 0.9, "nesterov": True},
    "adam": {"name": "adam"},
    "adamw": {"name": "adamw", "weight_decay": 0.1},
    "adam decay": {"name": "adam", "weight_decay": 0.01},
    "muon": {"name": "muon"},
    "muon decay": {"name": "muon", "weight_decay": 0.5},
}


def torchs(name, module, lr):
    """The same, by hand."""
    parameters = list(module.parameters())
    matrices = [p for p in parameters if p.ndim == 2]
    return {
        "momentum": lambda: [torch.optim.SGD(parameters, lr, momentum=0.9)],
        "decay": lambda: [torch.optim.SGD(parameters, lr, momentum=0.5, weight_decay=0.01)],
        "nesterov": lambda: [torch.optim.SGD(parameters, lr, momentum=0.9, nesterov=True)],
        "adam": lambda: [torch.optim.Adam(parameters, lr)],
        "adamw": lambda: [torch.optim.AdamW(parameters, lr, weight_decay=0.1)],
        "adam decay": lambda: [torch.optim.Adam(parameters, lr, weight_decay=0.01)],
        "muon": lambda: [
            torch.optim.Muon(matrices, lr, weight_decay=0),
            torch.optim.Adam([p for p in parameters if p.ndim != 2], lr),
        ],
        "muon decay": lambda: [
            torch.optim.Muon(matrices, lr, weight_decay=0.5),
            torch.optim.Adam([p for p in parameters if p.ndim != 2], lr, weight_decay=0.5),
        ],
    }[name]()


def train(module, mine, trainer, epoch, after=lambda: None):
    """An epoch of the module on the trainer's inputs to the last bit: Adam turns a rounding into a step."""
    splits = trainer.splits
    x = splits.train.images.float() * splits.scale + splits.shift
    train_epoch(module, mine, trainer.spec, splits, 1, epoch, after, x)


def alone(run):
    return ModuleTrainer(Run(*run), random_splits(run[0]), CPU)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("model", [MLP, AUTOENCODER, CONV], ids=["mlp", "autoencoder", "conv"])
def test_steps_are_those_of_torch(model, name):
    run = (make_spec(model, "pathcond", optimiser=SETTINGS[name], lr=0.01), 1)
    if model is CONV and "muon" in name:
        assert len(optimisers(models.make(model, 0), SETTINGS[name], 0.1)) == 1  # no matrices: all is Adam's
        return
    trainer, module = alone(run), initialize(*run).module
    began, mine = copy.deepcopy(module), torchs(name, module, 0.01)
    for epoch in (1, 2):
        trainer.epoch(epoch)
        train(module, mine, trainer, epoch)
        assert_same(trainer.module, module, 1e-6, 1e-7)
    with pytest.raises(AssertionError):
        assert_same(trainer.module, began, 1e-3, 1e-3)


@pytest.mark.parametrize("method", ["baseline", "enorm", "teleport"])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_goes_on_from_its_checkpoint_bit_for_bit(name, method, tmp_path):
    how = {"teleport": 1} if method == "teleport" else {}
    run = (make_spec(MLP, method, how, optimiser=SETTINGS[name], lr=0.01), 0)
    if "muon" in name and method != "baseline":
        with pytest.raises(PaperError, match="muon leaves vectors to adam"):
            alone(run).teleport(1)
        return
    whole, stopped = alone(run), alone(run)
    for epoch in (1, 2, 3, 4):
        whole.epoch(epoch)
        whole.teleport(epoch)
        if epoch <= 2:
            stopped.epoch(epoch)
            stopped.evaluate()
            stopped.teleport(epoch)
    checkpoint = Checkpoint(tmp_path, run[0])
    checkpoint.write({0: {"epoch": 2, "state": stopped.save(0), "rows": [], "seconds": 0.0}})
    stopped.epoch(3)  # what was saved does not follow the run
    again = alone(run)
    again.load(0, checkpoint.read()[0][0]["state"])
    for epoch in (3, 4):
        again.epoch(epoch)
        again.teleport(epoch)
    assert_same(again.module, whole.module, 0, 0)
    for one, other in zip(again.optimisers, whole.optimisers, strict=True):
        states = [o.state_dict()["state"] for o in (one, other)]
        assert states[0].keys() == states[1].keys()
        for at in states[0]:
            assert all(
                torch.equal(torch.as_tensor(v), torch.as_tensor(states[1][at][k])) for k, v in states[0][at].items()
            )


@pytest.mark.parametrize("name", ["momentum", "adam"])
@pytest.mark.parametrize("model", [MLP, AUTOENCODER], ids=["mlp", "autoencoder"])
def test_averages_of_gradients_follow_a_teleport(model, name):
    run = (make_spec(model, "teleport", {"teleport": 2}, optimiser=SETTINGS[name], lr=0.02), 1)
    trainer, module, x = alone(run), initialize(*run).module, models.example_input(model)
    (mine,) = torchs(name, module, 0.02)
    schedule = pathcond.Teleport(module, x, every=2, sweeps=10, optimizer=mine, pooling="plain", smooth=True)
    for epoch in (1, 2, 3):
        trainer.epoch(epoch)
        trainer.teleport(epoch)
        train(module, [mine], trainer, epoch)
        schedule.step()
        assert_same(trainer.module, module, 1e-6, 1e-7)


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_averages_of_gradients_follow_enorm(name):
    run = (make_spec(MLP, "enorm", optimiser=SETTINGS[name], lr=0.02), 1)
    trainer, module = alone(run), initialize(*run).module
    (mine,) = torchs(name, module, 0.02)
    enorm = pathcond.ENorm(module, torch.ones(1, 12), mine, last_layer=False, batchnorm="exclude")
    for epoch in (1, 2):
        trainer.epoch(epoch)
        train(module, [mine], trainer, epoch, enorm.step)
        assert_same(trainer.module, module, 1e-6, 1e-7)


def test_muon_takes_the_matrices_and_adam_the_rest():
    muon, adam = optimisers(models.make(MLP, 0), {"name": "muon"}, 0.1)
    assert isinstance(muon, torch.optim.Muon)
    assert isinstance(adam, torch.optim.Adam)
    assert {p.ndim for group in muon.param_groups for p in group["params"]} == {2}
    assert {p.ndim for group in adam.param_groups for p in group["params"]} == {1}
    (only,) = optimisers(torch.nn.Linear(2, 3, bias=False), {"name": "muon"}, 0.1)
    assert isinstance(only, torch.optim.Muon)


@pytest.mark.parametrize("settings", [{"name": "lion"}, {"name": "adam", "momentum": 0.9}])
def test_what_an_optimiser_does_not_know_is_said(settings):
    with pytest.raises(PaperError, match="optimiser: "):
        optimisers(models.make(MLP, 0), settings, 0.1)
