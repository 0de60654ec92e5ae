"""Models, inputs and options that the library refuses: the error says why, and the model does not change."""

import pytest
import torch
from torch import nn

import pathcond
from paper import models
from pathcond import ApplyError, PathCondError, RecordError, SolveError
from tests.cases import Lambda
from tests.steps import rescale_by_steps

X = torch.ones(1, 6)


def mlp():
    return models.mlp(6, (5, 4), 3, batchnorm=False)


def with_entry(value, module=1, name="weight"):
    model = mlp()
    getattr(model[module], name).data.view(-1)[0] = value
    return model


def with_weight(convert):
    model = mlp()
    model[1].weight = nn.Parameter(convert(model[1].weight.data), requires_grad=False)
    return model


def bad_statistics():
    model = models.mlp(6, (5,), 3)
    model[2].running_var[0] = float("nan")
    return model


def under_inference():
    with torch.inference_mode():
        return mlp()


def by(forward):
    """A module whose forward pass is a function of itself and the input."""
    return lambda: Lambda(forward, m=mlp())


def boom(s, x):
    raise RuntimeError("boom")


# A model, an input, the class of the error and what it says.
MODELS = {
    "a function": (lambda: torch.relu, X, PathCondError, "expected a torch.nn.Module, got builtin_function"),
    "a class": (lambda: nn.Linear, X, PathCondError, "expected a model, got the class Linear"),
    "an empty model": (nn.Sequential, X, PathCondError, "expected a model with parameters, got Sequential without"),
    "NaN weights": (lambda: with_entry(float("nan")), X, PathCondError, r"1 NaN or infinite entries of 30 in '1\.w"),
    "an infinite bias": (lambda: with_entry(-float("inf"), 3, "bias"), X, PathCondError, r"of 4 in '3\.bias'"),
    "NaN statistics": (bad_statistics, X, PathCondError, r"entries of 5 in '2\.running_var'"),
    "complex weights": (lambda: nn.Linear(6, 3, dtype=torch.complex64), X, PathCondError, "real parameters, got 'wei"),
    "weights in eight bits": (lambda: mlp().to(torch.float8_e4m3fn), X, PathCondError, r"Use model\.float\(\)"),
    "sparse weights": (lambda: with_weight(lambda w: w.to_sparse()), X, PathCondError, r"dense parameters, got '1\.w"),
    "weights on meta": (lambda: mlp().to("meta"), X, PathCondError, r"'1\.weight' is on the meta device\. Load its"),
    "weights without a shape": (lambda: nn.Sequential(nn.LazyLinear(3)), X, PathCondError, "no shape yet.*Run the mod"),
    "a layer without units": (lambda: Lambda(lambda s, x: x @ s.w, w=(6, 0)), X, PathCondError, "entries"),
    "integer weights": (lambda: with_weight(lambda w: w.long()), X, RecordError, "expected a model that runs on the"),
    "weights made for inference": (under_inference, X, ApplyError, r"made in torch\.inference_mode"),
    "a model that fails": (by(boom), X, RecordError, "in module 'Lambda', at test_models.py.*boom"),
    "input of another width": (mlp, torch.ones(1, 7), RecordError, r"in module '1': .*\(1x7 .*Pass an input that"),
    "no input": (mlp, None, RecordError, "The example input holds no tensor: pass one"),
    "input under another name": (mlp, {"pixels": X}, RecordError, "unexpected keyword argument 'pixels'"),
    "an empty batch": (mlp, torch.ones(0, 6), SolveError, "expected a path from an input or a bias to an output"),
    "complex input": (mlp, X + 0j, RecordError, "The model has torch.float32 on cpu; its input is torch.complex64"),
    "double input": (mlp, X.double(), RecordError, "its input is torch.float64 on cpu.*Nothing was changed"),
    "a batch (x, y)": (mlp, (X, torch.ones(1)), RecordError, r"of a batch \(x, y\), pass x"),
    "an iterator": (mlp, iter([X]), RecordError, "holds no tensor"),
    "a tensor as model": (lambda: X, X, PathCondError, "The model is the first argument"),
    "a loader": (mlp, torch.utils.data.DataLoader([X]), PathCondError, r"next\(iter\(loader\)\)\[0\]"),
    "a data set": (mlp, torch.utils.data.TensorDataset(X), PathCondError, r"got a TensorDataset.*torch\.stack"),
    "a graph": (mlp, pathcond.extract_graph(mlp(), X), PathCondError, "got a ScaleGraph.*A graph is given as graph="),
    "an argument left out": (by(lambda s, x, y=None: y.shape), X, RecordError, "The model was run with y=None"),
    "sparse input": (mlp, X.to_sparse(), PathCondError, r"expected a dense example input.*to_dense\(\)"),
    "input on another device": (mlp, X.to("meta"), RecordError, "on cpu; its input is torch.float32 on meta"),
}  # fmt: skip


def state_of(model):
    """Bytes of all weights and buffers, modes and `requires_grad`; None for an object that is no module."""
    if not isinstance(model, nn.Module):
        return None
    kept = {n: t for n, t in model.state_dict().items() if not isinstance(t, nn.UninitializedParameter)}
    dense = {n: t.detach().to_dense().contiguous().flatten() for n, t in kept.items() if not t.is_meta and t.numel()}
    modes = [module.training for module in model.modules()]
    return (
        {n: t.view(torch.uint8).tolist() for n, t in dense.items()},
        modes,
        [p.requires_grad for p in model.parameters()],
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_model_or_input_that_cannot_be_taken(name):
    make, x, kind, says = MODELS[name]
    model = make()
    before = state_of(model)
    with pytest.raises(PathCondError, match=f"(?s){says}") as caught:
        pathcond.rescale_(model, x)
    assert caught.type is kind
    assert state_of(model) == before


def test_norms_want_finite_weights_too():
    with pytest.raises(PathCondError, match=r"1 NaN or infinite entries of 30 in '1\.weight'"):
        pathcond.rescale_(with_entry(float("nan")), X, objective="norms", check=False)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_wrapped_models_are_to_be_unwrapped():
    for wrapped, says in ((nn.DataParallel(mlp()), "model.module"), (torch.jit.script(mlp()), "then script")):
        with pytest.raises(PathCondError, match=says):
            pathcond.rescale_(wrapped, X)


# Options of the steps, and what the error says.
STEPS = {
    "unknown method": ({"method": "newton"}, "expected method to be one of 'sweeps', 'optimum', got 'newton'"),
    "unknown batchnorm": ({"batchnorm": "fold"}, "expected batchnorm to be one of 'affine', 'exclude', got 'fold'"),
    "unknown statistics": ({"statistics": "batch"}, "expected statistics to be .*, got 'batch'"),
    "a flag in words": ({"smooth": "no"}, "expected smooth to be True or False, got 'no'"),
    "unknown pooling": ({"pooling": "max"}, "expected pooling to be one of 'exact', 'plain', 'all', got 'max'"),
    "negative sweeps": ({"sweeps": -1}, "expected sweeps to be an integer >= 0, got -1"),
}
# Options of `rescale_`, and what the error says.
OPTIONS = {
    "unknown flag": ({"trainable_only": 1}, "expected trainable_only to be True or False, got 1"),
    "a clamp of zero": ({"clamp": 0}, "expected clamp to be positive or None, got 0"),
    "too much damping": ({"damping": 2}, "expected damping to be a number from 0 to 1, got 2"),
    "unknown objective": ({"objective": "l2"}, "expected objective to be .*paths.*norms.*, got 'l2'"),
    "a clamp in words": ({"clamp": "tight"}, "expected clamp to be positive or None, got 'tight'"),
    "no optimizer": ({"optimizer": 0.1}, r"expected optimizer to be a torch\.optim\.Optimizer or None, got float"),
    "another model's optimizer": (
        {"optimizer": torch.optim.SGD(mlp().parameters())}, "expected the optimizer of this model",
    ),
    "a graph of another kind": ({"graph": 3}, "expected graph to be a ScaleGraph or None, got int"),
    "a graph of another model": (
        {"graph": pathcond.extract_graph(models.mlp(6, (7,), 3, batchnorm=False), X)}, r"Extract a new graph",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*OPTIONS, *STEPS])
def test_an_option_that_cannot_be_taken(name):
    options, says = (OPTIONS | STEPS)[name]
    model = mlp()
    before = state_of(model)
    with pytest.raises(PathCondError, match=says):
        (rescale_by_steps if name in STEPS else pathcond.rescale_)(model, X, **options)
    assert state_of(model) == before
