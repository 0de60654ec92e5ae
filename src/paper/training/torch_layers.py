"""Forward and backward pass of a hidden layer and of the loss for batched MLPs, in torch; compiled on a GPU.

`OneOnCPU` is faster for one network on a CPU.

Shapes: R runs, B examples, n units. Pre-activations z, activations a and gradients are (R, B, n); parameters and
statistics of the units (gamma, beta, mean, rstd) are (R, 1, n).
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

EPS, MOMENTUM = 1e-5, 0.1  # of torch.nn.BatchNorm1d
Saved = tuple[Tensor, ...]  # what the forward pass saves for the backward pass
_Function = TypeVar("_Function", bound=Callable[..., Any])


def activate(z: Tensor, kind: str) -> Tensor:
    """The activation with this name."""
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


def norm_forward(z: Tensor, norm: list[Tensor], kind: str) -> tuple[Tensor, Saved]:
    """BatchNorm in training mode, then the activation; updates the running statistics in place.

    Args:
        z: pre-activations.
        norm: scale, shift, running mean and running variance of the layer.
        kind: the activation.

    Returns:
        a, and for the backward pass z, the batch mean and 1 / sqrt(var + eps).
    """
    gamma, beta, running_mean, running_var = norm
    var, mean = torch.var_mean(z, dim=1, keepdim=True, correction=0)
    count = z.shape[1]
    running_mean.lerp_(mean, MOMENTUM)
    running_var.lerp_(var * (count / (count - 1)), MOMENTUM)
    rstd = torch.rsqrt(var + EPS)
    return activate((z - mean) * (rstd * gamma) + beta, kind), (z, mean, rstd)


def norm_backward(grad: Tensor, saved: Saved, norm: list[Tensor], kind: str) -> Tensor:
    """From the gradient at a to the one at z; gamma and beta are updated in place.

    The gradient comes multiplied by the learning rate, so a step is one subtraction.
    """
    (gamma, beta), (z, mean, rstd) = norm[:2], saved
    x = (z - mean) * rstd
    grad = grad * slope(x * gamma + beta, kind)
    grad_beta, grad_gamma = grad.sum(1, keepdim=True), (grad * x).sum(1, keepdim=True)
    grad_z = gamma * rstd * (grad - (grad_beta + x * grad_gamma) / z.shape[1])
    beta.sub_(grad_beta)
    gamma.sub_(grad_gamma)
    return grad_z


def norm_eval(z: Tensor, norm: list[Tensor], kind: str) -> Tensor:
    """BatchNorm in eval mode, then the activation."""
    gamma, beta, mean, var = norm
    return activate((z - mean) * (torch.rsqrt(var + EPS) * gamma) + beta, kind)


def plain_forward(z: Tensor, bias: Tensor | None, kind: str) -> Tensor:
    """Bias and activation."""
    return activate(_affine(z, bias), kind)


def plain_backward(grad: Tensor, z: Tensor, bias: Tensor | None, kind: str) -> Tensor:
    """From the gradient at a to the one at z; the bias is updated in place."""
    return _step_bias(bias, grad * slope(_affine(z, bias), kind))


def _affine(z: Tensor, bias: Tensor | None) -> Tensor:
    return z if bias is None else z + bias


def cross_entropy_gradient(z: Tensor, bias: Tensor | None, labels: Tensor, rate: Tensor) -> Tensor:
    """Gradient of the mean cross entropy at the outputs, times the learning rate; the output bias is updated.

    z is (R, B, classes), labels (R, B), rate (R, 1, 1).
    """
    z = _affine(z, bias)
    target = functional.one_hot(labels, z.shape[2]).to(z.dtype)
    return _step_bias(bias, (z.softmax(2) - target) * (rate / z.shape[1]))


def mse_gradient(z: Tensor, bias: Tensor | None, target: Tensor, rate: Tensor) -> Tensor:
    """Gradient of the mean square error at the outputs, times the learning rate; the output bias is updated."""
    return _step_bias(bias, (_affine(z, bias) - target) * (2 * rate / (z.shape[1] * z.shape[2])))


def _step_bias(bias: Tensor | None, grad: Tensor) -> Tensor:
    """Subtract the gradient of a bias, if there is one; returns the gradient at its outputs."""
    if bias is not None:
        bias.sub_(grad.sum(1, keepdim=True))
    return grad


def mse_loss(y: Tensor, x: Tensor) -> Tensor:
    """Sum over the examples of the mean square error of each: outputs (R, B, n), inputs (B, n)."""
    return (y - x).square().mean(2).sum(1, dtype=torch.float64)


def enorm_cycle(weights: list[Tensor], biases: list[Tensor | None]) -> None:
    """One cycle of ENorm (Stock et al., ICLR 2019; p = 2, c = 1) over all hidden layers but the last, in place.

    A unit's incoming weights and bias are multiplied by (out / in)^(1/4) and its outgoing weights divided by it, where
    in and out are their sums of squares; layers follow one another. Units with a zero sum are left alone.

    Args:
        weights: (R, n, m) of each layer, or (R, n, height, width, m) of convolutions.
        biases: (R, 1, n) of each layer, or None.
    """
    sq_scale_below: Tensor | None = None  # squared scales of the layer below
    for layer, weight in enumerate(weights[:-2]):
        square = weight.square()
        sq_in = (square if sq_scale_below is None else square / _per_input(sq_scale_below, weight)).flatten(2).sum(2)
        above = weights[layer + 1]
        ratio = above.square().sum(tuple(range(1, above.ndim - 1))) / sq_in
        scale = torch.where(torch.isfinite(ratio) & (ratio > 0), ratio, 1.0).sqrt()
        if sq_scale_below is None:
            weight.mul_(_per_output(scale.sqrt(), weight))
        else:
            weight.mul_(_per_output(scale.sqrt(), weight) / _per_input(sq_scale_below.sqrt(), weight))
        bias = biases[layer]
        if bias is not None:
            bias.mul_(scale.sqrt()[:, None, :])
        sq_scale_below = scale
    if sq_scale_below is not None:
        weights[-2].div_(_per_input(sq_scale_below.sqrt(), weights[-2]))


def _per_input(scale: Tensor, weight: Tensor) -> Tensor:
    """Values (R, m) of the input units, in a shape that multiplies a weight."""
    return scale.view(len(scale), *[1] * (weight.ndim - 2), -1)


def _per_output(scale: Tensor, weight: Tensor) -> Tensor:
    """Values (R, n) of the output units, in a shape that multiplies a weight."""
    return scale.view(*scale.shape, *[1] * (weight.ndim - 2))


def gather(images: Tensor, index: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Normalized images by index: (R, B) indices give (R, B, n)."""
    x = images.index_select(0, index.reshape(-1)).to(scale.dtype)
    return x.mul_(scale).add_(shift).view(*index.shape, -1)


def gather_next(
    images: Tensor, labels: Tensor | None, order: Tensor, positions: Tensor, scale: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Normalized images, and labels, at some positions of each run's order (R, N)."""
    index = order.index_select(1, positions)
    return gather(images, index, scale, shift), None if labels is None else labels[index]


def normalise(images: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """All images of a uint8 table, normalized."""
    return images.to(scale.dtype) * scale + shift


_compiled: dict[Callable[..., Any], Callable[..., Any]] = {}


def compiled(function: _Function, device: torch.device) -> _Function:
    """The function, compiled for a GPU; unchanged for a CPU."""
    if device.type != "cuda":
        return function
    if function not in _compiled:
        # Each shape is compiled separately. Past torch's limit, eight, further shapes would not be compiled at all.
        torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1000
        _compiled[function] = torch.compile(function, dynamic=False)
    return _compiled[function]  # type: ignore[return-value]


class Compiled:
    """Layers of batched networks: the functions above, compiled on a GPU."""

    def __init__(self, device: torch.device) -> None:
        for function in (norm_forward, norm_backward, plain_forward, plain_backward, enorm_cycle):
            setattr(self, function.__name__, compiled(function, device))


class OneOnCPU:
    """Layers of one network on a CPU: BatchNorm by torch's native kernels, which batched networks do not have."""

    plain_forward = staticmethod(plain_forward)
    plain_backward = staticmethod(plain_backward)
    enorm_cycle = staticmethod(enorm_cycle)

    @staticmethod
    def norm_forward(z: Tensor, norm: list[Tensor], kind: str) -> tuple[Tensor, Saved]:
        """As the function `norm_forward`."""
        gamma, beta, mean, var = (t[0, 0] for t in norm)
        y, *statistics = torch.native_batch_norm(z[0], gamma, beta, mean, var, True, MOMENTUM, EPS)
        a = y.relu_() if kind == "relu" else activate(y, kind)  # the slope of a ReLU can be read from its outputs
        return a[None], (z, y, *statistics)

    @staticmethod
    def norm_backward(grad: Tensor, saved: Saved, norm: list[Tensor], kind: str) -> Tensor:
        """As the function `norm_backward`."""
        z, y, mean, rstd = saved
        gamma, beta = norm[0][0, 0], norm[1][0, 0]
        grad_z = _aten.threshold_backward(grad[0], y, 0) if kind == "relu" else _smooth[kind](grad[0], y)
        statistics = (gamma, None, None, mean, rstd)
        backward = _aten.native_batch_norm_backward
        grad_z, grad_gamma, grad_beta = backward(grad_z, z[0], *statistics, True, EPS, [True] * 3)
        gamma.sub_(grad_gamma)
        beta.sub_(grad_beta)
        return grad_z[None]


_aten = torch.ops.aten
_smooth = {"gelu": _aten.gelu_backward, "silu": _aten.silu_backward}
