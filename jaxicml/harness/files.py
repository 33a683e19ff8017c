"""Writing that leaves the old or the new, never half of each."""

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["write_file", "write_folder"]


def write_file(path: Path, data: bytes) -> None:
    """Writes one file in one step, with the folders above it.

    Args:
        path: where; an older file there is replaced.
        data: the bytes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=path.parent) as work:
        (Path(work) / path.name).write_bytes(data)
        os.replace(Path(work) / path.name, path)


def write_folder(
    folder: Path, files: Mapping[str, bytes], *, index: str, stale: Iterable[str] = ()
) -> None:
    """Replaces a set of files together; other files of the folder stay untouched.

    Everything is written beside first. Then the old index goes first and the new one comes last,
    so that whoever reads the index finds the files that belong to it. An error on the way puts
    the old files back.

    Args:
        folder: where; made when missing.
        files: file name to bytes; holds `index`.
        index: the file that tells a reader that the set is whole.
        stale: file names of the older set that leave with it.
    """
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".writing-", dir=folder) as work:
            new, old = Path(work) / "new", Path(work) / "old"
            new.mkdir()
            old.mkdir()
            for name, data in files.items():
                (new / name).write_bytes(data)
            _exchange(folder, new, old, index, sorted({*files, *stale} - {index}))
    except BaseException:
        if made:
            folder.rmdir()
        raise


def _exchange(folder: Path, new: Path, old: Path, index: str, others: list[str]) -> None:
    taken, placed = [], []
    try:
        for name in [index, *others]:
            if (folder / name).exists():
                os.replace(folder / name, old / name)
                taken.append(name)
        for name in [*others, index]:
            if (new / name).exists():
                os.replace(new / name, folder / name)
                placed.append(name)
    except BaseException:
        for name in placed:
            (folder / name).unlink()
        for name in reversed(taken):
            (old / name).rename(folder / name)
        raise
