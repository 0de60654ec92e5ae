"""How far training is: a bar for a person, lines for a log."""

import sys
import time
from typing import TextIO


class Progress:
    """Tells after each epoch where training stands.

    Args:
        title: what is trained.
        epochs: how many there are.
        images: seen by all runs together in one epoch.
        stream: where to tell it; a terminal gets a bar, anything else a line now and then.
    """

    pause = 5.0  # seconds between two lines of a log

    def __init__(self, title: str, epochs: int, images: int, stream: TextIO | None = None) -> None:
        self.title, self.epochs, self.images = title, epochs, images
        self.stream = stream or sys.stderr
        self.watched = self.stream.isatty()
        self.began, self.first, self.told, self.width = time.monotonic(), 0, 0.0, 0

    def start(self, epoch: int) -> None:
        """Training goes on after this epoch."""
        self.began, self.first = time.monotonic(), epoch

    def tell(self, epoch: int, loss: float) -> None:
        """An epoch is done."""
        now = time.monotonic()
        last = epoch == self.epochs
        if not self.watched and not last and now - self.told < self.pause:
            return
        self.told = now
        done, taken = epoch - self.first, now - self.began
        left = taken / done * (self.epochs - epoch) if done else float("nan")
        speed = done * self.images / taken if taken > 0 else float("nan")
        text = f"epoch {epoch}/{self.epochs}  loss {loss:.4g}  {speed:,.0f} images/s  {_clock(left)} left"
        if self.watched:
            filled = round(20 * epoch / self.epochs)
            bar = "#" * filled + "-" * (20 - filled)
            line = f"{self.title} [{bar}] {text}"
            self.width = max(self.width, len(line))  # spaces over what a longer line left
            self.stream.write(f"\r{line:<{self.width}} " + ("\n" if last else ""))
        else:
            self.stream.write(f"{self.title}: {text}\n")
        self.stream.flush()


def _clock(seconds: float) -> str:
    if seconds != seconds:  # not known yet
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
