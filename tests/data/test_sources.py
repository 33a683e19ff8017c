"""The table of sources, and files that were or were not fetched."""

from pathlib import Path

import pytest

from jaxicml.data import sources
from tests.data import packages


def test_names_are_distinct_and_every_registry_has_a_source():
    names = [source.name for source in sources.SOURCES]
    assert len(set(names)) == len(names)
    assert {source.kind for source in sources.SOURCES} == {"pypi", "npm", "debian"}


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"JAXICML_CACHE": "/own", "XDG_CACHE_HOME": "/xdg"}, "/own"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/jaxicml"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/jaxicml"),
        ({"JAXICML_CACHE": "~/mine"}, "/home/me/mine"),
        ({}, "/home/me/.cache/jaxicml"),
    ],
)
def test_cache_folder(environment, folder, monkeypatch):
    monkeypatch.delenv("JAXICML_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert sources.cache_folder() == Path(folder)


def test_data_that_was_not_fetched_names_the_command():
    with pytest.raises(sources.DataMissing, match=r"python -m jaxicml\.data fetch brown"):
        sources.load("brown", "ca01")
    assert issubclass(sources.DataMissing, FileNotFoundError)


def test_load_gives_the_file_and_notices_a_cut_one(monkeypatch):
    toy = packages.source_of("npm")
    monkeypatch.setattr(sources, "SOURCES", (toy,))
    path = toy.folder / "pkg/a.txt"
    path.parent.mkdir(parents=True)
    path.write_bytes(packages.CONTENT["pkg/a.txt"])
    assert sources.load("toy", "pkg/a.txt") == path
    path.write_bytes(b"half")
    with pytest.raises(sources.DataMissing, match=r"pkg/a\.txt is not in the cache"):
        sources.load("toy", "pkg/a.txt")


def test_unknown_names_get_a_suggestion():
    with pytest.raises(ValueError, match="did you mean 'brown'"):
        sources.load("browne", "ca01")
    with pytest.raises(ValueError, match="did you mean 'ca01'"):
        sources.load("brown", "ca1")
    with pytest.raises(ValueError, match="did you mean 'squant'"):
        sources.sources_for("sqant")


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../up", "a/../../b", "a\\b"])
def test_a_table_cannot_write_outside_the_cache(path):
    with pytest.raises(ValueError, match="path: expected a path below the package"):
        sources.File(path, 1, "0" * 64)


def test_what_a_table_must_say():
    with pytest.raises(ValueError, match="size: expected a whole number of at least 1, got 0"):
        sources.File("a", 0, "0" * 64)
    with pytest.raises(ValueError, match="sha256: expected 64 hexadecimal digits, got 'abc'"):
        sources.File("a", 1, "abc")
    file = sources.File("a", 1, "0" * 64)
    make = lambda *args: sources.Source(*args, "CC0", (), "")
    with pytest.raises(ValueError, match=r"kind: expected one of .*'gopher'"):
        make("a", "gopher", "b", "1", (file,))
    with pytest.raises(ValueError, match="package: expected letters, digits"):
        make("a", "npm", "--registry=x", "1", (file,))
    with pytest.raises(ValueError, match="files: expected at least one file"):
        make("a", "npm", "b", "1", ())
