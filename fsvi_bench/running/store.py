"""The output folder: one folder per cell, each file whole or absent, the record last."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from fsvi_bench.errors import InputError
from fsvi_bench.files import require_writable_directory, write_atomically
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.posteriors.io import write_posterior
from fsvi_bench.running.cell import Cell, Record
from fsvi_bench.training.trace import Trace, read_trace

TRACE_FILE = "trace.csv"


class Store:
    """Records and posteriors beneath one folder.

    Raises:
        InputError: the folder cannot be made or written.
    """

    def __init__(self, root: Path) -> None:
        require_writable_directory(root, "output folder", "choose another with --out")
        self.root = root

    def load_trace(self, folder: str) -> Trace | None:
        """The trace in a cell's folder, or None if its method has none.

        Raises:
            InputError: the file is not a trace.
        """
        path = self.root / folder / TRACE_FILE
        return read_trace(path) if path.is_file() else None

    def load(self, cell: Cell) -> Record | None:
        """A cell's finished record, or None. A record is written after its posterior, so it marks the cell finished.

        Raises:
            InputError: a file lies there that is not this cell's record; it is never overwritten unseen.
        """
        path = self.root / cell.folder / "record.json"
        try:
            record = Record.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise InputError(
                f"{path} is not a valid record ({type(error).__name__}); move it away and run again"
            ) from error
        if record.cell != cell.key:
            raise InputError(f"{path} is the record of another cell; move it away and run again")
        return record

    def save(self, cell: Cell, record: Record, posterior: Posterior | None, trace: Trace | None = None) -> None:
        """Writes a cell's trace and posterior (if it has them), then its record, each atomically."""
        folder = self.root / cell.folder
        if trace is not None:
            write_atomically(folder / TRACE_FILE, trace.to_csv().encode())
        if posterior is not None:
            write_posterior(folder / "posterior.safetensors", posterior, cell.task_sha256)
        write_atomically(folder / "record.json", (record.model_dump_json(indent=2) + "\n").encode())
