"""One network on a CPU: BatchNorm by torch's native kernels, which batched networks do not have.

`torch_layers` defines what is computed.
"""

import torch
from torch import Tensor

from paper.training.kernels.torch_layers import (
    EPS,
    MOMENTUM,
    Saved,
    activate,
    enorm_cycle,
    plain_backward,
    plain_forward,
)

__all__ = ["enorm_cycle", "norm_backward", "norm_forward", "plain_backward", "plain_forward"]
_aten = torch.ops.aten


def norm_forward(z: Tensor, norm: list[Tensor], kind: str, row_scale: Tensor | None = None) -> tuple[Tensor, Saved]:
    """As `torch_layers.norm_forward`, without `row_scale`."""
    gamma, beta, mean, var = (t[0, 0] for t in norm)
    y, *statistics = torch.native_batch_norm(z[0], gamma, beta, mean, var, True, MOMENTUM, EPS)
    a = y.relu_() if kind == "relu" else activate(y, kind)  # the slope of a ReLU can be read from its outputs
    return a[None], (z, y, *statistics)


def norm_backward(grad: Tensor, saved: Saved, norm: list[Tensor], kind: str, row_scale: Tensor | None = None) -> Tensor:
    """As `torch_layers.norm_backward`, without `row_scale`."""
    z, y, mean, rstd = saved
    gamma, beta = norm[0][0, 0], norm[1][0, 0]
    grad_z = _aten.threshold_backward(grad[0], y, 0) if kind == "relu" else _smooth[kind](grad[0], y)
    statistics = (gamma, None, None, mean, rstd)
    grad_z, grad_gamma, grad_beta = _aten.native_batch_norm_backward(grad_z, z[0], *statistics, True, EPS, [True] * 3)
    gamma.sub_(grad_gamma)
    beta.sub_(grad_beta)
    return grad_z[None]


_smooth = {"gelu": _aten.gelu_backward, "silu": _aten.silu_backward}
