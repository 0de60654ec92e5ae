"""`quantisation`: the quantiser by hand, folded BatchNorm, a whole run, the points lost and saved, settings."""

import pytest
import torch
from torch import nn

from paper.cli import PaperError
from paper.experiments import quantisation
from paper.experiments.quantisation import FULL, NONE
from tests.paper.experiments.quantisation_cases import quantised
from tests.paper.experiments.tables import runs


def test_weights_are_rounded_by_hand():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.7, -0.24, 0.16], [0.04, -0.36, 0.0]]))
        model[2].weight.zero_()
    quantisation.quantise_(model, 4)  # integers from -7 to 7, so steps of 0.1
    torch.testing.assert_close(model[0].weight.detach(), torch.tensor([[0.7, -0.2, 0.2], [0.0, -0.4, 0.0]]))
    assert not model[2].weight.any()
    for name in ("0.bias", "1.weight", "1.bias", "2.bias"):
        assert torch.equal(model.get_parameter(name).detach(), before[name]), "vectors stay"


def test_batchnorm_is_folded_into_convolutions():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    x = torch.randn(8, 3, 4, 4)
    model(x)  # moves the running statistics
    folded = quantisation.fold_batchnorm(model.eval())
    assert not any(isinstance(part, nn.BatchNorm2d) for part in folded.modules())
    torch.testing.assert_close(folded(x), model(x))
    assert any(isinstance(part, nn.BatchNorm2d) for part in model.modules()), "a copy"
    conv, norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
    for parts in ((nn.ReLU(), norm), (norm,), (conv, norm, conv, nn.BatchNorm2d(3))):
        with pytest.raises(PaperError, match="expected a convolution of its own in front of this BatchNorm"):
            quantisation.fold_batchnorm(nn.Sequential(*parts).eval())


@pytest.mark.xdist_group("quantisation")
def test_a_rescaling_alone_loses_nothing():
    for rows, _ in runs("quantisation"):
        full = rows[rows["bits"] == FULL]
        assert full["accuracy"].nunique() == 1
        assert full["loss"].max() - full["loss"].min() < 1e-4
        assert not rows.duplicated(["network", "objective", "bits"]).any()
        rescaled = rows[rows["objective"] != NONE]
        assert (rescaled["moved"] > 0.9 * rescaled["units"]).all()
        assert (rescaled["max_log_scale"] <= 5.0).all()
        losses = rows.pivot(index="objective", columns="bits", values="loss")
        assert (losses[8] != losses[FULL]).all()
        assert len(set(losses[4])) == 4, "each objective gives other weights"


def test_points_lost_and_saved():
    table = quantised({("ranges", 4): {"mlp": 4.0, "vgg": 6.0}}, spread=0.2)
    mean = table[table["panel"] == "mean"].set_index(["network", "objective", "bits"])
    assert mean.loc[("mlp", NONE, 4), "lost"] == pytest.approx(10.0)
    assert mean.loc[("mlp", "ranges", 4), ["lost", "saved"]].tolist() == pytest.approx([4.0, 6.0])
    assert mean.loc[("vgg", "ranges", 4), "saved"] == pytest.approx(4.0)
    assert mean.loc[("vgg", NONE, FULL), ["lost", "saved", "accuracy"]].tolist() == pytest.approx([0.0, 0.0, 71.0])
    half = 4.302653 * 0.4 / 3**0.5  # both sides vary with the seed, in opposite directions
    assert mean.loc[("vgg", "ranges", 4), "saved_high"] == pytest.approx(4.0 + half, rel=1e-5)
