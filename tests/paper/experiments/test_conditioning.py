"""Conditioning: the path kernel against listed paths, the NTK against torch.func, gains against made-up curves."""

import math
from itertools import product

import pandas as pd
import pytest
import torch
from torch import nn

import pathcond
from paper import models
from paper.experiments import conditioning

SMALL = {"kind": "mlp", "inputs": 3, "hidden": [4, 2], "outputs": 2, "batchnorm": False}


def listed_paths(module):
    """The Jacobian of the path-lifting: every path by its own loop, differentiated by autograd."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
    values = []
    for first in range(len(layers) + 1):  # 0: from an input; k: from a bias of layer k
        for units in product(*map(range, widths[first:])):
            value = layers[first - 1].bias[units[0]] if first else torch.ones((), dtype=torch.float64)
            for layer, before, after in zip(layers[first:], units, units[1:], strict=False):
                value = value * layer.weight[after, before]
            values.append(value)
    rows = [torch.autograd.grad(value, list(module.parameters()), allow_unused=True) for value in values]
    every = [
        [torch.zeros_like(p) if g is None else g for p, g in zip(module.parameters(), row, strict=True)] for row in rows
    ]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in every])


def test_path_kernel_against_listed_paths():
    module = models.make(SMALL, 0).double()
    fast, slow = conditioning.path_jacobian(module), listed_paths(module)
    assert fast.shape == slow.shape
    gram = fast.T @ fast
    torch.testing.assert_close(gram, slow.T @ slow, rtol=1e-12, atol=1e-14)
    x = models.example_input(SMALL).double()
    graph = pathcond.extract_graph(module, x)
    g = pathcond.compute_diag_g(module, x, graph=graph)
    torch.testing.assert_close(gram.diagonal(), torch.cat([g[name].flatten() for name, _ in module.named_parameters()]))
    with pytest.raises(ValueError, match="expected parameters of linear layers alone"):
        conditioning.path_jacobian(models.make({**SMALL, "batchnorm": True}, 0))


@pytest.mark.parametrize(("model", "training"), [
    ({"kind": "mlp", "inputs": 5, "hidden": [4, 3], "outputs": 3}, False),
    ({"kind": "mlp", "inputs": 5, "hidden": [4, 3], "outputs": 3}, True),
    ({"kind": "autoencoder", "inputs": 9, "compression": 2}, False),
])  # fmt: skip
def test_ntk_against_torch_func(model, training):
    module = models.make(model, 0).double().train(training)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim == 1:  # as after some training: scales and shifts of their own
                parameter.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(len(name)))
    x = torch.randn(7, model["inputs"], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    kept = {name: value.clone() for name, value in buffers.items()}

    def outputs(values):
        return torch.func.functional_call(module, {**values, **{n: b.clone() for n, b in buffers.items()}}, (x,))

    jacobian = torch.func.jacrev(outputs)({name: value.detach() for name, value in parameters.items()})
    rows = torch.cat([part.flatten(2) for part in jacobian.values()], 2)  # (images, outputs, parameters)
    for count, chosen in ((1, [0]), (2, [0, rows.shape[1] - 1]), (99, range(rows.shape[1]))):
        expected = sum(rows[:, c] @ rows[:, c].T for c in chosen)
        torch.testing.assert_close(conditioning.tangent_kernel(module, x, count), expected)
    assert all(torch.equal(kept[name], value) for name, value in module.named_buffers()), "the module is left as it is"


def curve(epochs, accuracies=None, losses=None):
    rows = pd.DataFrame({"seed": 0, "epoch": range(epochs + 1), "train_loss": losses or [1.0] * (epochs + 1)})
    return rows if accuracies is None else rows.assign(train_accuracy=accuracies)


@pytest.mark.parametrize(("slow", "fast", "expected"), [
    (curve(4, [0, 0.2, 0.4, 0.6, 0.9]), curve(4, [0, 0.5, 0.9, 0.9, 0.9]), (2.0, False)),
    (curve(4, [0, 0.2, 0.4, 0.6, 0.7]), curve(4, [0, 0.9, 0.9, 0.9, 0.9]), (4.0, True)),  # the baseline misses it
    (curve(4, [0, 0.9, 0.9, 0.9, 0.9]), curve(4, [0, 0.2, 0.4, 0.6, 0.7]), (math.nan, False)),
    (curve(4, losses=[9, 8, 7, 6, 5]), curve(4, losses=[9, 5, 4, 3, 2]), (4.0, False)),
    (curve(4, losses=[9, 5, 4, 3, 2]), curve(4, losses=[9, 8, 7, 6, 5]), (0.25, False)),
    (curve(2, [0.95, 1, 1]), curve(2, [0.95, 1, 1]), (1.0, False)),  # the start itself
])  # fmt: skip
def test_speedups(slow, fast, expected):
    trained = [(rows, {"spec": {"network": "n", "method": m}}) for m, rows in (("baseline", slow), ("pathcond", fast))]
    measured = pd.DataFrame({"network": ["n"], "seed": [0], "hidden_layers": [2], "compression": [None]})
    found = conditioning.table([(measured, {}), *trained], {"mlp": {"target": 0.9}}).iloc[0]
    assert (found["speedup"], found["bound"]) == (pytest.approx(expected[0], nan_ok=True), expected[1])
