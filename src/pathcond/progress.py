"""A progress bar on the terminal for calls that take longer than ten seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_DELAY, _PERIOD = 10.0, 0.5  # seconds before the bar appears, and between two updates
_WIDTH = 20  # characters of the bar


_current: ContextVar[dict[str, Any] | None] = ContextVar("step", default=None)


def at_step(step: str, done: float | None = None) -> None:
    """Name the present step of the call, and the fraction of its steps that are done if it is known."""
    if (current := _current.get()) is not None:
        current.update({"step": step} if done is None else {"step": step, "done": done})


@contextmanager
def progress(title: str) -> Iterator[None]:
    """Show a bar while a call runs, in a terminal or a notebook; none within another call that shows one."""
    seen = "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())
    if not seen or _current.get() is not None:
        yield
        return
    current: dict[str, Any] = {"step": "begun", "done": 0.0}
    begun, ended = time.monotonic(), threading.Event()

    def write() -> None:
        wait, width = _DELAY, 0
        while not ended.wait(wait):
            bar = "#" * round(_WIDTH * current["done"])
            text = f"pathcond.{title} [{bar:.<{_WIDTH}}] {current['step']}, {time.monotonic() - begun:.0f} s"
            sys.stderr.write(f"\r{text:<{width}}")
            sys.stderr.flush()
            wait, width = _PERIOD, len(text)
        if width:
            sys.stderr.write(f"\r{'':<{width}}\r")

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    token = _current.set(current)
    try:
        yield
    finally:
        _current.reset(token)
        ended.set()
        thread.join()
