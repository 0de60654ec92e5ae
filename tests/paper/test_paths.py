"""Numbers of paths."""

import math

import pytest
import torch
from torch import nn

from paper.paths import count_paths
from pathcond import PathCondError
from tests.cases import mlp


def test_path_counts_of_the_paper():
    model, x = nn.Sequential(nn.Flatten(), mlp(3072, 500, 500, 500, 10)), torch.ones(1, 3, 32, 32)
    exact = (((3073 * 500 + 1) * 500 + 1) * 500 + 1) * 10
    assert count_paths(model, x) == pytest.approx(exact, rel=1e-12)
    assert count_paths(model, x, log10=True) == pytest.approx(math.log10(exact), rel=1e-12)
    deep = nn.Sequential(*[nn.Linear(500, 500) for _ in range(200)])
    assert count_paths(deep, torch.ones(1, 500)) == math.inf
    assert count_paths(deep, torch.ones(1, 500), log10=True) == pytest.approx(201 * math.log10(500), abs=1e-2)
    with pytest.raises(PathCondError, match="'paper', 'all'"):
        count_paths(model, x, pooling="exact")
