"""A file of rows on this machine's disk, of which each is found by its number."""

import os
import weakref
from array import array
from pathlib import Path

from common.formats.jsonl import MAX_ROW_BYTES, Row, offsets, parse_row


class RowFile:
    """Rows of a checked file. Its name is gone once it is open, so that nothing stays when the process ends."""

    def __init__(self, path: Path) -> None:
        """Raises: OSError."""
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        with path.open("rb") as lines:
            self._places = array("Q", offsets(iter(lines)))
        path.unlink()

    def __len__(self) -> int:
        return len(self._places)

    def row(self, number: int) -> Row:
        """Raises: ValueError where the file is not what was checked."""
        line = os.pread(self._file, MAX_ROW_BYTES + 1, self._places[number]).partition(b"\n")[0]
        row = parse_row(line)
        if row is None:
            raise ValueError(f"row {number} is empty")
        return row
