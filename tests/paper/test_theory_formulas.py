"""Expected diag(G) against autograd and Monte Carlo, the printed formulas against both, and the toy example."""

import doctest
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paper import theory
from paper.theory import (
    ExpectedDiagonal,
    expected_general,
    expected_standard,
    large_variance_limit,
    small_variance_limit,
    toy_rescaled,
)

WIDTHS = (3, 5, 2, 4, 2)


def diagonal(weights: list[Tensor], biases: list[Tensor | None]) -> tuple[list[Tensor], list[Tensor]]:
    """diag(G) of a batch of networks from their squared parameters, by autograd.

    The sum of the outputs of the linear network on ones is the sum over paths of the products of the squared
    parameters; its derivative in one squared parameter is the diagonal entry.
    Weights are (batch, out, in), biases (batch, out).
    """
    weights = [w.clone().requires_grad_() for w in weights]
    biases = [None if b is None else b.clone().requires_grad_() for b in biases]
    x = torch.ones(weights[0].shape[0], weights[0].shape[2], dtype=torch.float64)
    for w, b in zip(weights, biases, strict=True):
        x = torch.einsum("boi,bi->bo", w, x)
        x = x if b is None else x + b
    x.sum().backward()
    return [w.grad for w in weights], [b.grad for b in biases if b is not None]


def constant_network(widths, weight_variances, bias_variances):
    """Squared parameters at their means: diag(G) is multilinear in independent ones, so this is its expectation."""
    shapes = list(itertools.pairwise(widths))
    weights = [
        torch.full((1, o, i), s, dtype=torch.float64) for (i, o), s in zip(shapes, weight_variances, strict=True)
    ]
    biases = [
        None if t is None else torch.full((1, o), t, dtype=torch.float64)
        for (_, o), t in zip(shapes, bias_variances, strict=True)
    ]
    return weights, biases


def assert_close(found: ExpectedDiagonal, wanted: ExpectedDiagonal, rel=1e-12):
    assert found.edge == pytest.approx(wanted.edge, rel=rel, abs=0)
    assert found.bias == pytest.approx(wanted.bias, rel=rel, abs=0)


networks = st.lists(st.integers(1, 5), min_size=2, max_size=6).flatmap(
    lambda widths: st.tuples(
        st.just(widths),
        st.lists(st.floats(1e-3, 10), min_size=len(widths) - 1, max_size=len(widths) - 1),
    )
)


def assert_is_mean_diagonal(found, widths, variances, biases):
    hidden = variances[:-1] if biases else [None] * (len(variances) - 1)
    edge, bias = diagonal(*constant_network(widths, variances, [*hidden, None]))
    for values, gradients in ((found.edge, edge), (found.bias, bias)):
        assert len(values) == len(gradients)
        for value, gradient in zip(values, gradients, strict=True):
            torch.testing.assert_close(gradient, torch.full_like(gradient, value), rtol=1e-12, atol=0)


@given(network=networks, biases=st.booleans())
@settings(max_examples=100, deadline=None)
def test_general_closed_form_matches_autograd_on_the_mean_network(network, biases):
    assert_is_mean_diagonal(expected_general(*network, biases=biases), *network, biases)


@pytest.mark.parametrize("widths", [(3, 2), (2, 5, 1), WIDTHS, (6, 6, 6, 6, 6)])
@pytest.mark.parametrize("a", [0.05, 1 / 3, 1.0, 2.0])
def test_standard_closed_form_matches_autograd_on_the_mean_network(widths, a):
    for biases in (True, False):
        assert_is_mean_diagonal(expected_standard(widths, a, biases), widths, [a / n for n in widths[:-1]], biases)


@pytest.mark.parametrize("widths", [(3, 2), WIDTHS, (4,) * 6])
@pytest.mark.parametrize(("limit", "a"), [(large_variance_limit, 1e7), (small_variance_limit, 1e-7)])
def test_limits_are_reached(widths, limit, a):
    exact = expected_standard(widths, a)
    assert_close(limit(widths, a), exact, rel=1e-5)
    # The next order in a is really left out: these are limits, not the formula again.
    if len(widths) > 3:
        assert limit(widths, 0.5).edge != pytest.approx(expected_standard(widths, 0.5).edge, rel=1e-2)


@pytest.mark.parametrize("start", [(0.0, 1.0, 1.0), (1.0, 0.0, 0.0), (math.nan, 1.0, 1.0), (1.0, math.inf, 0.0)])
def test_toy_refuses_a_dead_neuron(start):
    with pytest.raises(ValueError, match=r"toy example: expected finite .* got u="):
        toy_rescaled(*start)


def test_documented_examples():
    failed, tried = doctest.testmod(theory)
    assert failed == 0
    assert tried >= 6
