"""Start weights: those of the seed, and their rescaling by the library."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import pathcond
from paper import models, runs, starts
from paper.cli import PaperError
from paper.methods import BOUND, DAMPING
from paper.starts import initialize, rescale
from pathcond.rescale import DEFAULT_CLAMP, DEFAULT_DAMPING
from tests.paper.training.reference import AUTOENCODER, BARE, CONV, MLP, assert_same, make_spec, values
from tests.steps import rescale_by_steps

GELU = {**MLP, "activation": "gelu"}
NETWORKS = {"mlp": MLP, "bare": BARE, "gelu": GELU, "autoencoder": AUTOENCODER, "conv": CONV}
OPTIONS = {
    "pathcond": {"batchnorm": "exclude"},
    "exact": {"batchnorm": "affine"},
    "optimum": {"batchnorm": "exclude", "method": "optimum"},
    "teleport": {"batchnorm": "affine"},
}


def rescaled(model, seed, **options):
    """A network that the library rescaled, and its report."""
    module = models.make(model, seed)
    solution = rescale_by_steps(module, models.example_input(model), pooling="plain", smooth=True, **options)
    return module, solution


@pytest.mark.parametrize("method", OPTIONS)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_start_is_what_the_library_makes(name, method):
    began = initialize(make_spec(NETWORKS[name], method), 3)
    expected, solution = rescaled(NETWORKS[name], 3, **OPTIONS[method])
    assert_same(began.module, expected, 1e-5, 1e-7)
    assert began.max_log_scale == pytest.approx(float(solution.log_scales.abs().max()), rel=1e-6)
    assert began.max_log_scale > 0.01
    with pytest.raises(AssertionError):
        assert_same(began.module, models.make(NETWORKS[name], 3), 1e-3, 1e-3)


def test_the_default_method_is_the_default_of_the_library():
    """`paper.methods` does not import torch, so it repeats the library's bound and damping."""
    assert (BOUND, DAMPING) == (DEFAULT_CLAMP, DEFAULT_DAMPING)
    x = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    began = initialize(make_spec(CONV, "half"), 3, batch=x)
    expected = models.make(CONV, 3)
    report = pathcond.rescale_(expected, x)
    assert_same(began.module, expected, 1e-6, 1e-8)
    assert began.max_log_scale == pytest.approx(report.max_log_scale, rel=1e-6)


def test_seeding_as_by_the_authors():
    ours, theirs = make_spec(CONV, "baseline"), make_spec(CONV, "baseline", seeding="torch")
    torch.manual_seed(3)
    expected = models.build(CONV)
    torch.manual_seed(5)
    began = initialize(theirs, 3)
    assert torch.initial_seed() == 5, "the caller's random numbers go on"
    assert_same(began.module, expected, 0.0, 0.0)
    with pytest.raises(AssertionError):
        assert_same(initialize(ours, 3).module, expected, 1e-3, 1e-3)
    assert runs.start_path(Path(), theirs) != runs.start_path(Path(), ours)


def test_unequal_starts_keep_the_function_and_least_norms_undo_them():
    unequal = {"unequal": 2.0}
    plain, uneven = (initialize(make_spec(BARE, "baseline", **more), 3).module for more in ({}, unequal))
    x = torch.randn(16, *models.input_shape(BARE), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(uneven(x), plain(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(AssertionError):
        assert_same(uneven, plain, 1e-3, 1e-3)
    even, balanced = (initialize(make_spec(BARE, "norms", **more), 3) for more in ({}, unequal))
    assert_same(balanced.module, even.module, 0.05, 0.01)
    assert balanced.max_log_scale > even.max_log_scale
    plain, uneven = (runs.start_path(Path(), make_spec(BARE, "baseline", **more)) for more in ({}, unequal))
    assert plain != uneven


@pytest.mark.parametrize("model", [MLP, BARE])
def test_rows_scale_what_enters_a_unit_and_columns_what_leaves_it(model):
    base, solution = models.make(model, 1), rescaled(model, 1, batchnorm="exclude")[1]
    scales = [log.exp().float() for log in solution.log_scales.split(model["hidden"])]
    rows, columns = (initialize(make_spec(model, method), 1).module for method in ("rows", "columns"))
    for module in (rows, columns):
        for found, norm in zip(module, base, strict=True):
            if isinstance(norm, nn.BatchNorm1d):
                assert_same(found, norm, 0, 0)
    layers = [[m for m in module if isinstance(m, nn.Linear)] for module in (base, rows, columns)]
    for k, (plain, row, column) in enumerate(zip(*layers, strict=True)):
        hidden = k < len(scales)
        expected = plain.weight * scales[k][:, None] if hidden else plain.weight
        torch.testing.assert_close(row.weight, expected, rtol=1e-5, atol=1e-8)
        expected = plain.weight / scales[k - 1] if k else plain.weight
        torch.testing.assert_close(column.weight, expected, rtol=1e-5, atol=1e-8)
        if plain.bias is not None:
            expected = plain.bias * scales[k] if hidden else plain.bias
            torch.testing.assert_close(row.bias, expected, rtol=1e-5, atol=1e-8)
            assert torch.equal(column.bias, plain.bias)


def test_gelu_bounds_the_scales():
    model = {"kind": "mlp", "inputs": 12, "hidden": [6, 6, 6], "outputs": 10, "activation": "gelu"}
    base = make_spec(model, clamp=0.05)
    bounded, free = (make_spec(model, "pathcond", clamp=clamp) for clamp in (0.05, 100.0))
    assert initialize(base, 0).max_log_scale == 0
    assert initialize(free, 0).max_log_scale > 0.1
    assert initialize(bounded, 0).max_log_scale == pytest.approx(0.025, rel=1e-9)
    expected, _ = rescaled(bounded["model"], 0, batchnorm="exclude", clamp=0.025)
    assert_same(initialize(bounded, 0).module, expected, 1e-6, 1e-8)


@pytest.mark.parametrize("where", ["1.weight", "2.running_var"])
def test_a_network_that_diverged_is_left_as_it_is(where):
    module = models.make(MLP, 0)
    module.state_dict()[where].view(-1)[0] = float("nan")
    before = copy.deepcopy(module)
    assert rescale(module, torch.ones(1, 12), make_spec(MLP, "pathcond")["rescaling"]) == 0
    for name, tensor in values(before).items():
        assert torch.equal(values(module)[name].nan_to_num(7.0), tensor.nan_to_num(7.0))


@pytest.mark.parametrize(("model", "method"), [(MLP, "baseline"), (MLP, "rows"), (MLP, "optimum"), (CONV, "exact")])
def test_saved_start_weights_and_rescalings_give_the_same_network(model, method, tmp_path):
    spec = make_spec(model, method)
    assert starts.save_start(spec, tmp_path).exists()
    if spec["rescaling"].get("rescale"):
        tensors, told = starts._read(starts.save_scales(spec, tmp_path))
        assert tensors["objective"][-1] <= tensors["objective"][0]
        assert told["result"]
    computed, read = initialize(spec, 0), initialize(spec, 0, tmp_path)
    assert computed.max_log_scale == read.max_log_scale
    assert_same(computed.module, read.module, 0, 0)


def test_a_damaged_start_is_refused_and_saved_again(tmp_path):
    spec = make_spec(MLP, "pathcond")
    path = starts.save_start(spec, tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    with pytest.raises(PaperError, match="checksum in its metadata"):
        initialize(spec, 0, tmp_path)
    assert starts.save_start(spec, tmp_path).read_bytes() == whole
