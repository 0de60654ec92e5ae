"""Where a cell stands, on disk: state and rows of each seed. Replaced whole; refused if damaged or not its own."""

import hashlib
import io
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from paper.files import sweep
from paper.plan import digest, key
from paper.store import write_bytes


class Checkpoint:
    """The file of one cell.

    Args:
        folder: where checkpoints are.
        cell: the cell's spec.
    """

    def __init__(self, folder: Path, cell: Mapping[str, Any]) -> None:
        self.path = folder / cell["scale"] / f"{key(dict(cell))}.pt"
        self.digest = digest(dict(cell))

    def read(self) -> tuple[dict[int, dict[str, Any]], str | None]:
        """State by seed (epoch, state, rows, seconds), and a remark if a file was there that cannot be used."""
        if not self.path.exists():
            return {}, None
        try:
            raw = self.path.read_bytes()
            if hashlib.sha256(raw[32:]).digest() != raw[:32]:
                raise ValueError("its digest is wrong")
            content = torch.load(io.BytesIO(raw[32:]), weights_only=True)
            if content["digest"] != self.digest:
                raise ValueError("it is of other settings")
        except (OSError, ValueError, KeyError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
            self.remove()
            return {}, f"checkpoint {self.path.name} cannot be used ({error}); starting anew"
        return content["seeds"], None

    def write(self, seeds: Mapping[int, Mapping[str, Any]]) -> None:
        """Replace the file."""
        buffer = io.BytesIO()
        torch.save({"digest": self.digest, "seeds": {seed: dict(held) for seed, held in seeds.items()}}, buffer)
        body = buffer.getvalue()
        write_bytes(self.path, hashlib.sha256(body).digest() + body)

    def remove(self) -> None:
        """Delete the file, what killed writes left beside it, and folders that are empty without them."""
        self.path.unlink(missing_ok=True)
        sweep(self.path.parent)
        for folder in self.path.parents[:4]:
            try:
                os.rmdir(folder)
            except OSError:
                break
