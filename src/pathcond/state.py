"""Optimizer state under a rescaling: what was gathered from gradients follows the parameters.

A parameter multiplied by s has its gradients divided by s. Averages of gradients are therefore divided by s and
averages of squared gradients by s**2: the state is then what the optimizer would hold, had it seen the rescaled model
throughout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pathcond.checks import shared_memory
from pathcond.errors import PathCondError

POWERS: Mapping[str, int] = {"momentum_buffer": 1, "exp_avg": 1, "exp_avg_sq": 2, "max_exp_avg_sq": 2}

Buffers = dict[str, list[tuple[Tensor, int]]]


def holders(model: nn.Module, names: Iterable[str]) -> dict[str, list[nn.Parameter]]:
    """The named parameters, each with all others that lie on its memory: they share its values, but not its state."""
    parameters = dict(model.named_parameters())
    found = {name: [parameters[name]] for name in names}
    for other, name in shared_memory(model)[0].items():
        if name in found:
            found[name].append(parameters[other])
    return found


def check_optimizer(optimizer: Any, parameters: Mapping[str, Sequence[nn.Parameter]]) -> None:
    """Refuse what is no optimizer, one of another model, and one whose state cannot follow.

    Raises:
        PathCondError: see above; the message says which.
    """
    if optimizer is None:
        return
    if not isinstance(optimizer, Optimizer):
        raise PathCondError(
            f"expected optimizer to be a torch.optim.Optimizer or None, got {type(optimizer).__name__}."
        )
    ours = {id(p) for group in parameters.values() for p in group}
    if ours and not any(id(p) in ours for group in optimizer.param_groups for p in group["params"]):
        raise PathCondError("expected the optimizer of this model, got one that holds none of the rescaled parameters.")
    gradient_buffers(optimizer, parameters)


def gradient_buffers(optimizer: Optimizer | None, parameters: Mapping[str, Sequence[nn.Parameter]]) -> Buffers:
    """The optimizer's state by parameter name: tensors, and the power of the gradient each is made of.

    Raises:
        PathCondError: there is a tensor whose meaning is unknown. Step counts and other single numbers are passed over.
    """
    found: Buffers = {name: [] for name in parameters}
    if optimizer is None:
        return found
    for name, group in parameters.items():
        for p in group:
            for key, value in optimizer.state.get(p, {}).items():
                if not isinstance(value, Tensor):
                    continue
                if key in POWERS and value.shape == p.shape:
                    found[name].append((value, POWERS[key]))
                elif value.numel() > 1 or (value.shape == p.shape and key != "step"):
                    raise PathCondError(
                        f"expected optimizer state among {', '.join(map(repr, POWERS))} (SGD, Adam and their kin), got "
                        f"{key!r} of {type(optimizer).__name__} for parameter '{name}', whose change under a rescaling "
                        "is not known. Use such an optimizer, or pass optimizer=None to leave the state as it is."
                    )
    return found


def scale_(tensor: Tensor, row: Tensor | None, col: Tensor | None, power: int = 1) -> None:
    """Multiply in place by ``(row * col) ** power``, both of which broadcast to ``tensor``; None stands for one.

    Factors in a wider format than the tensor's are used as such, and the product is rounded once.
    """
    factors = [factor if power == 1 else factor.pow(power) for factor in (row, col) if factor is not None]
    if all(factor.dtype == tensor.dtype for factor in factors):
        for factor in factors:
            tensor.mul_(factor)
        return
    product = tensor
    for factor in factors:
        product = torch.mul(product, factor)
    tensor.copy_(product)
