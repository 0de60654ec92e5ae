"""Runs together and alone: the order of the images, what is measured, and curves that do not depend on company."""

import pytest
import torch

import pathcond
from paper import models
from paper.seeds import generator
from paper.train.alone import Alone
from paper.train.backend import Run
from paper.train.start import start
from paper.train.together import Together, _span
from tests.paper.train.plain import (
    AUTOENCODER,
    BARE,
    CONV,
    CPU,
    METHODS,
    MLP,
    assert_same,
    balance_units,
    batches,
    cell,
    curves,
    evaluate,
    random_sets,
    train_epoch,
)

GELU = {**MLP, "activation": "gelu"}


def together(*runs, sets=None):
    runs = [Run(*run) for run in runs]
    return Together(runs, sets or random_sets(runs[0].cell), CPU)


def alone(run, sets=None):
    return Alone(Run(*run), sets or random_sets(run[0]), CPU)


def watch(backend, epoch):
    """Numbers of the images of each step of an epoch, (runs, batch) each."""
    seen, step = [], backend._step

    def note(index):
        seen.append(index.clone())
        step(index)

    backend._step = note
    backend.epoch(epoch)
    backend._step = step
    return seen


# ---- the order of the images


@pytest.mark.parametrize("make", [together, lambda *runs: alone(runs[0])], ids=["together", "alone"])
def test_an_epoch_visits_every_image_once_in_the_order_of_its_seed(make):
    backend = make((cell(MLP, "pathcond"), 1))
    for epoch in (1, 2, 7):
        seen = watch(backend, epoch)
        assert [index.shape[1] for index in seen] == [16, 16, 16, 7]
        visited = torch.cat(seen, 1)[0]
        assert sorted(visited.tolist()) == list(range(55))
        assert torch.equal(visited, torch.cat(batches(1, epoch, 55, 16)))


def test_methods_share_the_order_of_a_seed_and_seeds_do_not():
    runs = [(cell(MLP, method), seed) for method in METHODS for seed in (0, 4, 1)]
    backend = together(*runs)
    orders = [torch.cat(watch(backend, epoch), 1) for epoch in (1, 2)]
    assert not torch.equal(*orders)
    for order, epoch in zip(orders, (1, 2), strict=True):
        by_seed = {seed: torch.cat(batches(seed, epoch, 55, 16)) for seed in (0, 4, 1)}
        assert len({tuple(one.tolist()) for one in by_seed.values()}) == 3
        for row, (_, seed) in zip(order, runs, strict=True):
            assert torch.equal(row, by_seed[seed])


def test_the_order_does_not_depend_on_company_or_history():
    late = watch(together((cell(MLP), 4)), 5)
    backend = together(*((cell(MLP), seed) for seed in (9, 4, 0)))
    for epoch in (1, 2):
        backend.epoch(epoch)
    torch.manual_seed(3)
    company = watch(backend, 5)
    assert torch.equal(torch.cat(late, 1)[0], torch.cat(company, 1)[1])
    assert torch.equal(torch.cat(late, 1)[0], torch.randperm(55, generator=generator(4, "order", 5)))


# ---- what is measured


@pytest.mark.parametrize("chunk", [None, 1, 8])
@pytest.mark.parametrize("validation", [0, 13])
@pytest.mark.parametrize("model", [MLP, BARE, GELU, AUTOENCODER], ids=["mlp", "bare", "gelu", "autoencoder"])
def test_metrics_of_runs_together(model, validation, chunk):
    runs = [(cell(model, method, validation=validation, lr=0.3), seed) for method in METHODS[:2] for seed in (0, 1)]
    backend = together(*runs)
    backend.chunk = chunk or backend.chunk
    check_metrics(backend, model, validation)


@pytest.mark.parametrize("chunk", [None, 8])
@pytest.mark.parametrize("model", [MLP, AUTOENCODER, CONV], ids=["mlp", "autoencoder", "conv"])
def test_metrics_of_a_run_alone(model, chunk):
    backend = alone((cell(model, "pathcond", validation=13, lr=0.3), 0))
    backend.chunk = chunk or backend.chunk
    check_metrics(backend, model, 13)


def module_of(backend, model, run=0):
    """A run as a module."""
    module = models.make(model, 9)
    if isinstance(backend, Together):
        backend.stack.write_to(run, module)
    else:
        module.load_state_dict(backend.module.state_dict())
    return module


def check_metrics(backend, model, validation):
    for epoch in (0, 1):
        if epoch:
            backend.epoch(epoch)
        found = backend.evaluate()
        for run in range(len(backend.runs)):
            expected = evaluate(module_of(backend, model, run), backend.sets, backend.task)
            assert list(found) == list(expected)
            assert ("validation_loss" in found) == bool(validation)
            for name, value in expected.items():
                assert found[name].dtype == torch.float64
                assert float(found[name][run]) == pytest.approx(value, rel=1e-5, abs=1e-12), (name, run)


def test_measuring_changes_nothing():
    for backend in (together((cell(MLP), 0)), alone((cell(CONV), 0))):
        backend.epoch(1)
        before = torch.cat([t.flatten().double() for t in backend._held()])
        first, again = backend.evaluate(), backend.evaluate()
        assert all(torch.equal(first[name], again[name]) for name in first)
        assert torch.equal(before, torch.cat([t.flatten().double() for t in backend._held()]))


# ---- the same curves


@pytest.mark.parametrize("model", [MLP, GELU, AUTOENCODER], ids=["mlp", "gelu", "autoencoder"])
def test_company_and_way_do_not_change_a_run(model):
    cells = [cell(model, method, lr=lr) for method, lr in (("baseline", 0.1), ("pathcond", 0.2), ("enorm", 0.3))]
    runs = [(one, seed) for one in cells for seed in (0, 1)]
    beside = curves(together(*runs), 2)
    for number, run in enumerate(runs):
        for way in (together(run), alone(run)):
            found = curves(way, 2)
            assert list(found) == list(beside)
            for name in (name for name in found if name.endswith("loss")):
                torch.testing.assert_close(found[name][:, 0], beside[name][:, number], rtol=1e-4, atol=1e-6)
            assert way.max_log_scale == [start(*run).max_log_scale]
    train = beside["train_loss"]
    assert bool((train[-1] < train[0]).all())


@pytest.mark.parametrize(
    ("model", "way"),
    [(MLP, together), (AUTOENCODER, together), (MLP, alone), (AUTOENCODER, alone), (CONV, alone)],
)
def test_epochs_are_those_of_a_plain_loop(model, way):
    for method in ("pathcond", "enorm"):
        run = (cell(model, method, lr=0.1), 1)
        backend, module = way(run), start(*run).module
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
        after = {"enorm": lambda m=module: balance_units(m)}.get(method, lambda: None)
        if model is CONV and method == "enorm":
            x = models.example_input(model)
            after = pathcond.ENorm(module, x, optimiser, last_layer=False, batchnorm="exclude").step
        for epoch in (1, 2):
            backend.epoch(epoch)
            train_epoch(module, [optimiser], run[0], backend.sets, 1, epoch, after)
        assert_same(module_of(backend, model), module, 1e-3, 1e-5)


@pytest.mark.parametrize("way", [together, alone])
@pytest.mark.parametrize("model", [MLP, AUTOENCODER], ids=["mlp", "autoencoder"])
def test_teleport_rescales_after_every_k_epochs(model, way):
    run = (cell(model, "teleport", {"teleport": 2}, lr=0.2), 1)
    backend, x = way(run), models.example_input(model)
    options = {"batchnorm": "affine", "pooling": "plain", "sweeps": 10, "check": False}
    module = models.make(model, 1)
    pathcond.rescale_(module, x, **options)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.2)
    moved = []
    for epoch in range(1, 5):
        backend.epoch(epoch)
        before = backend.evaluate()
        backend.teleport(epoch)
        after = backend.evaluate()
        for name in before:  # the exact way keeps the function
            torch.testing.assert_close(after[name], before[name], rtol=1e-4, atol=1e-6)
        train_epoch(module, [optimiser], run[0], backend.sets, 1, epoch)
        if epoch % 2 == 0:
            moved.append(float(pathcond.rescale_(module, x, **options).solution.u.abs().max()))
        assert_same(module_of(backend, model), module, 2e-3, 1e-5)
    assert min(moved) > 1e-3


@pytest.mark.parametrize("way", [together, alone])
def test_teleport_leaves_the_runs_of_other_methods_and_those_that_diverged(way):
    diverging = (cell(AUTOENCODER, "teleport", {"teleport": 1}, lr=1e8), 0)
    backend = way(diverging) if way is alone else way(diverging, (cell(AUTOENCODER), 0))
    for epoch in (1, 2, 3):
        backend.epoch(epoch)
    before = [t.clone() for t in backend._held()]
    backend.teleport(3)
    assert not backend.evaluate()["train_loss"][0].isfinite()
    for now, then in zip(backend._held(), before, strict=True):
        assert torch.equal(now.nan_to_num(7.0), then.nan_to_num(7.0))


def test_balanced_runs_stand_side_by_side():
    assert _span([False, False]) is None
    assert _span([False, True, True]) == slice(1, 3)
    assert _span([True]) == slice(0, 1)
    with pytest.raises(ValueError, match="side by side"):
        _span([True, False, True])


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ({**MLP, "inputs": 3072, "hidden": [500, 500, 500]}, 2_044_010),
        ({"kind": "autoencoder", "inputs": 784, "compression": 4}, 326_977),
    ],
)
def test_parameters_of_the_papers_networks(model, parameters):
    one = cell(model, images=2, test_images=1)
    sets = random_sets({**one, "model": {**model, "inputs": 3}})
    assert Together([Run(one, 0), Run(one, 1)], sets, CPU).parameters == parameters
    assert Alone(Run(one, 0), sets, CPU).parameters == parameters
