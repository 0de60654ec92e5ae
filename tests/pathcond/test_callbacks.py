"""Callbacks, run by the real packages: same function, carried state, and training that continues."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pathcond import PathCondError, callbacks

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages
X = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(24) % 2


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))


def watch(callback: Any, model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """What no rescaling changes, before and after each one of a callback: outputs, and weights times their averages."""
    inner, found = callback._rescale, []

    def invariants(optimizer: Any) -> Tensor:
        averages = [p.detach() * optimizer.state[p].get("exp_avg", torch.zeros(1)) for p in model.parameters()]
        return torch.cat([t.reshape(-1) for t in (model(X).detach(), *averages)])

    def rescale(of: nn.Module, x: Any, optimizer: Any) -> None:
        assert isinstance(x, Tensor) or set(x) == {"x"}, "no labels"
        before = invariants(optimizer)
        inner(of, x, optimizer)
        found.append((before, invariants(optimizer)))

    callback._rescale = rescale
    return found


def check(watched: list[tuple[Tensor, Tensor]], callback: Any, times: int, losses: list[float]) -> None:
    assert len(watched) == times
    for before, after in watched:
        torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-7)
    assert callback.reports[0].moved > 8
    assert all(report.graph is callback.reports[0].graph for report in callback.reports), "extracted once"
    assert len(losses) == 12
    assert sum(losses[-3:]) < sum(losses[:3])


@pytest.mark.parametrize(("every", "times"), [(None, 1), (2, 2)])
def test_lightning(tmp_path: Path, every: int | None, times: int) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.losses = network(), list[float]()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.01, weight_decay=0.0)

    module, callback = Module(), callbacks.LightningRescale(every=every, module="net")
    watched = watch(callback, module.net)
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=4, callbacks=[callback], logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(module, DataLoader(TensorDataset(X, Y), batch_size=8))
    check(watched, callback, times, module.losses)


@pytest.mark.parametrize(("every", "times"), [(None, 1), (2, 2)])
def test_hugging_face_trainer(tmp_path: Path, every: int | None, times: int) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            logits = self.net(x)
            loss = {} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)}
            return loss | {"logits": logits}

    def train(callback: Any, folder: Path, epochs: int = 4, resume: bool = False) -> tuple[Model, Any]:
        model = Model()
        watches.append(watch(callback, model.net))
        arguments = transformers.TrainingArguments(
            output_dir=str(folder), num_train_epochs=epochs, per_device_train_batch_size=8, learning_rate=0.01, seed=0,
            weight_decay=0.0, use_cpu=True, report_to=[], save_strategy="epoch", disable_tqdm=True, logging_steps=1,
            lr_scheduler_type="constant",
        )  # fmt: skip
        data = [{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)]
        trainer = transformers.Trainer(model, arguments, train_dataset=data, callbacks=[callback])
        trainer.train(resume_from_checkpoint=resume)
        return model, trainer

    watches: list[list[tuple[Tensor, Tensor]]] = []
    callback = callbacks.TrainerRescale(every=every)
    model, trainer = train(callback, tmp_path / "a")
    history = trainer.state.log_history
    check(watches[0], callback, times, [entry["loss"] for entry in history if "loss" in entry])
    # A run in two halves rescales at the same epochs and ends with the same weights.
    train(callbacks.TrainerRescale(every=every), tmp_path / "b", epochs=2)
    again = callbacks.TrainerRescale(every=every)
    halves, _ = train(again, tmp_path / "b", resume=True)
    assert len(again.reports) == times - 1
    for p, q in zip(model.parameters(), halves.parameters(), strict=True):
        torch.testing.assert_close(p, q)


@pytest.mark.parametrize("name", callbacks._CLASSES)
def test_the_packages_are_optional(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, module, _ = callbacks._CLASSES[name]
    package = module.partition(".")[0]
    for missing in (package, module):
        monkeypatch.setitem(sys.modules, missing, None)
    fresh = runpy.run_path(callbacks.__file__)  # imports neither
    with pytest.raises(PathCondError, match=f"expected the package {package} for {name}"):
        fresh["__getattr__"](name)
