"""Forward and backward through one hidden layer and the loss, for stacked networks; fused into few kernels on a GPU.

Shapes: R runs, B examples, n units. Pre-activations z, activations a and gradients are (R, B, n); what a layer holds
for each unit (gamma, beta, mean, rstd) is (R, 1, n).
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

EPS, MOMENTUM = 1e-5, 0.1  # of torch.nn.BatchNorm1d
Saved = tuple[Tensor, ...]  # what the way forward keeps for the way back
_Function = TypeVar("_Function", bound=Callable[..., Any])


def activate(z: Tensor, kind: str) -> Tensor:
    """The activation of a name."""
    if kind == "relu":
        return z.relu()
    return functional.gelu(z) if kind == "gelu" else functional.silu(z)


def slope(z: Tensor, kind: str) -> Tensor:
    """Derivative of the activation; 0 at 0 for ReLU, as in torch."""
    if kind == "relu":
        return (z > 0).to(z.dtype)
    if kind == "gelu":
        density = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        return 0.5 * (1 + torch.erf(z / math.sqrt(2))) + z * density
    gate = torch.sigmoid(z)
    return gate * (1 + z * (1 - gate))


def norm_forward(z: Tensor, norm: list[Tensor], kind: str, row: Tensor | None = None) -> tuple[Tensor, Saved]:
    """BatchNorm in training mode, then the activation; moves the running statistics in place.

    Args:
        z: pre-activations.
        norm: scale, shift, running mean and running variance of the layer.
        kind: the activation.
        row: factors (R, 1, n) that the weights' rows still lack, see `balance`.

    Returns:
        a, and for the way back z, the mean and 1 / sqrt(var + eps) of the batch.
    """
    gamma, beta, running_mean, running_var = norm
    raw, z = z, z if row is None else z * row
    var, mean = torch.var_mean(z, dim=1, keepdim=True, correction=0)
    count = z.shape[1]
    running_mean.lerp_(mean, MOMENTUM)
    running_var.lerp_(var * (count / (count - 1)), MOMENTUM)
    rstd = torch.rsqrt(var + EPS)
    return activate((z - mean) * (rstd * gamma) + beta, kind), (raw, mean, rstd)


def norm_backward(grad: Tensor, saved: Saved, norm: list[Tensor], kind: str, row: Tensor | None = None) -> Tensor:
    """From the gradient at a to the one at z; scale and shift take their step, in place.

    The gradient comes multiplied by the learning rate, so a step is one subtraction. With `row` it is the gradient that
    the weights without their factors step by.
    """
    (gamma, beta), (z, mean, rstd) = norm[:2], saved
    z = z if row is None else z * row
    x = (z - mean) * rstd
    grad = grad * slope(x * gamma + beta, kind)
    for_beta, for_gamma = grad.sum(1, keepdim=True), (grad * x).sum(1, keepdim=True)
    back = gamma * rstd * (grad - (for_beta + x * for_gamma) / z.shape[1])
    beta.sub_(for_beta)
    gamma.sub_(for_gamma)
    return back if row is None else back / row


def norm_eval(z: Tensor, norm: list[Tensor], kind: str) -> Tensor:
    """BatchNorm in eval mode, then the activation."""
    gamma, beta, mean, var = norm
    return activate((z - mean) * (torch.rsqrt(var + EPS) * gamma) + beta, kind)


def plain_forward(z: Tensor, bias: Tensor | None, kind: str, row: Tensor | None = None) -> Tensor:
    """Bias and activation."""
    return activate(_affine(z, bias, row), kind)


def plain_backward(grad: Tensor, z: Tensor, bias: Tensor | None, kind: str, row: Tensor | None = None) -> Tensor:
    """From the gradient at a to the one at z; the bias takes its step, in place."""
    back = grad * slope(_affine(z, bias, row), kind)
    if bias is not None:
        bias.sub_(back.sum(1, keepdim=True))
    return back if row is None else back / row


def _affine(z: Tensor, bias: Tensor | None, row: Tensor | None) -> Tensor:
    z = z if row is None else z * row
    return z if bias is None else z + bias


def classify_gradient(z: Tensor, bias: Tensor | None, labels: Tensor, rate: Tensor) -> Tensor:
    """Gradient of the mean cross entropy at the outputs, times the learning rate; the output bias takes its step.

    z is (R, B, classes), labels (R, B), rate (R, 1, 1).
    """
    z = z if bias is None else z + bias
    target = functional.one_hot(labels, z.shape[2]).to(z.dtype)
    grad = (z.softmax(2) - target) * (rate / z.shape[1])
    if bias is not None:
        bias.sub_(grad.sum(1, keepdim=True))
    return grad


def rebuild_gradient(z: Tensor, bias: Tensor | None, target: Tensor, rate: Tensor) -> Tensor:
    """Gradient of the mean square error at the outputs, times the learning rate; the output bias takes its step."""
    z = z if bias is None else z + bias
    grad = (z - target) * (2 * rate / (z.shape[1] * z.shape[2]))
    if bias is not None:
        bias.sub_(grad.sum(1, keepdim=True))
    return grad


def rebuild_loss(y: Tensor, x: Tensor) -> Tensor:
    """Sum over the examples of the mean square error of each: outputs (R, B, n), inputs (B, n)."""
    return (y - x).square().mean(2).sum(1, dtype=torch.float64)


def balance(weights: list[Tensor], biases: list[Tensor | None], row: Tensor | None = None) -> None:
    """One cycle of ENorm (p = 2, c = 1) over all hidden layers but the last, in place.

    A unit's incoming weights and bias are multiplied by (out / in)^(1/4), its outgoing ones divided by it, where in and
    out are the sums of their squares, layer after layer. Units with nothing on one side stay.

    Args:
        weights: (R, n, m) of each layer, or (R, n, height, width, m) of convolutions.
        biases: (R, 1, n) of each layer, or None.
        row: factors (R, 1, n) of the first layer's rows; if given they are changed in place of that layer, by far the
            largest, which is then read but not written.
    """
    before: Tensor | None = None  # squares of the scales of the layer below
    for layer, weight in enumerate(weights[:-2]):
        apart = row if layer == 0 else None
        square = weight.square()
        entering = (square if before is None else square / _of_inputs(before, weight)).flatten(2).sum(2)
        entering = entering if apart is None else entering * apart[:, 0].square()
        above = weights[layer + 1]
        ratio = above.square().sum(tuple(range(1, above.ndim - 1))) / entering
        scale = torch.where(torch.isfinite(ratio) & (ratio > 0), ratio, 1.0).sqrt()
        if apart is not None:
            apart.mul_(scale.sqrt()[:, None, :])
        elif before is None:
            weight.mul_(_of_outputs(scale.sqrt(), weight))
        else:
            weight.mul_(_of_outputs(scale.sqrt(), weight) / _of_inputs(before.sqrt(), weight))
        bias = biases[layer]
        if bias is not None:
            bias.mul_(scale.sqrt()[:, None, :])
        before = scale
    if before is not None:
        weights[-2].div_(_of_inputs(before.sqrt(), weights[-2]))


def _of_inputs(scale: Tensor, weight: Tensor) -> Tensor:
    """Numbers (R, m) of the units below, so that they multiply a weight."""
    return scale.view(len(scale), *[1] * (weight.ndim - 2), -1)


def _of_outputs(scale: Tensor, weight: Tensor) -> Tensor:
    """Numbers (R, n) of a layer's own units, so that they multiply its weight."""
    return scale.view(*scale.shape, *[1] * (weight.ndim - 2))


def fetch(images: Tensor, index: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Rows of a uint8 table as normalised numbers: (R, B) indices give (R, B, n)."""
    x = images.index_select(0, index.reshape(-1)).to(scale.dtype)
    return x.mul_(scale).add_(shift).view(*index.shape, -1)


def fetch_next(
    images: Tensor, labels: Tensor | None, order: Tensor, places: Tensor, scale: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The images at some places of each run's order (R, N), and their labels."""
    index = order.index_select(1, places)
    return fetch(images, index, scale, shift), None if labels is None else labels[index]


def normalise(images: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Rows of a uint8 table, all of them, as normalised numbers."""
    return images.to(scale.dtype) * scale + shift


_compiled: dict[Callable[..., Any], Callable[..., Any]] = {}


def fused(function: _Function, device: torch.device) -> _Function:
    """The function, compiled into few kernels on a GPU; as it is on a CPU."""
    if device.type != "cuda":
        return function
    if function not in _compiled:
        # Each shape is compiled for itself. Past torch's limit, eight, all others would not be compiled at all.
        torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1000
        _compiled[function] = torch.compile(function, dynamic=False)
    return _compiled[function]  # type: ignore[return-value]
