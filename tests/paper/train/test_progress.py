"""What a person or a log is told about training."""

import io
import re

import pytest

from paper.train import progress
from paper.train.progress import Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by hand."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_terminal_gets_a_bar(clock):
    stream = Terminal()
    shown = Progress("net", 4, 1000, stream)
    shown.start(0)
    for epoch, loss in ((1, 2.5), (2, 1.25), (3, 0.123456), (4, 0.1)):
        clock[0] += 30
        shown.tell(epoch, loss)
    text = stream.getvalue()
    assert text.count("\r") == 4
    assert text.count("\n") == 1
    assert text.endswith("\n")
    lines = text.split("\r")[1:]
    assert lines[0].rstrip() == "net [#####---------------] epoch 1/4  loss 2.5  33 images/s  1:30 left"
    assert lines[1].rstrip() == "net [##########----------] epoch 2/4  loss 1.25  33 images/s  1:00 left"
    assert lines[2].rstrip() == "net [###############-----] epoch 3/4  loss 0.1235  33 images/s  0:30 left"
    assert lines[3].rstrip() == "net [####################] epoch 4/4  loss 0.1  33 images/s  0:00 left"


def test_a_shorter_bar_covers_a_longer_one(clock):
    stream = Terminal()
    shown = Progress("net", 3, 1000, stream)
    shown.start(0)
    for epoch, loss, seconds in ((1, 0.123456, 10_000), (2, 2, 1), (3, 1, 1)):
        clock[0] += seconds
        shown.tell(epoch, loss)
    lengths = [len(line.rstrip("\n")) for line in stream.getvalue().split("\r")[1:]]
    assert lengths == sorted(lengths)


def test_a_log_gets_a_line_now_and_then_and_the_last_epoch(clock):
    stream = io.StringIO()
    shown = Progress("net", 100, 1000, stream)
    shown.start(0)
    for epoch in range(1, 101):
        clock[0] += 1
        shown.tell(epoch, 1.0)
    lines = stream.getvalue().splitlines()
    assert "\r" not in stream.getvalue()
    assert [int(re.search(r"epoch (\d+)/100", line)[1]) for line in lines] == [1, *range(6, 100, 5), 100]
    assert lines[1] == "net: epoch 6/100  loss 1  1,000 images/s  1:34 left"
    assert lines[-1] == "net: epoch 100/100  loss 1  1,000 images/s  0:00 left"


def test_time_left_counts_from_where_training_went_on(clock):
    stream = io.StringIO()
    shown = Progress("net", 10, 500, stream)
    clock[0] += 1000  # making ready is not training
    shown.start(6)
    clock[0] += 60
    shown.tell(7, float("nan"))
    assert stream.getvalue() == "net: epoch 7/10  loss nan  8 images/s  3:00 left\n"


def test_no_time_at_all_is_not_an_error(clock):
    stream = io.StringIO()
    shown = Progress("net", 2, 500, stream)
    shown.start(0)
    shown.tell(1, 1.0)
    shown.start(1)
    shown.tell(1, 1.0)
    assert "nan images/s" in stream.getvalue()


def test_it_is_told_on_stderr(capsys):
    shown = Progress("net", 1, 500)
    shown.start(0)
    shown.tell(1, 1.0)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("net: epoch 1/1  loss 1  ")
