"""Lines for the reader while data are fetched: overwritten at a terminal, few in a log."""

import sys
from collections.abc import Callable
from typing import TextIO

from paper.cli import shown

Say = Callable[[str], None]


class Terminal:
    r"""Says lines on a stream; at a terminal, one that starts with `\r` is overwritten by the next.

    Attributes:
        live: whether the stream is a terminal.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self.live = self._stream.isatty()
        self._open = 0

    def __call__(self, text: str) -> None:
        """Says one line."""
        stays = not text.startswith("\r")
        line = shown(text.removeprefix("\r"))
        start = "\r" if self._open else ""
        self._stream.write(start + line.ljust(self._open) + ("\n" if stays else ""))
        self._stream.flush()
        self._open = 0 if stays else len(line)


class Progress:
    """Says how much of a download is there, at every change at a terminal, else at every tenth.

    Args:
        title: what is downloaded.
        total: its bytes.
        say: takes the lines; overwrites are sent if it has a true `live`.
    """

    def __init__(self, title: str, total: int, say: Say) -> None:
        self._title, self._total, self._say = title, max(total, 1), say
        self._live = bool(getattr(say, "live", False))
        self._tenths, self._said = 0, ""

    def update(self, done: int) -> None:
        """Takes the bytes that are there now."""
        done = min(done, self._total)
        text = f"{self._title}: {_megabytes(done)} of {_megabytes(self._total)} MB"
        tenths = 10 * done // self._total
        line = "\r" + text if self._live and tenths < 10 else text
        if line != self._said and (self._live or tenths > self._tenths):
            self._tenths, self._said = tenths, line
            self._say(line)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.0f}"
