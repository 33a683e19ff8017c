"""Named files out of an untrusted archive.

Only regular files that are asked for are written, each under the name that was asked for and after
its size was compared with the one expected; nothing is extracted wholesale. Any member whose path
leads out of the archive condemns the archive. What is decompressed on the way is bounded.
"""

import contextlib
import gzip
import hashlib
import io
import lzma
import stat
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxicml.data.sources import File

__all__ = ["SUFFIXES", "ArchiveError", "take_file", "unpack"]

SUFFIXES = (".whl", ".zip", ".tar.gz", ".tgz", ".deb")
"""Archives that can be read."""

_BLOCK = 1 << 20
"""Bytes copied at a time."""

_DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,  # a compression that zipfile does not know
    RuntimeError,  # an encrypted member of a zip file
    gzip.BadGzipFile,
)


class ArchiveError(ValueError):
    """An archive that is damaged, hostile, or does not hold what it should."""


@runtime_checkable
class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; none at the end."""
        ...


class _Member(NamedTuple):
    path: str
    size: int
    is_regular: bool
    open: Callable[[], Any]


def unpack(archive: Path, files: Sequence[File], into: Path, *, limit: int = 1 << 28) -> None:
    """Writes the named files of an archive below a folder, each checked.

    Args:
        archive: a wheel, a zip file, a gzipped tar file or a Debian package.
        files: what to take. Paths are those inside the package: the top folder of a source
            archive (`NAME-VERSION/`, `package/`) is no part of them.
        into: the folder.
        limit: bytes that may be unpacked on the way.

    Raises:
        ArchiveError: it is damaged or truncated, a path leads out of it, a named member is
            missing, is no regular file, or has another size or content.
    """
    wanted = {file.path: file for file in files}
    try:
        with _open(archive, limit) as members:
            for member in members:
                _check_inside(archive, member.path)
                if file := wanted.get(member.path):
                    _check_member(archive, member, file)
                    with member.open() as stream:
                        take_file(stream, file, into)
                    del wanted[member.path]
                if not wanted:
                    break
    except _DAMAGE as error:
        raise ArchiveError(f"{archive.name}: damaged or truncated archive ({error})") from error
    if wanted:
        raise ArchiveError(f"{archive.name}: expected to hold {', '.join(wanted)}, but does not")


def take_file(stream: Readable, file: File, into: Path) -> None:
    """Copies one file below a folder, up to its size, and compares its hash.

    Raises:
        ArchiveError: other content, or more or less of it.
    """
    digest = hashlib.sha256()
    target = into / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    left = file.size
    with target.open("wb") as out:
        while left and (block := stream.read(min(_BLOCK, left))):
            digest.update(block)
            out.write(block)
            left -= len(block)
    if left:
        raise ArchiveError(f"{file.path}: expected {file.size} bytes, got {file.size - left}")
    if stream.read(1):
        raise ArchiveError(f"{file.path}: expected {file.size} bytes, got more")
    if digest.hexdigest() != file.sha256:
        raise ArchiveError(f"{file.path}: expected SHA-256 {file.sha256}, got {digest.hexdigest()}")


def _check_inside(archive, path) -> None:
    if path.startswith("/") or "\\" in path or ".." in PurePosixPath(path).parts:
        raise ArchiveError(f"{archive.name}: member {path!r} leads out of the archive")


def _check_member(archive, member, file) -> None:
    if not member.is_regular:
        raise ArchiveError(f"{archive.name}: member {member.path} is a link or no regular file")
    if member.size != file.size:
        raise ArchiveError(
            f"{archive.name}: expected {member.path} to have {file.size} bytes, got {member.size}"
        )


def _open(archive: Path, limit: int):
    """The members of an archive, in a context that closes it."""
    name = archive.name.lower()
    if name.endswith((".whl", ".zip")):
        return _zip_members(archive, top=not name.endswith(".whl"))
    if name.endswith(".deb"):
        return _deb_members(archive, limit)
    if name.endswith((".tar.gz", ".tgz")):
        return _tar_members(gzip.open(archive), limit, top=True)
    raise ArchiveError(f"{archive.name}: expected one of {', '.join(SUFFIXES)}")


@contextlib.contextmanager
def _zip_members(archive, top):
    with zipfile.ZipFile(archive) as file:
        yield (
            _Member(
                _below_top(info.filename) if top else info.filename,
                info.file_size,
                not info.is_dir() and stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG),
                lambda info=info: file.open(info),
            )
            for info in file.infolist()
        )


@contextlib.contextmanager
def _tar_members(stream, limit, top):
    with stream, tarfile.open(fileobj=_Bounded(stream, limit), mode="r|") as file:
        yield _walk(file, top)


def _walk(file: tarfile.TarFile, top: bool) -> Iterator[_Member]:
    for info in file:
        path = _below_top(info.name) if top else info.name.removeprefix("./")
        yield _Member(path, info.size, info.isreg(), lambda info=info: file.extractfile(info))


@contextlib.contextmanager
def _deb_members(archive, limit):
    command = ["dpkg-deb", "--fsys-tarfile", str(archive.absolute())]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        raise ArchiveError(
            f"{archive.name}: needs dpkg-deb, which is not on this machine"
        ) from None
    try:
        with _tar_members(process.stdout, limit, top=False) as members:
            yield members
    finally:
        process.kill()  # it may still hold data that nobody wants
        process.wait()


def _below_top(path: str) -> str:
    """The path without its first folder; one that leads out stays as it is."""
    head, slash, rest = path.partition("/")
    return rest if slash and head not in ("", "..") else path


class _Bounded(io.RawIOBase):
    """A stream that refuses to give more than `limit` bytes."""

    def __init__(self, stream, limit: int):
        self._stream, self._left = stream, limit

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise ArchiveError("the archive unpacks to more than its limit")
        return data
