"""`causes`: updates by hand, the NTK against that of `conditioning`, networks without change, gains of made-up runs."""

import math

import pandas as pd
import pytest
import torch
from torch import nn

from paper import models, plotting
from paper.experiments import causes, conditioning
from paper.verdicts import NotMeasured
from tests.paper.experiments.practice_cases import practised, run, same
from tests.paper.experiments.tables import runs, settings

ONE_STEP = {"optimiser": {"name": "sgd"}, "lr": 0.1, "steps": 1, "batch": 1}


def test_relative_update_by_hand():
    layer = nn.Linear(2, 2).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
        layer.bias.zero_()
    x, label = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([0])
    # The logits are (3, 0), so the gradient of the weights is (p - 1, 1 - p) x, with p the softmax of the first.
    rest = 1 - 1 / (1 + math.exp(-3))
    found = causes.relative_updates(layer, x, label, ONE_STEP)
    assert found == {"weight": pytest.approx(0.1 * rest * math.sqrt(2) / 5)}, "vectors are no layers"
    assert layer.weight.tolist() == [[3.0, 0.0], [0.0, 4.0]], "the module is left as it is"
    clipped = causes.relative_updates(layer, x, label, {**ONE_STEP, "clip": 1e-3})
    # The bias has the same gradient as the weights of the first input, so that half of the squared norm is theirs.
    assert clipped == {"weight": pytest.approx(0.1 * 1e-3 / math.sqrt(2) / 5, rel=1e-3)}
    adam = {"optimiser": {"name": "adamw"}, "lr": 0.1, "steps": 2, "batch": 1}
    two = causes.relative_updates(layer, x.repeat(2, 1), label.repeat(2), adam)
    after = math.hypot(3.1, 4.0, 0.1)  # the first step moves two entries by the learning rate, whatever the gradient
    assert two["weight"] == pytest.approx(0.1 * math.sqrt(2) * (1 / 5 + 1 / after) / 2, rel=0.02)


def test_changes_leave_out_layers_that_start_at_zero():
    before = {"a": 0.1, "zero": math.inf, "still": 0.0}
    assert list(causes.log_changes(before, {"a": 0.4, "zero": math.inf, "still": 0.1})) == [pytest.approx(2.0)]


@pytest.mark.parametrize("training", [True, False])
def test_ntk_is_that_of_conditioning(training):
    model = {"kind": "mlp", "inputs": 5, "hidden": [4, 3], "outputs": 3}
    module = models.make(model, 0).double().train(training)
    kept = {name: value.clone() for name, value in module.named_buffers()}
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(causes.tangent_kernel(module, x), conditioning.tangent_kernel(module, x, 1))
    assert all(torch.equal(kept[name], value) for name, value in module.named_buffers()), "the module is left as it is"
