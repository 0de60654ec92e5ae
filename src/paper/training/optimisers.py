"""Optimizers and learning-rate schedules of one module.

A run without `schedule` has a constant learning rate. On a GPU a schedule is a table on the device, where a CUDA graph
reads the learning rate of its step.
"""

# pyright: reportPrivateImportUsage=false
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

ADAM = ("adam", "adamw")
MATCHED_RMS = 0.2  # RMS of Muon's updates, close to AdamW's, so that both can use one learning rate


def rates(spec: Mapping[str, Any], steps: int) -> Tensor:
    """Learning rate of each step of a run, (steps,) in float64."""
    schedule, lr = spec.get("schedule"), float(spec["lr"])
    if schedule is None:
        return torch.full((steps,), lr, dtype=torch.float64)
    warm = round(schedule.get("warmup", 0.0) * steps)
    step = torch.arange(1, steps + 1, dtype=torch.float64)
    rising = step / max(1, warm)
    done = ((step - warm - 1) / max(1, steps - warm)).clamp(min=0)
    falling = 1 - done if schedule["name"] == "one_cycle" else (1 + torch.cos(math.pi * done)) / 2
    return lr * torch.where(step <= warm, rising, falling)


class ScheduledSGD(torch.optim.SGD):
    """torch.optim.SGD whose learning rate is a tensor on the device, so that a step can be part of a CUDA graph."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            change = [p.grad for p in parameters]
            if group["weight_decay"]:
                change = torch._foreach_add(change, parameters, alpha=group["weight_decay"])
            if momentum := group["momentum"]:
                for p in parameters:
                    if self.state[p].get("momentum_buffer") is None:
                        self.state[p]["momentum_buffer"] = torch.zeros_like(p)
                averages = [self.state[p]["momentum_buffer"] for p in parameters]
                torch._foreach_mul_(averages, momentum)
                torch._foreach_add_(averages, change)
                change = torch._foreach_add(change, averages, alpha=momentum) if group["nesterov"] else averages
            torch._foreach_sub_(parameters, torch._foreach_mul(change, group["lr"]))


class Muon(Optimizer):
    """torch.optim.Muon with updates of AdamW's size, for kernels of convolutions too, each flattened to a matrix.

    The learning rate may be a tensor on the device, and a step a part of a CUDA graph.
    """

    def __init__(self, params: Any, lr: float, weight_decay: float, momentum: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step, with Nesterov's momentum."""
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(p)
                average = state["momentum_buffer"]
                average.lerp_(p.grad, 1 - momentum)
                update = orthogonalised(p.grad.lerp(average, momentum).flatten(1)).reshape(p.shape)
                size = MATCHED_RMS * math.sqrt(max(len(p), p.numel() // len(p)))
                p.mul_(1 - lr * group["weight_decay"])
                if isinstance(lr, Tensor):
                    p.sub_(update.to(p.dtype) * (lr * size))
                else:
                    p.add_(update, alpha=-lr * size)


def orthogonalised(matrix: Tensor, steps: int = 5) -> Tensor:
    """A matrix, or a stack of them, with singular values near 1 in place of its own, by Newton and Schulz's iteration.

    It is in bfloat16 on a GPU, as torch.optim.Muon's, and in float32 on a CPU, where bfloat16 is slow.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = (matrix.mT if tall else matrix).to(torch.bfloat16 if matrix.is_cuda else torch.float32)
    x = x.reshape(-1, *x.shape[-2:])
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).reshape(matrix.shape)


def optimisers(
    module: nn.Module,
    settings: Mapping[str, Any],
    lr: float,
    factors: Mapping[str, float] | None = None,
    scheduled: bool = False,
) -> list[Optimizer]:
    """The optimizer of a configuration; Muon takes matrices and kernels and leaves the rest to AdamW.

    `factors` of the learning rate are by parameter, 1 where left out. With `scheduled` the learning rate is a tensor on
    the device of the parameters, which :func:`set_rate` writes, for CUDA graphs.
    """
    name, options = settings["name"], {key: value for key, value in settings.items() if key != "name"}
    named = dict(module.named_parameters())
    device = next(iter(named.values())).device

    def groups(chosen: Mapping[str, Tensor], vectors_decay: bool = True) -> list[dict[str, Any]]:
        kinds: dict[tuple[float, bool], list[Tensor]] = {}
        for key, p in chosen.items():
            kinds.setdefault(((factors or {}).get(key, 1.0), vectors_decay or p.ndim > 1), []).append(p)
        found = []
        for (factor, decays), parameters in kinds.items():
            rate = torch.tensor(factor * lr, device=device) if scheduled else factor * lr
            found.append(
                {"params": parameters, "lr": rate, "factor": factor, **({} if decays else {"weight_decay": 0})}
            )
        return found

    # A CUDA graph needs Adam's count of steps, and the rate of a schedule, on the device.
    adam: dict[str, Any] = {"capturable": True} if device.type == "cuda" else {}
    if name == "sgd":
        sgd = ScheduledSGD if scheduled else torch.optim.SGD
        return [sgd(groups(named), lr=lr, **options)]
    vectors = options.pop("decay_vectors", True)
    if name in ADAM:
        kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
        return [kind(groups(named, vectors), lr=lr, weight_decay=options.get("weight_decay", 0.0), **adam)]
    matrices = {key: p for key, p in named.items() if p.ndim > 1}
    others = {key: p for key, p in named.items() if p.ndim <= 1}
    decay, momentum = options.get("weight_decay", 0.0), options.get("momentum", 0.95)
    found: list[Optimizer] = [Muon(groups(matrices), lr, decay, momentum)] if matrices else []
    return [*found, torch.optim.AdamW(groups(others), lr=lr, weight_decay=decay, **adam)] if others else found


def set_rate(found: Sequence[Optimizer], rate: float | Tensor) -> None:
    """Set the learning rate of this step."""
    for optimiser in found:
        for group in optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].copy_(rate * group["factor"])
            else:
                group["lr"] = float(rate) * group["factor"]
