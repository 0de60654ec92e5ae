"""Run a command in this process as `python -m` does, and check that a command is refused properly."""

import runpy
import signal
import sys
import warnings
from pathlib import Path

import pytest

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Place:
    """A folder that commands run in."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._patch, self._output = folder, monkeypatch, capsys
        monkeypatch.chdir(folder)

    def call(self, program: str, *words: object) -> tuple[int, str]:
        """Exit status and messages of `python -m paper.PROGRAM WORDS`; any other exception is a traceback."""
        self._patch.setattr(sys, "argv", [program, *map(str, words)])
        self._output.readouterr()
        kept = {number: signal.getsignal(number) for number in SIGNALS}
        status: object = 0
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", ".*found in sys.modules.*", RuntimeWarning
                )  # it is: as in a fresh one
                runpy.run_module(f"paper.{program}", run_name="__main__", alter_sys=True)
        except SystemExit as stop:
            status = stop.code or 0
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)
        assert isinstance(status, int)
        return status, self._output.readouterr().err

    def refused(self, program: str, *words: object) -> str:
        """The message of a command that must be refused: status 2, no traceback, no file created or changed."""
        before = self.files()
        status, said = self.call(program, *words)
        assert status == 2, said
        assert "error: " in said
        assert "Traceback" not in said
        assert self.files() == before
        return said

    def files(self) -> dict[str, bytes]:
        """Content of every file except lock files, which may remain."""
        found = (path for path in self.folder.rglob("*") if path.is_file() and not path.name.endswith(".lock"))
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in found}
