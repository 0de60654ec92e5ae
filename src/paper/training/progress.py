"""Progress of training: a tqdm bar in a terminal, a line every few seconds in a log."""

import sys
import time
from types import TracebackType

from tqdm import tqdm

LOG_SECONDS = 5.0  # between two lines of a log


class Progress:
    """Progress of some runs over their epochs.

    Args:
        title: what is trained.
        epochs: number of epochs of each run.
        first: epochs already completed.
        images: number of images, or windows of a text, that all runs together see in one epoch.
        unit: what they are called.
    """

    def __init__(self, title: str, epochs: int, first: int, images: int, unit: str = "images") -> None:
        self.title, self.images, self.unit = title, images, unit
        self.bar = tqdm(total=epochs, initial=first, desc=title, unit="epoch", disable=not sys.stderr.isatty())
        self.epoch, self.first, self.epochs = first, first, epochs
        self.began, self.logged = time.monotonic(), -LOG_SECONDS

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.close()

    def update(self, loss: float) -> None:
        """Report one more epoch, with the loss after it."""
        self.epoch += 1
        now = time.monotonic()
        speed = (self.epoch - self.first) * self.images / max(now - self.began, 1e-9)
        self.bar.set_postfix_str(f"loss {loss:.4g}, {speed:,.0f} {self.unit}/s", refresh=False)
        self.bar.update()
        if self.bar.disable and (self.epoch == self.epochs or now - self.logged >= LOG_SECONDS):
            self.logged = now
            left = (now - self.began) / (self.epoch - self.first) * (self.epochs - self.epoch)
            text = f"epoch {self.epoch}/{self.epochs}  loss {loss:.4g}  {speed:,.0f} {self.unit}/s"
            sys.stderr.write(f"{self.title}: {text}  {tqdm.format_interval(left)} left\n")
            sys.stderr.flush()
