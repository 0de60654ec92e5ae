"""The progress bar: it names the call and its step in a terminal, after a delay, and is removed at the end."""

import io
import sys
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
    """Each call lasts until the bar was written twice: the second time shows a step that had begun."""

    def forward(self, x):
        written = sys.stderr.getvalue().count("\r")
        for _ in range(100_000):
            if sys.stderr.getvalue().count("\r") >= written + 2:
                break
            time.sleep(0.001)
        return super().forward(x)


@pytest.fixture
def layers():
    return nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)


def test_bar_names_the_step_and_is_removed(layers, monkeypatch):
    monkeypatch.setattr(progress, "_DELAY", 0.02)
    monkeypatch.setattr(progress, "_PERIOD", 0.01)
    monkeypatch.setattr("sys.stderr", Terminal())
    pathcond.rescale_(Slow(*layers), torch.ones(1, 3))
    *shown, last = sys.stderr.getvalue().removesuffix("\r").split("\r")
    assert all(text.startswith("pathcond.rescale_ [") for text in shown if text)
    steps = ["".join(shown).find(f"] {step}") for step in ("check", "graph")]  # which call the model
    assert -1 not in steps
    assert steps == sorted(steps)
    assert last.strip() == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_short_calls_and_logs_are_silent(layers, monkeypatch, terminal):
    monkeypatch.setattr("sys.stderr", Terminal() if terminal else io.StringIO())
    monkeypatch.setattr(progress, "_DELAY", 600 if terminal else 0.001)
    pathcond.rescale_(nn.Sequential(*layers), torch.ones(1, 3))
    assert sys.stderr.getvalue() == ""


def test_bar_ends_with_an_error(monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    with pytest.raises(pathcond.PathCondError):
        pathcond.rescale_(nn.Linear, torch.ones(1, 3))
    assert progress._current.get() is None
