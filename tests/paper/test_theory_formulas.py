"""Expected diag(G) against that of the mean network, its limits, and the toy example; `test_theory` has Monte Carlo."""

import doctest
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import pathcond
from paper import theory
from paper.theory import expected_general, expected_standard, large_variance_limit, small_variance_limit

WIDTHS = (3, 5, 2, 4, 2)


networks = st.lists(st.integers(1, 5), min_size=2, max_size=6).flatmap(
    lambda n: st.tuples(st.just(n), st.lists(st.floats(1e-3, 10), min_size=len(n) - 1, max_size=len(n) - 1))
)


def assert_is_mean_diagonal(found, widths, variances, biases):
    """diag(G) is multilinear in independent squared parameters, so its expectation is that of their means."""
    last = len(variances) - 1
    layers = [nn.Linear(n, m, bias=biases and k < last) for k, (n, m) in enumerate(itertools.pairwise(widths))]
    for layer, variance in zip(layers, variances, strict=True):
        for parameter in layer.double().parameters():
            nn.init.constant_(parameter, math.sqrt(variance))
    g = pathcond.compute_diag_g(nn.Sequential(*layers), torch.ones(1, widths[0]).double())
    for kind, values in (("weight", found.edge), ("bias", found.bias)):
        entries = [t for name, t in g.items() if name.endswith(kind)]
        for entry, value in zip(entries, values, strict=True):
            torch.testing.assert_close(entry, torch.full_like(entry, value), rtol=1e-12, atol=0)


@given(network=networks, biases=st.booleans())
@settings(max_examples=50, deadline=None)
def test_general_closed_form_is_the_diagonal_of_the_mean_network(network, biases):
    assert_is_mean_diagonal(expected_general(*network, biases=biases), *network, biases)


@pytest.mark.parametrize("widths", [(3, 2), WIDTHS, (4,) * 6])
@pytest.mark.parametrize(("limit", "a"), [(large_variance_limit, 1e7), (small_variance_limit, 1e-7)])
def test_limits_are_reached(widths, limit, a):
    exact = expected_standard(widths, a)
    assert limit(widths, a).edge == pytest.approx(exact.edge, rel=1e-5, abs=0)
    assert limit(widths, a).bias == pytest.approx(exact.bias, rel=1e-5, abs=0)
    # The next order in a is really left out: these are limits, not the formula again.
    if len(widths) > 3:
        assert limit(widths, 0.5).edge != pytest.approx(expected_standard(widths, 0.5).edge, rel=1e-2)


def test_documented_examples():
    failed, tried = doctest.testmod(theory)
    assert failed == 0
    assert tried >= 6
