"""Runs in a batch and alone: the order of the images, the metrics, and curves that do not depend on other runs."""

import pytest
import torch

from paper import models
from paper.starts import initialize
from paper.training.batched_mlps import BatchedTrainer
from paper.training.modules import ModuleTrainer
from paper.training.trainer import Run
from tests.paper.training.reference import (
    AUTOENCODER,
    BARE,
    CONV,
    CPU,
    GPT,
    METHODS,
    MLP,
    assert_same,
    batches,
    curves,
    enorm_by_unit,
    evaluate,
    make_spec,
    random_splits,
    train_epoch,
)
from tests.steps import rescale_by_steps

GELU = {**MLP, "activation": "gelu"}


def together(*runs):
    return BatchedTrainer([Run(*run) for run in runs], random_splits(runs[0][0]), CPU)


def alone(run):
    return ModuleTrainer(Run(*run), random_splits(run[0]), CPU)


def watch(trainer, epoch):
    """Numbers of the images of each step of an epoch, (runs, batch) each."""
    seen = []
    trainer._step = lambda index: seen.append(index.clone())
    trainer.epoch(epoch)
    return seen


# ---- the order of the images


def test_methods_share_the_order_of_a_seed_and_seeds_do_not():
    runs = [(make_spec(MLP, method), seed) for method in METHODS[:2] for seed in (0, 4, 1)]
    assert [index.shape[1] for index in watch(alone(runs[0]), 1)] == [16, 16, 16, 7]
    trainer = together(*runs)
    orders = [torch.cat(watch(trainer, epoch), 1) for epoch in (1, 2)]
    assert not torch.equal(*orders)
    assert torch.equal(torch.cat(watch(alone(runs[1]), 2), 1)[0], orders[1][1])
    for order, epoch in zip(orders, (1, 2), strict=True):
        by_seed = {seed: torch.cat(batches(seed, epoch, 55, 16)) for seed in (0, 4, 1)}
        assert len({tuple(one.tolist()) for one in by_seed.values()}) == 3
        for row, (_, seed) in zip(order, runs, strict=True):
            assert torch.equal(row, by_seed[seed])


# ---- what is measured


@pytest.mark.parametrize(("validation", "chunk"), [(0, None), (13, 8)])
@pytest.mark.parametrize("model", [MLP, BARE, AUTOENCODER], ids=["mlp", "bare", "autoencoder"])
def test_metrics_of_runs_together(model, validation, chunk):
    specs = [make_spec(model, method, validation=validation, lr=0.3) for method in METHODS[:2]]
    check_metrics(together(*((spec, seed) for spec in specs for seed in (0, 1))), model, validation, chunk)


@pytest.mark.parametrize("model", [MLP, AUTOENCODER, CONV, GPT], ids=["mlp", "autoencoder", "conv", "gpt"])
def test_metrics_of_a_run_alone(model):
    check_metrics(alone((make_spec(model, "pathcond", validation=13, lr=0.3), 0)), model, 13, 8)


def module_of(trainer, model, run=0):
    """A run as a module."""
    module = models.make(model, 9)
    if isinstance(trainer, BatchedTrainer):
        trainer.stack.write_to(run, module)
    else:
        module.load_state_dict(trainer.module.state_dict())
    return module


def check_metrics(trainer, model, validation, chunk):
    trainer.eval_batch = chunk or trainer.eval_batch
    for epoch in (0, 1):
        if epoch:
            trainer.epoch(epoch)
        before = [t.clone() for t in trainer._state_tensors()]
        found = trainer.evaluate()
        assert all(map(torch.equal, before, trainer._state_tensors())), "measuring changes nothing"
        for run in range(len(trainer.runs)):
            expected = evaluate(module_of(trainer, model, run), trainer.splits, trainer.task)
            assert list(found) == list(expected)
            assert ("validation_loss" in found) == bool(validation)
            for name, value in expected.items():
                assert found[name].dtype == torch.float64
                assert float(found[name][run]) == pytest.approx(value, rel=1e-5, abs=1e-12), (name, run)


# ---- the same curves


@pytest.mark.parametrize("model", [MLP, GELU, AUTOENCODER], ids=["mlp", "gelu", "autoencoder"])
def test_company_and_way_do_not_change_a_run(model):
    specs = [make_spec(model, method, lr=lr) for method, lr in (("baseline", 0.1), ("pathcond", 0.2), ("enorm", 0.3))]
    runs = [(one, seed) for one in specs for seed in (0, 1)]
    batched = curves(together(*runs), 2)
    for number, run in [*enumerate(runs)][::2]:
        for way in (together(run), alone(run)):
            found = curves(way, 2)
            assert list(found) == list(batched)
            for name in (name for name in found if name.endswith("loss")):
                torch.testing.assert_close(found[name][:, 0], batched[name][:, number], rtol=1e-4, atol=1e-6)
            assert way.max_log_scale == [initialize(*run).max_log_scale]
    train = batched["train_loss"]
    assert bool((train[-1] < train[0]).all())


@pytest.mark.parametrize(
    ("model", "way"),
    [(MLP, together), (AUTOENCODER, together), (MLP, alone), (AUTOENCODER, alone), (CONV, alone), (GPT, alone)],
)
def test_epochs_are_those_of_a_plain_loop(model, way):
    for method in ("full",) if model is GPT else ("pathcond", "enorm"):
        run = (make_spec(model, method, lr=0.1), 1)
        batch = random_splits(run[0]).train.images.long() if model is GPT else None
        trainer, module = way(run), initialize(*run, batch=batch).module
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
        after = {"enorm": lambda m=module: enorm_by_unit(m)}.get(method, lambda: None)
        for epoch in (1, 2):
            trainer.epoch(epoch)
            train_epoch(module, [optimiser], run[0], trainer.splits, 1, epoch, after)
        assert_same(module_of(trainer, model), module, 1e-3, 1e-5)


@pytest.mark.parametrize("way", [together, alone])
@pytest.mark.parametrize("model", [MLP, AUTOENCODER], ids=["mlp", "autoencoder"])
def test_teleport_rescales_after_every_k_epochs(model, way):
    run = (make_spec(model, "teleport", {"teleport": 2}, lr=0.2), 1)
    trainer, x = way(run), models.example_input(model)
    options = {"batchnorm": "affine", "pooling": "plain", "clamp": 1.5}
    module = models.make(model, 1)
    rescale_by_steps(module, x, **options)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.2)
    moved = []
    for epoch in range(1, 5):
        trainer.epoch(epoch)
        before = trainer.evaluate()
        trainer.teleport(epoch)
        after = trainer.evaluate()
        for name in before:  # the exact way keeps the function
            torch.testing.assert_close(after[name], before[name], rtol=1e-4, atol=1e-6)
        train_epoch(module, [optimiser], run[0], trainer.splits, 1, epoch)
        if epoch % 2 == 0:
            moved.append(float(rescale_by_steps(module, x, **options).log_scales.abs().max()))
        assert_same(module_of(trainer, model), module, 2e-3, 1e-5)
    assert min(moved) > 1e-3


@pytest.mark.parametrize("way", [together, alone])
def test_teleport_leaves_the_runs_of_other_methods_and_those_that_diverged(way):
    diverging = (make_spec(AUTOENCODER, "teleport", {"teleport": 1}, lr=1e8), 0)
    trainer = way(diverging) if way is alone else way(diverging, (make_spec(AUTOENCODER), 0))
    for epoch in (1, 2, 3):
        trainer.epoch(epoch)
    before = [t.clone() for t in trainer._state_tensors()]
    trainer.teleport(3)
    assert not trainer.evaluate()["train_loss"][0].isfinite()
    for now, then in zip(trainer._state_tensors(), before, strict=True):
        assert torch.equal(now.nan_to_num(7.0), then.nan_to_num(7.0))
