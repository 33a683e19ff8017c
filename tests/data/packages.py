"""Small packages made by hand, and clients that hand them out."""

import gzip
import hashlib
import io
import stat
import tarfile
import zipfile
from pathlib import Path

from jaxicml.data.sources import File, Source

CONTENT = {"pkg/a.txt": b"alpha " * 50, "pkg/deep/b.bin": bytes(range(256)) * 9}


def file_of(path, content):
    return File(path, len(content), hashlib.sha256(content).hexdigest())


def source_of(kind, content=CONTENT, **options):
    files = tuple(file_of(path, data) for path, data in content.items())
    return Source("toy", kind, "toy-pkg", "1.0", files, "CC0", ("toy",), "A toy", **options)


def tar_bytes(content, prefix, extra=()):
    """A tar file; `extra` are ready-made (TarInfo, bytes) put first."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for info, data in extra:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for path, data in content.items():
            info = tarfile.TarInfo(prefix + path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def make_tgz(folder, content=CONTENT, extra=(), name="toy-pkg-1.0.tgz"):
    path = Path(folder) / name
    path.write_bytes(gzip.compress(tar_bytes(content, "package/", extra)))
    return path


def make_wheel(folder, content=CONTENT, extra=(), name="toy_pkg-1.0-py3-none-any.whl"):
    path = Path(folder) / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for info, data in extra:
            wheel.writestr(info, data)
        taken = {info.filename for info, _ in extra}
        for member, data in content.items():
            if member not in taken:
                wheel.writestr(member, data)
    return path


def make_deb(folder, content=CONTENT, extra=(), name="toy-pkg_1.0_all.deb"):
    """A Debian package: an `ar` archive of three members."""
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": gzip.compress(tar_bytes({"control": b"Package: toy-pkg\n"}, "./")),
        "data.tar.gz": gzip.compress(tar_bytes(content, "./", extra)),
    }
    out = b"!<arch>\n"
    for member, data in members.items():
        out += f"{member:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
        out += data + b"\n" * (len(data) % 2)
    path = Path(folder) / name
    path.write_bytes(out)
    return path


MAKE = {"pypi": make_wheel, "npm": make_tgz, "debian": make_deb}


def tar_link(name, target):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info, b""


def zip_link(name, target):
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info, target.encode()


def executable(path, script):
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
