"""Reading named files out of archives that may be hostile."""

import shutil
import tarfile
import zipfile

import pytest

from jaxicml.data import archives
from tests.data import packages
from tests.data.packages import CONTENT, MAKE

needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb here")
KINDS = ["pypi", "npm", pytest.param("debian", marks=needs_dpkg)]
TOP = {"pypi": "", "npm": "package/", "debian": "./"}
FILES = [packages.file_of(path, data) for path, data in CONTENT.items()]


def member(kind, name):
    return zipfile.ZipInfo(name) if kind == "pypi" else tarfile.TarInfo(name)


def written(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("kind", KINDS)
def test_takes_only_the_named_files(kind, tmp_path):
    extra = [(member(kind, TOP[kind] + "setup.py"), b"raise SystemExit")]
    archive = MAKE[kind](tmp_path, extra=extra)
    archives.unpack(archive, FILES, tmp_path / "out")
    assert written(tmp_path / "out") == CONTENT


def test_a_source_archive_may_be_a_zip_file_with_a_top_folder(tmp_path):
    content = {f"toy-1.0/{path}": data for path, data in CONTENT.items()}
    archives.unpack(
        packages.make_wheel(tmp_path, content, name="toy-1.0.zip"), FILES, tmp_path / "out"
    )
    assert written(tmp_path / "out") == CONTENT


@pytest.mark.parametrize("path", ["../evil", "/etc/evil", "pkg/../../evil", "..\\evil"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_path_that_leads_out_condemns_the_archive(kind, path, tmp_path):
    archive = MAKE[kind](tmp_path, extra=[(member(kind, path), b"evil")])
    with pytest.raises(archives.ArchiveError, match="leads out of the archive"):
        archives.unpack(archive, FILES, tmp_path / "out")
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_in_place_of_a_file_is_refused(kind, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENT["pkg/a.txt"])
    make = packages.zip_link if kind == "pypi" else packages.tar_link
    archive = MAKE[kind](tmp_path, extra=[make(TOP[kind] + "pkg/a.txt", str(secret))])
    with pytest.raises(archives.ArchiveError, match=r"pkg/a\.txt is a link"):
        archives.unpack(archive, FILES, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_linked_folder_does_not_redirect_what_is_written(kind, tmp_path):
    make = packages.zip_link if kind == "pypi" else packages.tar_link
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    archive = MAKE[kind](tmp_path, extra=[make(TOP[kind] + "pkg", str(elsewhere))])
    archives.unpack(archive, FILES, tmp_path / "out")
    assert written(tmp_path / "out") == CONTENT
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data + b"!", r"expected pkg/a\.txt to have 300 bytes, got 301"),
        (lambda data: data[:-1], r"expected pkg/a\.txt to have 300 bytes, got 299"),
        (lambda data: b"A" + data[1:], r"pkg/a\.txt: expected SHA-256 "),
    ],
    ids=["longer", "shorter", "other"],
)
def test_size_and_hash_of_each_file(kind, change, message, tmp_path):
    archive = MAKE[kind](tmp_path, CONTENT | {"pkg/a.txt": change(CONTENT["pkg/a.txt"])})
    with pytest.raises(archives.ArchiveError, match=message):
        archives.unpack(archive, FILES, tmp_path / "out")


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_not_there(kind, tmp_path):
    archive = MAKE[kind](tmp_path, {"pkg/a.txt": CONTENT["pkg/a.txt"]})
    with pytest.raises(archives.ArchiveError, match=r"expected to hold pkg/deep/b\.bin"):
        archives.unpack(archive, FILES, tmp_path / "out")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.8])
def test_a_truncated_archive(kind, kept, tmp_path):
    archive = MAKE[kind](tmp_path)
    archive.write_bytes(archive.read_bytes()[: int(kept * archive.stat().st_size)])
    with pytest.raises(archives.ArchiveError, match=r"damaged or truncated|expected to hold"):
        archives.unpack(archive, FILES, tmp_path / "out")


def test_a_zip_member_that_lies_about_its_size(tmp_path):
    archive = packages.make_wheel(tmp_path, CONTENT | {"pkg/a.txt": b"z" * 999})
    size = lambda n: n.to_bytes(4, "little")
    archive.write_bytes(archive.read_bytes().replace(size(999), size(300)))
    with pytest.raises(archives.ArchiveError, match=r"damaged|SHA-256|got more"):
        archives.unpack(archive, FILES, tmp_path / "out")


@pytest.mark.parametrize("kind", KINDS[1:])
def test_what_is_unpacked_on_the_way_is_bounded(kind, tmp_path):
    bomb = [(member(kind, TOP[kind] + "zeros"), bytes(1 << 20))]
    archive = MAKE[kind](tmp_path, extra=bomb)
    archives.unpack(archive, FILES, tmp_path / "out", limit=1 << 21)
    with pytest.raises(archives.ArchiveError, match="unpacks to more than its limit"):
        archives.unpack(archive, FILES, tmp_path / "again", limit=1 << 19)


def test_an_archive_of_another_kind(tmp_path):
    (tmp_path / "toy.rar").write_bytes(b"Rar!")
    with pytest.raises(archives.ArchiveError, match=r"toy\.rar: expected one of \.whl"):
        archives.unpack(tmp_path / "toy.rar", FILES, tmp_path / "out")


def test_without_dpkg_deb(tmp_path, monkeypatch):
    archive = packages.make_deb(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(archives.ArchiveError, match="needs dpkg-deb"):
        archives.unpack(archive, FILES, tmp_path / "out")
