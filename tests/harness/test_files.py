import os

import pytest

from jaxicml.harness import files

OLD = {"index.json": b"old", "table.md": b"old table", "gone.png": b"old picture"}
NEW = {"index.json": b"new", "table.md": b"new table", "fresh.png": b"new picture"}
REPLACE = os.replace


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def replace_new(folder):
    files.write_folder(folder, NEW, index="index.json", stale=["gone.png"])


@pytest.fixture
def old(tmp_path):
    folder = tmp_path / "result"
    files.write_folder(folder, OLD, index="index.json")
    (folder / "mine.txt").write_bytes(b"not yours")
    return folder


def test_replaces_the_set_and_leaves_other_files(old):
    replace_new(old)
    assert contents(old) == {**NEW, "mine.txt": b"not yours"}


@pytest.mark.parametrize("step", range(6))
def test_an_error_at_any_step_leaves_the_old_set(old, monkeypatch, step):
    steps = []

    def breaking(source, target):
        steps.append(target)
        if len(steps) == step + 1:
            raise OSError("disk full")
        REPLACE(source, target)

    monkeypatch.setattr(files.os, "replace", breaking)
    with pytest.raises(OSError, match="disk full"):
        replace_new(old)
    assert contents(old) == {**OLD, "mine.txt": b"not yours"}


def test_six_steps_are_all(old, monkeypatch):
    steps = []
    monkeypatch.setattr(files.os, "replace", lambda a, b: (steps.append(b.name), REPLACE(a, b)))
    replace_new(old)
    assert len(steps) == 6
    assert steps[0] == steps[-1] == "index.json"


def test_a_failed_first_write_leaves_no_folder(tmp_path):
    with pytest.raises(TypeError):
        files.write_folder(tmp_path / "a", {"index.json": "no bytes"}, index="index.json")
    assert not (tmp_path / "a").exists()


def test_a_file_is_replaced_in_one_step(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "file.json"
    files.write_file(path, b"old")

    def breaking(source, target):
        raise OSError("disk full")

    monkeypatch.setattr(files.os, "replace", breaking)
    with pytest.raises(OSError, match="disk full"):
        files.write_file(path, b"new")
    assert contents(path.parent) == {"file.json": b"old"}
