"""The state of an optimizer that belongs to parameters, and how a rescaling changes it.

A parameter multiplied by s has its gradients divided by s. Averages of gradients in an optimizer's state are therefore
divided by s, and averages of squared gradients by s**2. Without weight decay, and up to the small ``eps`` that some
optimizers add, the state is then what the optimizer would hold had it seen the rescaled model throughout.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn, optim

from pathcond.checks import PathCondError, shared_memory

# Powers of the gradient in optimizer state: 1 for averages of gradients, 2 for averages of squares, 0 for ratios.
_ADAM = {"exp_avg": 1, "exp_avg_sq": 2, "max_exp_avg_sq": 2}
OPTIMIZER_STATE: dict[type[optim.Optimizer], dict[str, int]] = {
    optim.SGD: {"momentum_buffer": 1},
    optim.Adam: _ADAM,
    optim.AdamW: _ADAM,
    optim.NAdam: _ADAM,
    optim.RAdam: _ADAM,
    optim.Adamax: {"exp_avg": 1, "exp_inf": 1},
    optim.RMSprop: {"square_avg": 2, "grad_avg": 1, "momentum_buffer": 0},
    optim.Adagrad: {"sum": 2},
    optim.Adadelta: {"square_avg": 2, "acc_delta": 0},
}
if hasattr(optim, "Muon"):  # since torch 2.9
    OPTIMIZER_STATE[optim.Muon] = {"momentum_buffer": 1}


def optimizer_buffers(
    model: nn.Module, names: Iterable[str], optimizer: optim.Optimizer | None
) -> dict[str, list[tuple[Tensor, int]]]:
    """The optimizer's state of the named parameters: tensors, and the power of the gradient each is made of.

    Raises:
        PathCondError: ``optimizer`` is no optimizer, belongs to another model, or has state that cannot be rescaled.
    """
    if optimizer is None:
        return {name: [] for name in names}
    parameters = dict(model.named_parameters())
    holders = {name: [parameters[name]] for name in names if name in parameters}
    for other, name in shared_memory(model)[0].items():  # the same values, but a state of its own
        if name in holders:
            holders[name].append(parameters[other])
    if not isinstance(optimizer, optim.Optimizer):
        raise PathCondError(
            f"expected optimizer to be a torch.optim.Optimizer or None, got {type(optimizer).__name__}."
        )
    ours = {id(p) for group in holders.values() for p in group}
    if ours and not any(id(p) in ours for group in optimizer.param_groups for p in group["params"]):
        raise PathCondError("expected the optimizer of this model, got one that holds none of the rescaled parameters.")
    powers = next((powers for kind, powers in OPTIMIZER_STATE.items() if isinstance(optimizer, kind)), None)
    found: dict[str, list[tuple[Tensor, int]]] = {name: [] for name in holders}
    for name, group in holders.items():
        for p in group:
            for key, value in optimizer.state.get(p, {}).items():
                if not isinstance(value, Tensor) or (value.numel() == 1 and (value.shape != p.shape or key == "step")):
                    continue  # step counts and other scalars
                if powers is None or key not in powers or value.shape != p.shape:
                    known = ", ".join(kind.__name__ for kind in OPTIMIZER_STATE)
                    raise PathCondError(
                        f"expected the state of one of {known}, got {key!r} of {type(optimizer).__name__} for "
                        f"parameter '{name}', whose change under a rescaling is not known. Nothing was changed. Use "
                        "such an optimizer, or pass optimizer=None to leave the state as it is."
                    )
                found[name].append((value, powers[key]))
    return found
