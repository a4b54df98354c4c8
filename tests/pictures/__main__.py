"""Writes the pictures: `python -m tests.pictures`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.pictures import FOLDER, PICTURES, write

if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        write(Path(folder))
    print(f"wrote {', '.join(PICTURES)} to {FOLDER}")
