"""A progress bar on the terminal for calls that take longer than ten seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_DELAY, _PERIOD = 10.0, 0.5  # seconds before the bar appears, and between two updates
_WIDTH = 20  # characters of the bar


class _Bar:
    """The title of a call and its present step, written by a thread of its own until the call ends."""

    def __init__(self, title: str) -> None:
        self.title, self.step, self.done = title, "begun", 0.0
        self._begun, self._ended = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _write(self) -> None:
        wait, width = _DELAY, 0
        while not self._ended.wait(wait):
            bar = "#" * round(_WIDTH * self.done)
            text = f"pathcond.{self.title} [{bar:.<{_WIDTH}}] {self.step}, {time.monotonic() - self._begun:.0f} s"
            sys.stderr.write(f"\r{text:<{width}}")
            sys.stderr.flush()
            wait, width = _PERIOD, len(text)
        if width:
            sys.stderr.write(f"\r{'':<{width}}\r")


_current: ContextVar[_Bar | None] = ContextVar("bar", default=None)


def at_step(step: str, done: float | None = None) -> None:
    """Name the present step of the call, and the fraction of its steps that are done if it is known."""
    if bar := _current.get():
        bar.step, bar.done = step, bar.done if done is None else done


@contextmanager
def progress(title: str) -> Iterator[None]:
    """Show a bar while a call runs, in a terminal or a notebook; none within another call that shows one."""
    seen = "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())
    if not seen or _current.get():
        yield
        return
    bar = _Bar(title)
    token = _current.set(bar)
    try:
        yield
    finally:
        _current.reset(token)
        bar.end()
