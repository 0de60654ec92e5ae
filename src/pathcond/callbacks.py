"""Rescale inside training frameworks: ``LightningRescale`` (PyTorch Lightning) and ``TrainerRescale`` (Hugging Face).

Both packages are optional. A package is imported when its class is first accessed.

    from pathcond.callbacks import LightningRescale

    trainer = lightning.Trainer(callbacks=[LightningRescale()])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from pathcond.checks import PathCondError, check_period, optional_package
from pathcond.rescale import DEFAULT_CLAMP, Rescaling, rescale_


@dataclass(kw_only=True, eq=False)
class _Callback:
    """Rescale before the first epoch, or before every ``every``-th.

    Args:
        every: number of epochs between two rescalings; the first is before training. None: only that one.
        module: name of the submodule to rescale, such as ``"net"``; None for the whole model.
        inputs: maps a batch to the example input of :func:`pathcond.rescale_`.
        objective, clamp, damping, check, trainable_only: as in :func:`pathcond.rescale_`.

    Attributes:
        reports: the :class:`pathcond.Rescaling` of each rescaling.
    """

    every: int | None = None
    module: str | None = None
    inputs: Callable[[Any], Any] | None = None
    objective: Literal["paths", "norms"] = "paths"
    clamp: float | None = DEFAULT_CLAMP
    damping: float | None = None
    check: bool = True
    trainable_only: bool = False
    reports: list[Rescaling] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.every is not None:
            check_period(self.every)

    def _due(self, epoch: float) -> bool:
        """Whether to rescale before an epoch, counted from 0; the same in a run that resumes from a checkpoint."""
        return epoch == 0 if self.every is None else epoch % self.every == 0

    def _rescale(self, model: nn.Module, example_input: Any, optimizer: Optimizer | None) -> None:
        options = ("objective", "clamp", "damping", "check", "trainable_only")
        given: dict[str, Any] = {name: getattr(self, name) for name in options}
        graph = self.reports[0].graph if self.reports else None
        part = model.get_submodule(self.module or "")
        self.reports.append(rescale_(part, example_input, optimizer=optimizer, graph=graph, **given))


class _LightningRescale(_Callback):
    """Rescale in PyTorch Lightning.

    The module's ``forward`` runs on the first batch of the epoch, or on its first element if it is a tuple or list.
    All ranks use the batch of rank 0.
    """

    def on_train_batch_start(self, trainer: Any, pl_module: nn.Module, batch: Any, batch_idx: int) -> None:
        """Rescale before the first batch of an epoch."""
        if batch_idx or not self._due(trainer.current_epoch):
            return
        optimizers, strategy = trainer.optimizers, trainer.strategy
        if len(optimizers) != 1:
            raise PathCondError(f"expected one optimizer, got {len(optimizers)}. Call pathcond.rescale_ itself.")
        example = self.inputs(batch) if self.inputs else batch[0] if isinstance(batch, (tuple, list)) else batch
        self._rescale(pl_module, strategy.batch_to_device(strategy.broadcast(example)), optimizers[0])


class _TrainerRescale(_Callback):
    """Rescale in the Hugging Face ``Trainer``.

    The model runs on a batch of the first examples of the training set, without their ``labels``.
    """

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Rescale before an epoch."""
        if not self._due(state.epoch or 0):
            return
        loader, optimizer = kwargs["train_dataloader"], kwargs["optimizer"]
        with torch.random.fork_rng():  # does not change the order of the training examples
            count = min(args.per_device_train_batch_size, len(loader.dataset))
            batch = loader.collate_fn([loader.dataset[i] for i in range(count)])
        batch = {name: x.to(args.device) if isinstance(x, torch.Tensor) else x for name, x in batch.items()}
        example = self.inputs(batch) if self.inputs else {name: x for name, x in batch.items() if name != "labels"}
        self._rescale(kwargs["model"], example, getattr(optimizer, "optimizer", optimizer))


_CLASSES: dict[str, tuple[type[_Callback], str, str]] = {
    "LightningRescale": (_LightningRescale, "lightning.pytorch.callbacks", "Callback"),
    "TrainerRescale": (_TrainerRescale, "transformers", "TrainerCallback"),
}


def __getattr__(name: str) -> Any:
    """Create a callback class on first access, because its base class comes from an optional package."""
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(_CLASSES)}")
    ours, module, base = _CLASSES[name]
    parent = getattr(optional_package(module, name), base)
    about = {"__module__": __name__, "__doc__": f"{ours.__doc__}\n    {_Callback.__doc__}"}
    return globals().setdefault(name, type(name, (ours, parent), about))
