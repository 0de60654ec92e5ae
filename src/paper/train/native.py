"""Forward and backward through one hidden layer of one network by torch's own kernels, the fast way on a CPU.

`layers` says what they compute; stacked networks have no such kernels.
"""

import torch
from torch import Tensor

from paper.train.layers import EPS, MOMENTUM, Saved, activate, balance, plain_backward, plain_forward

__all__ = ["balance", "norm_backward", "norm_forward", "plain_backward", "plain_forward"]
_aten = torch.ops.aten


def norm_forward(z: Tensor, norm: list[Tensor], kind: str, row: Tensor | None = None) -> tuple[Tensor, Saved]:
    """As `layers.norm_forward`, without `row`."""
    gamma, beta, mean, var = (t[0, 0] for t in norm)
    y, *statistics = torch.native_batch_norm(z[0], gamma, beta, mean, var, True, MOMENTUM, EPS)
    a = y.relu_() if kind == "relu" else activate(y, kind)  # ReLU's slope is as well read off its values
    return a[None], (z, y, *statistics)


def norm_backward(grad: Tensor, saved: Saved, norm: list[Tensor], kind: str, row: Tensor | None = None) -> Tensor:
    """As `layers.norm_backward`, without `row`."""
    z, y, mean, rstd = saved
    gamma, beta = norm[0][0, 0], norm[1][0, 0]
    back = _aten.threshold_backward(grad[0], y, 0) if kind == "relu" else _smooth[kind](grad[0], y)
    held = (gamma, None, None, mean, rstd)
    back, for_gamma, for_beta = _aten.native_batch_norm_backward(back, z[0], *held, True, EPS, [True] * 3)
    gamma.sub_(for_gamma)
    beta.sub_(for_beta)
    return back[None]


_smooth = {"gelu": _aten.gelu_backward, "silu": _aten.silu_backward}
