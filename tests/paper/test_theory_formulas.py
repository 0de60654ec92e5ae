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
    expected_diagonal,
    expected_general,
    expected_standard,
    large_variance_limit,
    printed_edges,
    small_variance_limit,
    toy_rescaled,
    toy_scale,
)

DRAWS = 100_000
WIDTHS = (3, 5, 2, 4, 2)
# Each a_k = n_k sigma_k^2 is far from 1, where the printed general formula would agree with the right one.
UNEVEN = (0.4, 0.4, 0.9, 0.6)


def standard_variances(widths, a):
    return [a / n for n in widths[:-1]]


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


def monte_carlo(widths, variances, biased, uniform, seed):
    """Means and standard errors over draws, of the average entry of diag(G) by layer: (edges, biases)."""
    generator = torch.Generator().manual_seed(seed)

    def squared(variance, *shape):
        if uniform:
            draw = (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1) * math.sqrt(3)
        else:
            draw = torch.randn(shape, generator=generator, dtype=torch.float64)
        return variance * draw**2

    shapes = list(zip(itertools.pairwise(widths), variances, strict=True))
    weights = [squared(s, DRAWS, o, i) for (i, o), s in shapes]
    biases = [squared(s, DRAWS, o) if biased else None for (_, o), s in shapes[:-1]]
    edge, bias = diagonal(weights, [*biases, None])
    averages = [[g.flatten(1).mean(1) for g in group] for group in (edge, bias)]
    return [[(x.mean().item(), x.std().item() / math.sqrt(DRAWS)) for x in group] for group in averages]


def z_scores(measured, expected):
    return [(mean - value) / error for (mean, error), value in zip(measured, expected, strict=True)]


def assert_close(found: ExpectedDiagonal, wanted: ExpectedDiagonal, rel=1e-12):
    assert found.edge == pytest.approx(wanted.edge, rel=rel, abs=0)
    assert found.bias == pytest.approx(wanted.bias, rel=rel, abs=0)


networks = st.lists(st.integers(1, 5), min_size=2, max_size=6).flatmap(
    lambda widths: st.tuples(
        st.just(widths),
        st.lists(st.floats(1e-3, 10), min_size=len(widths) - 1, max_size=len(widths) - 1),
        st.lists(st.floats(0, 10), min_size=len(widths) - 2, max_size=len(widths) - 2),
    )
)


@given(network=networks, biased=st.booleans(), output_bias=st.booleans())
@settings(max_examples=100, deadline=None)
def test_recursion_matches_autograd_on_the_mean_network(network, biased, output_bias):
    widths, weight_variances, bias_variances = network
    found = expected_diagonal(widths, weight_variances, bias_variances if biased else None, output_bias)
    hidden = bias_variances if biased else [None] * len(bias_variances)
    edge, bias = diagonal(*constant_network(widths, weight_variances, [*hidden, 1.0 if output_bias else None]))
    for values, gradients in ((found.edge, edge), (found.bias, bias)):
        assert len(values) == len(gradients)
        for value, gradient in zip(values, gradients, strict=True):
            torch.testing.assert_close(gradient, torch.full_like(gradient, value), rtol=1e-12, atol=0)


@given(network=networks)
@settings(max_examples=100, deadline=None)
def test_general_closed_form_matches_the_recursion(network):
    widths, variances, _ = network
    assert_close(expected_general(widths, variances), expected_diagonal(widths, variances, "same"))
    assert_close(expected_general(widths, variances, biases=False), expected_diagonal(widths, variances))


@pytest.mark.parametrize("widths", [(3, 2), (2, 5, 1), WIDTHS, (6, 6, 6, 6, 6)])
@pytest.mark.parametrize("a", [0.05, 1 / 3, 1.0, 2.0])
def test_standard_closed_form_matches_the_recursion(widths, a):
    variances = standard_variances(widths, a)
    assert_close(expected_standard(widths, a), expected_diagonal(widths, variances, "same"))
    assert_close(expected_standard(widths, a, biases=False), expected_diagonal(widths, variances))


@pytest.mark.parametrize("uniform", [False, True], ids=["normal", "uniform"])
def test_formulas_match_monte_carlo_with_biases(uniform):
    edge, bias = monte_carlo(WIDTHS, UNEVEN, biased=True, uniform=uniform, seed=1)
    expected = expected_general(WIDTHS, UNEVEN)
    assert max(map(abs, z_scores(edge, expected.edge) + z_scores(bias, expected.bias))) < 4
    printed = z_scores(edge, printed_edges("expected_ak", WIDTHS, UNEVEN))
    assert [abs(z) > 20 for z in printed] == [False, True, True, False]


def test_formulas_match_monte_carlo_without_biases():
    a = 0.7
    variances = standard_variances(WIDTHS, a)
    edge, bias = monte_carlo(WIDTHS, variances, biased=False, uniform=True, seed=2)
    assert bias == []
    assert max(map(abs, z_scores(edge, expected_standard(WIDTHS, a, biases=False).edge))) < 4
    printed = z_scores(edge, printed_edges("without_biases", WIDTHS, variances))
    assert [abs(z) > 20 for z in printed] == [False, True, True, True]


def test_hand_values():
    # One hidden unit, one input: g(w0) = w1^2, g(w1) = w0^2 + b^2, g(b) = w1^2.
    assert expected_diagonal((1, 1, 1), (2.0, 3.0), 5.0) == ExpectedDiagonal(edge=(3.0, 7.0), bias=(3.0,))
    # Three inputs, two outputs, one layer: every path is one weight; the output bias is a path of its own.
    assert expected_diagonal((3, 2), 0.1, output_bias=True) == ExpectedDiagonal(edge=(1.0,), bias=(1.0,))
    # Biases at zero exist, and add nothing to the path sums.
    assert expected_diagonal((2, 3, 4), 0.5, 0.0) == ExpectedDiagonal(edge=(2.0, 1.0), bias=(2.0,))
    assert expected_diagonal((2, 3, 4), 0.5) == ExpectedDiagonal(edge=(2.0, 1.0), bias=())
    assert expected_diagonal((2, 3, 4), 0.5, output_bias=True).bias == (1.0,)
    assert expected_diagonal((2, 3, 4), 0.5, "same", output_bias=True).bias == (2.0, 1.0)


def test_constant_width_at_one_rises_by_one_over_n():
    n, layers = 8, 6
    assert expected_standard([n] * (layers + 1), 1.0).edge == pytest.approx([1 + k / n for k in range(layers)])


@pytest.mark.parametrize("a", [0.2, 0.9, 3.0])
def test_constant_width_geometric_sum(a):
    n, layers = 5, 6
    top = a ** (layers - 1)
    wanted = [top + top / n * (1 - (1 / a) ** k) / (1 - 1 / a) for k in range(layers)]
    assert expected_standard([n] * (layers + 1), a).edge == pytest.approx(wanted)


@pytest.mark.parametrize("widths", [(3, 2), WIDTHS, (4,) * 6])
@pytest.mark.parametrize(("limit", "a"), [(large_variance_limit, 1e7), (small_variance_limit, 1e-7)])
def test_limits_are_reached(widths, limit, a):
    exact = expected_standard(widths, a)
    assert_close(limit(widths, a), exact, rel=1e-5)
    # The next order in a is really left out: these are limits, not the formula again.
    if len(widths) > 3:
        assert limit(widths, 0.5).edge != pytest.approx(expected_standard(widths, 0.5).edge, rel=1e-2)


def test_limits_at_constant_width():
    n, layers = 4, 5
    widths = [n] * (layers + 1)
    top, second = 10.0 ** (layers - 1), 0.1 ** (layers - 1)
    assert large_variance_limit(widths, 10.0).edge == pytest.approx([top] + [top * (1 + 1 / n)] * (layers - 1))
    wanted = [second, second * (1 + 1 / n)] + [0.1 ** (layers - k) / n for k in range(2, layers)]
    assert small_variance_limit(widths, 0.1).edge == pytest.approx(wanted)


def test_printed_limits_miss_the_layers_they_are_wrong_for():
    a = 1e-7
    even = (4,) * 6
    ratio = [
        p / e
        for p, e in zip(printed_edges("small_variance", even, a / 4), expected_standard(even, a).edge, strict=True)
    ]
    assert ratio[0] < 1e-6
    assert ratio[1] == pytest.approx(1 / 5, rel=1e-4)
    assert ratio[2:] == pytest.approx([1.0] * 3, rel=1e-4)

    printed = printed_edges("small_variance_widths", WIDTHS, standard_variances(WIDTHS, a))
    ratio = [p / e for p, e in zip(printed, expected_standard(WIDTHS, a).edge, strict=True)]
    assert math.isnan(ratio[0])
    assert ratio[1:] == pytest.approx([1 / (1 + WIDTHS[0]), 1.0, 1.0], rel=1e-4)

    printed = printed_edges("large_variance_widths", WIDTHS, standard_variances(WIDTHS, 1 / a))
    ratio = [p / e for p, e in zip(printed, expected_standard(WIDTHS, 1 / a).edge, strict=True)]
    assert ratio == pytest.approx([1.0] + [3 / 4] * 3, rel=1e-4)


def test_printed_general_term_is_right_where_the_next_factor_is_one():
    variances = standard_variances(WIDTHS, 1.0)
    assert printed_edges("expected_ak", WIDTHS, variances) == pytest.approx(expected_general(WIDTHS, variances).edge)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: expected_diagonal((3,), 1.0), r"widths: expected at least 2 positive integers, got \(3,\)"),
        (lambda: expected_diagonal((3, 0, 2), 1.0), r"widths: expected .* positive integers, got \(3, 0, 2\)"),
        (lambda: expected_general((3, -1), 1.0), r"widths: expected .* got \(3, -1\)"),
        (lambda: expected_standard((3, 2.5, 1), 1.0), r"widths: expected .* got \(3, 2.5, 1\)"),
        (lambda: expected_diagonal((3, 2, 1), (1.0,)), r"weight_variances: expected 2 finite values >= 0, got 1"),
        (lambda: expected_general((3, 2), (1.0, 1.0)), r"weight_variances: expected 1 finite values >= 0, got 2"),
        (lambda: expected_diagonal((3, 2, 1), -1.0), r"weight_variances: expected .* >= 0, got .*-1.0"),
        (lambda: expected_diagonal((3, 2, 1), math.inf), r"weight_variances: expected .* finite .* got .*inf"),
        (lambda: expected_diagonal((3, 2, 1), 1.0, (1.0, 1.0)), r"bias_variances: expected 1 .* got 2"),
        (lambda: expected_diagonal((3, 2, 1), 1.0, ()), r"bias_variances: expected 1 .* got 0"),
        (lambda: expected_diagonal((3, 2, 1), 1.0, "none"), r"bias_variances: expected .*'same'.* got 'none'"),
        (lambda: expected_standard((3, 2, 1), 0.0), r"a: expected a finite value > 0, got 0.0"),
        (lambda: small_variance_limit((3, 2, 1), math.nan), r"a: expected a finite value > 0, got nan"),
        (lambda: large_variance_limit((3,), 1.0), r"widths: expected at least 2"),
        (lambda: printed_edges("other", (3, 2), 1.0), r"name: expected one of expected_ak, .*, got 'other'"),
        (lambda: printed_edges("without_biases", (3, 2, 1), 1.0), r"weight_variances: expected a / width .* got"),
        (lambda: printed_edges("small_variance", (2, 4, 1), (0.5, 0.25)), r"widths: expected one width .* got"),
    ],
)
def test_bad_input_says_what_was_expected(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("start", "scale"), [((0.2, 2.5, 5.0), 0.189), ((0.3, 5.0, -4.0), 0.216), ((0.3, -1.5, 3.0), 0.299)]
)
def test_toy_scale_known_values(start, scale):
    assert toy_scale(*start) == pytest.approx(scale, abs=5e-4)


@given(
    u=st.floats(0.01, 100),
    v=st.floats(-100, 100),
    w=st.floats(0.01, 100),
    sign=st.sampled_from([-1, 1]),
)
def test_toy_is_balanced_keeps_its_function_and_is_optimal(u, v, w, sign):
    u = sign * u
    new_u, new_v, new_w = toy_rescaled(u, v, w)
    assert abs(new_u) == pytest.approx(math.hypot(new_v, new_w))
    assert math.copysign(1, new_u) == sign
    x = torch.linspace(-3, 3, 13, dtype=torch.float64)
    torch.testing.assert_close(new_u * torch.relu(new_v * x + new_w), u * torch.relu(v * x + w), rtol=1e-9, atol=1e-9)
    assert toy_scale(new_u, new_v, new_w) == pytest.approx(1.0)

    def divergence(scale):
        # p log(trace of G) - log of the product of diag(G), of G at (u / scale, scale v, scale w).
        first, rest = (scale * math.hypot(v, w)) ** 2, (u / scale) ** 2
        return 3 * math.log(first + 2 * rest) - math.log(first) - 2 * math.log(rest)

    best = toy_scale(u, v, w)
    assert divergence(best) < min(divergence(best * 0.9), divergence(best * 1.1))


@pytest.mark.parametrize("start", [(0.0, 1.0, 1.0), (1.0, 0.0, 0.0), (math.nan, 1.0, 1.0), (1.0, math.inf, 0.0)])
def test_toy_refuses_a_dead_neuron(start):
    with pytest.raises(ValueError, match=r"toy example: expected finite .* got u="):
        toy_scale(*start)


def test_documented_examples():
    failed, tried = doctest.testmod(theory)
    assert failed == 0
    assert tried >= len(theory.__all__)
