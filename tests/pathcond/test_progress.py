"""The progress bar: it names the call and its step in a terminal, after a delay, and is removed at the end."""

import io
import time

import pytest
import torch
from torch import nn

import pathcond
from pathcond import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Slow(nn.Sequential):
    def forward(self, x):
        time.sleep(0.05)
        return super().forward(x)


@pytest.fixture
def model():
    return Slow(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


def test_bar_names_the_step_and_is_removed(model, monkeypatch):
    monkeypatch.setattr(progress, "_DELAY", 0.02)
    monkeypatch.setattr(progress, "_PERIOD", 0.01)
    monkeypatch.setattr("sys.stderr", Terminal())
    pathcond.rescale_(model, torch.ones(1, 3))
    *shown, last = progress.sys.stderr.getvalue().removesuffix("\r").split("\r")
    assert all(text.startswith("pathcond.rescale_ [") for text in shown if text)
    steps = ["".join(shown).find(f"] {step}") for step in ("check", "graph")]  # which call the model
    assert -1 not in steps
    assert steps == sorted(steps)
    assert last.strip() == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_short_calls_and_logs_are_silent(model, monkeypatch, terminal):
    monkeypatch.setattr("sys.stderr", Terminal() if terminal else io.StringIO())
    monkeypatch.setattr(progress, "_DELAY", progress._DELAY if terminal else 0.001)
    pathcond.rescale_(model, torch.ones(1, 3))
    assert progress.sys.stderr.getvalue() == ""


def test_bar_ends_with_an_error(monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    with pytest.raises(pathcond.PathCondError):
        pathcond.rescale_(nn.Linear, torch.ones(1, 3))
    assert progress._current.get() is None
