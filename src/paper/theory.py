"""Expected path magnitudes of layered fully connected ReLU networks, and the one-neuron toy example.

Symbols of the paper and their names here:

    n_0 .. n_L     widths             L + 1 widths: input, hidden layers, output
    sigma_k^2      weight_variances   second moment of a weight in layer k = 0 .. L-1, which maps n_k to n_{k+1} units
    a_k            a                  n_k sigma_k^2; standard initializations have one `a` for all layers
    E[g_i]         ExpectedDiagonal   expected entry of diag(G), the same for all parameters of one kind in one layer

The bias of layer k is added to the n_{k+1} units that the layer feeds. All formulas here are correct but those of
`printed_edges`, which are the paper's as printed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

_Printed = Literal["expected_ak", "without_biases", "small_variance", "large_variance_widths", "small_variance_widths"]


@dataclass(frozen=True)
class ExpectedDiagonal:
    """Expected diag(G) by layer: `edge` of a weight in layer k, `bias` of a bias in the layers that have them."""

    edge: tuple[float, ...]
    bias: tuple[float, ...]


def expected_general(widths: Sequence[int], weight_variances: Sequence[float], biases: bool = True) -> ExpectedDiagonal:
    """Expected diag(G) for any widths n_0 .. n_L and variances sigma_k^2 of the L layers.

    Biases of hidden layers have the variance of their layer; the output layer has none. This is the paper's formula in
    a_k = n_k sigma_k^2 with its edge term corrected: both products leave out k and k + 1, and n_L sigma_{k+1}^2 stands
    for 1 in the last layer, where sigma_L does not exist.

    Example:
        >>> expected_general((2, 3, 1), weight_variances=(0.5, 0.5))
        ExpectedDiagonal(edge=(0.5, 1.5), bias=(0.5,))
    """
    n, s = tuple(widths), tuple(weight_variances)
    edge = tuple(_general_edge(n, s, k, biases, skip=(k, k + 1)) for k in range(len(s)))
    bias = tuple(_first_step(n, s, k) * _product(n, s, k + 2) for k in range(len(s) - 1))
    return ExpectedDiagonal(edge, bias if biases else ())


def expected_standard(widths: Sequence[int], a: float, biases: bool = True) -> ExpectedDiagonal:
    """The same for a standard initialization: n_k sigma_k^2 = a in all layers.

    He initialization with the ReLU gain has a = 2; the default of `torch.nn.Linear` has a = 1/3 and biases with the
    same variance.

    Example:
        >>> expected_standard((2, 4, 1), a=1.0)
        ExpectedDiagonal(edge=(0.25, 1.5), bias=(0.25,))
    """
    n, bias = _standard(widths, a)
    layers = len(n) - 1
    from_biases = [sum(a ** (layers - 1 - j) / n[j] for j in range(k)) if biases else 0.0 for k in range(layers)]
    edge = tuple(n[-1] / n[k + 1] * (a ** (layers - 1) + from_biases[k]) for k in range(layers))
    return ExpectedDiagonal(edge, bias if biases else ())


def large_variance_limit(widths: Sequence[int], a: float) -> ExpectedDiagonal:
    """Leading term of `expected_standard` with biases as a grows; the biases are exact.

    The first layer has n_L / n_1 a^{L-1}; layer k >= 1 has n_L / n_{k+1} a^{L-1} (1 + 1 / n_0), since the biases of
    the first layer count as much as the inputs.

    Example:
        >>> large_variance_limit((2, 4, 4, 4), a=10.0).edge
        (100.0, 150.0, 150.0)
    """
    n, bias = _standard(widths, a)
    layers = len(n) - 1
    edge = (n[-1] / n[k + 1] * a ** (layers - 1) * (1.0 if k == 0 else 1.0 + 1.0 / n[0]) for k in range(layers))
    return ExpectedDiagonal(tuple(edge), bias)


def small_variance_limit(widths: Sequence[int], a: float) -> ExpectedDiagonal:
    """Leading term of `expected_standard` with biases as a falls to 0; the biases are exact.

    The first layer has n_L / n_1 a^{L-1}, the second n_L / n_2 a^{L-1} (1 + 1 / n_0), and layer k >= 2 has
    n_L / (n_{k+1} n_{k-1}) a^{L-k}: only the biases one layer below still count.

    Example:
        >>> small_variance_limit((2, 4, 4, 4), a=0.5).edge
        (0.25, 0.375, 0.125)
    """
    n, bias = _standard(widths, a)
    layers = len(n) - 1
    inner = [a ** (layers - 1) * (1.0 + k / n[0]) if k < 2 else a ** (layers - k) / n[k - 1] for k in range(layers)]
    return ExpectedDiagonal(tuple(n[-1] / n[k + 1] * inner[k] for k in range(layers)), bias)


def printed_edges(name: _Printed, widths: Sequence[int], weight_variances: Sequence[float]) -> tuple[float, ...]:
    """What the paper prints for E[g] of the weights where it is wrong, to stand beside the corrected value.

    Names, and the function that is right:

    - "expected_ak": the second product leaves out k alone; `expected_general`. The last layer reads n_L sigma_L^2 = 1.
    - "without_biases": the formula with biases, stated for networks without; `expected_standard(biases=False)`.
    - "small_variance": a^{L-k} / n in every layer, at constant width; `small_variance_limit`.
    - "small_variance_widths": n_L / n_{k+1} a^{L-k} / n_{k-1}, NaN for k = 0; `small_variance_limit`.
    - "large_variance_widths": n_L / n_{k+1} a^{L-1}; `large_variance_limit`.

    Widths are all equal for "small_variance", and variances a / n_k for all names but "expected_ak".

    Example:
        >>> printed_edges("small_variance", (4, 4, 4, 4), [0.125] * 3), small_variance_limit((4, 4, 4, 4), a=0.5).edge
        ((0.03125, 0.0625, 0.125), (0.25, 0.3125, 0.125))
    """
    n, s = tuple(widths), tuple(weight_variances)
    layers = range(len(s))
    if name == "expected_ak":
        return tuple(_general_edge(n, s, k, biases=True, skip=(k,)) for k in layers)
    a = n[0] * s[0]
    if name == "without_biases":
        return expected_standard(n, a).edge
    if name == "large_variance_widths":
        return tuple(n[-1] / n[k + 1] * a ** (len(s) - 1) for k in layers)
    if name == "small_variance_widths":
        return (math.nan, *(n[-1] / n[k + 1] * a ** (len(s) - k) / n[k - 1] for k in layers[1:]))
    return tuple(a ** (len(s) - k) / n[0] for k in layers)


def toy_rescaled(u: float, v: float, w: float) -> tuple[float, float, float]:
    """The same function f(x) = u relu(v x + w) at its optimal scale sqrt(|u| / ||(v, w)||), where |u| = ||(v, w)||.

    A dead neuron (u = 0 or v = w = 0) has none, which is a ValueError.

    Example:
        >>> toy_rescaled(u=20.0, v=3.0, w=4.0)
        (10.0, 6.0, 8.0)
    """
    norm = math.hypot(v, w)
    if not (math.isfinite(u) and math.isfinite(norm)) or u == 0.0 or norm == 0.0:
        raise ValueError(f"toy example: expected finite u != 0 and (v, w) != (0, 0), got u={u}, v={v}, w={w}")
    scale = math.sqrt(abs(u) / norm)
    return u / scale, scale * v, scale * w


def _standard(widths: Sequence[int], a: float) -> tuple[tuple[int, ...], tuple[float, ...]]:
    n = tuple(widths)
    return n, tuple(n[-1] / n[k + 1] * a ** (len(n) - 2 - k) for k in range(len(n) - 2))


def _general_edge(n: Sequence[int], s: Sequence[float], k: int, biases: bool, skip: tuple[int, ...]) -> float:
    # `skip` holds the layers that the product of the paths from biases leaves out.
    from_inputs = _product(n, s, 0, skip=(k, k + 1))
    from_biases = sum(s[j] * _product(n, s, j + 1, skip) for j in range(k)) if biases else 0.0
    return _first_step(n, s, k) * (from_inputs + from_biases)


def _first_step(n: Sequence[int], s: Sequence[float], k: int) -> float:
    return n[-1] * s[k + 1] if k + 1 < len(s) else 1.0


def _product(n: Sequence[int], s: Sequence[float], start: int, skip: tuple[int, ...] = ()) -> float:
    return math.prod(n[m] * s[m] for m in range(start, len(s)) if m not in skip)
