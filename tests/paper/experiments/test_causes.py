"""`causes`: updates by hand, the NTK against that of `conditioning`, networks without change, gains of made-up runs."""

import io
import math

import pytest
import torch
from torch import nn

from paper import models, plotting
from paper.experiments import causes, conditioning
from paper.verdicts import NotMeasured
from tests.paper.experiments.tables import blocks, runs, small
from tests.paper.training.reference import GPT

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


@pytest.mark.parametrize("training", [True, False])
def test_ntk_is_that_of_conditioning(training):
    model = {"kind": "mlp", "inputs": 5, "hidden": [4, 3], "outputs": 3}
    module = models.make(model, 0).double().train(training)
    kept = {name: value.clone() for name, value in module.named_buffers()}
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(causes.tangent_kernel(module, x), conditioning.tangent_kernel(module, x, 1))
    assert all(torch.equal(kept[name], value) for name, value in module.named_buffers()), "the module is left as it is"


def test_ntk_and_updates_of_a_text():
    module = models.make(GPT, 0).double().eval()
    windows = torch.randint(GPT["vocabulary"], (3, GPT["context"]), generator=torch.Generator().manual_seed(0))
    gradients = [
        torch.cat([g.flatten() for g in torch.autograd.grad(module(window[None])[0, -1, 0], list(module.parameters()))])
        for window in windows
    ]
    expected = torch.stack(gradients) @ torch.stack(gradients).T
    torch.testing.assert_close(causes.tangent_kernel(module, windows), expected)
    updates = causes.relative_updates(module, windows, windows.roll(-1, 1), {**ONE_STEP, "batch": 3})
    assert all(0 < update < 1 for update in updates.values())


def test_the_gain_is_that_of_practice():
    table = small("causes")
    gains = table.groupby("network")["gain"].first()
    assert gains.to_dict() == {"mlp_tiny": pytest.approx(1.0), "resnet18_tiny": pytest.approx(-1.0)}
    assert dict(zip(table["network"], table["normalisation"], strict=True)) == {
        "mlp_tiny": "none", "resnet18_tiny": "BatchNorm",
    }  # fmt: skip
    found = causes.points(table).set_index("network").loc["mlp_tiny"]
    rows = table[table["network"] == "mlp_tiny"]
    assert found["update"] == pytest.approx(math.sqrt(rows["update"].prod()))
    assert found["fall"] == pytest.approx(math.sqrt((rows["condition_before"] / rows["condition_after"]).prod()))
    with pytest.raises(NotMeasured, match="networks with a gain: 2; 3 needed"):
        causes.correlation(causes.points(table), "fall")


def test_without_runs_of_practice_nothing_is_judged_and_the_figure_is_empty():
    table = causes.table(runs("causes"), blocks("tiny")["causes"])
    assert table["gain"].isna().all()
    assert len(table) == 4
    for claim in causes.EXPERIMENT.claims:
        with pytest.raises(NotMeasured, match="networks with a gain: 0"):
            claim.judge(table)
    with plotting.theme(8.0):
        figure = causes.plot(table)
        figure.savefig(io.BytesIO(), format="png")
    assert all(axes.get_title(loc="right") == "no rank correlation" for axes in figure.axes)
