"""Common training options: augmentation, schedules, clipping, statistics on a batch, losses of the steps."""

import copy

import pytest
import torch
from torch.nn import functional

from paper.starts import initialize
from paper.training.datasets import PADDING, flip_and_crop
from paper.training.modules import ModuleTrainer
from paper.training.optimisers import optimisers, rates, set_rate
from paper.training.runner import can_batch
from paper.training.trainer import Run
from tests.paper.training.reference import CONV, CPU, MLP, assert_same, batches, inputs, make_spec, random_splits

USUAL = {
    "optimiser": {"name": "sgd", "momentum": 0.9, "weight_decay": 5e-4},
    "schedule": {"name": "one_cycle", "warmup": 0.2},
    "augmentation": "flip_crop",
    "clip": 0.5,
    "train_metrics": "both",
}


def trainer(method="baseline", model=CONV, seed=0, **settings):
    spec = make_spec(model, method, **settings)
    return ModuleTrainer(Run(spec, seed), random_splits(spec), CPU)


def test_crops_and_flips():
    images = torch.arange(2 * 3 * 64).view(2, 3, 8, 8)
    middle = torch.tensor([[PADDING, PADDING, 0], [PADDING, PADDING, 1]])
    found = flip_and_crop(images, middle, 3)
    assert torch.equal(found[0], images[0])
    assert torch.equal(found[1], images[1].flip(-1))
    corner = flip_and_crop(images, torch.tensor([[0, 0, 0], [0, 0, 0]]), 3)
    assert torch.equal(corner[..., PADDING:, PADDING:], images[..., :-PADDING, :-PADDING])
    assert not corner[..., :PADDING, :].any()
    flat = flip_and_crop(images.flatten(1), middle, 3)
    assert torch.equal(flat, found.flatten(1))


def test_an_epoch_is_the_one_that_torch_makes():
    """All options at once, against a plain loop."""
    mine = trainer(**USUAL, lr=0.1)
    module = copy.deepcopy(mine.module)
    (theirs,) = optimisers(module, mine.spec["optimiser"], 0.1)
    table, step = rates(mine.spec, 3 * 4), 0
    for epoch in (1, 2):
        mine.epoch(epoch)
        total = 0.0
        module.train()
        for index in batches(0, epoch, 55, 16):
            images = flip_and_crop(mine.splits.train.images[index], mine.draws[index], 3)
            x = images.float() * mine.splits.scale + mine.splits.shift
            loss = functional.cross_entropy(module(x), mine.splits.train.labels[index])
            theirs.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            set_rate([theirs], table[step])
            theirs.step()
            total, step = total + loss.item() * len(index), step + 1
        assert_same(mine.module, module, 1e-5, 1e-6)
        assert float(mine.evaluate()["running_train_loss"]) == pytest.approx(total / 55, rel=1e-6)
    assert theirs.param_groups[0]["lr"] == float(table[7])


def test_methods_share_the_draws_of_a_seed_and_epochs_do_not():
    drawn = {}
    for method, seed, epoch in (("baseline", 0, 1), ("pathcond", 0, 1), ("baseline", 1, 1), ("baseline", 0, 2)):
        one = trainer(method, seed=seed, **USUAL)
        one.epoch(epoch)
        drawn[method, seed, epoch] = one.draws.clone()
    first = drawn.pop(("baseline", 0, 1))
    assert torch.equal(first, drawn.pop(("pathcond", 0, 1)))
    assert not any(torch.equal(first, other) for other in drawn.values())
    assert first.amax(0).tolist() == [2 * PADDING, 2 * PADDING, 1]


def test_metrics_of_the_train_split_are_those_asked_for():
    running = trainer(**{**USUAL, "train_metrics": "running"})
    before = running.evaluate()
    assert set(before) == {"test_loss", "test_accuracy", "running_train_loss"}
    assert before["running_train_loss"].isnan()


def test_statistics_are_measured_on_the_first_images():
    spec = make_spec(CONV, "full")
    splits = random_splits(spec)
    one = ModuleTrainer(Run(spec, 0), splits, CPU)
    expected = initialize(spec, 0, batch=inputs(splits.train, splits)).module
    assert_same(one.module, expected, 1e-5, 1e-6)
    assert 0 < one.max_log_scale[0] <= 1.5
    assert one.rescale_seconds[0] > 0
    with pytest.raises(ValueError, match="expected a batch"):
        initialize(spec, 0)


def test_which_runs_train_together():
    assert all(can_batch(make_spec(MLP, method)) for method in ("pathcond", "enorm", "teleport", "full"))
    assert not can_batch(make_spec(MLP, "layer_lrs"))
    assert not can_batch(make_spec({**MLP, "bias": True}))
    for change in ({"schedule": {"name": "cosine"}}, {"optimiser": {"name": "muon"}}, {"augmentation": "flip_crop"}):
        assert not can_batch(make_spec(MLP, **change))
