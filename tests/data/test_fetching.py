"""Fetching with clients that hand out prepared packages, and every way in which it fails."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from jaxicml.data import __main__ as command
from jaxicml.data import fetching, sources
from tests.data import packages
from tests.data.packages import CONTENT, MAKE
from tests.data.test_archives import KINDS, written


class Notes:
    def __init__(self):
        self.lines = []

    def track(self, items, description, total=None):
        yield from items

    def note(self, message):
        self.lines.append(message)


def leftovers(cache):
    return list(cache.rglob(".fetching*"))


@pytest.mark.parametrize("kind", KINDS)
def test_fetch_keeps_the_files_and_nothing_else(kind, client, cache, tmp_path):
    calls = client(kind, f"cp {MAKE[kind](tmp_path)} .")
    notes = Notes()
    folder = fetching.fetch(packages.source_of(kind), progress=notes)
    assert folder == cache / "data" / "toy-1.0"
    assert written(folder) == CONTENT
    assert len(calls()) == len(notes.lines) == 1
    assert not leftovers(cache)


def test_what_the_clients_are_told(client, tmp_path):
    expected = {
        "pypi": "--disable-pip-version-check download --no-deps --retries 1 -q -d . "
        "--only-binary=:all: toy-pkg==1.0",
        "npm": "pack toy-pkg@1.0 --ignore-scripts --loglevel=error --fetch-retries=1",
        "debian": "download toy-pkg",
    }
    for kind, words in expected.items():
        calls = client(kind, "exit 1")
        with pytest.raises(fetching.FetchError):
            fetching.fetch(packages.source_of(kind))
        assert calls()[-1] == words


def test_a_source_archive_is_pinned_before_pip_reads_it(client, tmp_path):
    content = {f"toy-1.0/{path}": data for path, data in CONTENT.items()}
    archive = packages.make_wheel(tmp_path, content, name="toy-1.0.zip")
    calls = client("pypi", f"cat requirements.txt > {tmp_path}/seen; cp {archive} .")
    source = packages.source_of("pypi", sdist_sha256="f" * 64)
    assert written(fetching.fetch(source)) == CONTENT
    assert calls()[0].endswith("--require-hashes -r requirements.txt")
    assert (tmp_path / "seen").read_text() == f"toy-pkg==1.0 --hash=sha256:{'f' * 64}\n"


def test_a_second_fetch_asks_nobody(client, tmp_path):
    calls = client("npm", f"cp {packages.make_tgz(tmp_path)} .")
    source = packages.source_of("npm")
    first = fetching.fetch(source)
    stamps = [p.stat().st_mtime_ns for p in first.rglob("*")]
    assert fetching.fetch(source) == first
    assert [p.stat().st_mtime_ns for p in first.rglob("*")] == stamps
    assert len(calls()) == 1


def test_a_spoilt_file_is_fetched_again_and_a_good_one_kept(client, tmp_path):
    client("npm", f"cp {packages.make_tgz(tmp_path)} .")
    source = packages.source_of("npm")
    folder = fetching.fetch(source)
    kept = (folder / "pkg/a.txt").stat()
    spoilt = folder / "pkg/deep/b.bin"
    spoilt.write_bytes(bytes(len(CONTENT["pkg/deep/b.bin"])))
    assert written(fetching.fetch(source)) == CONTENT
    assert (folder / "pkg/a.txt").stat().st_ino == kept.st_ino


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", ["hash", "truncated", "traversal"])
def test_a_bad_archive_leaves_nothing(kind, fault, client, cache, tmp_path):
    content = CONTENT | ({"pkg/deep/b.bin": bytes(256 * 9)} if fault == "hash" else {})
    if fault == "traversal":
        content = {"../evil": b"evil"} | content
    archive = MAKE[kind](tmp_path, content)
    if fault == "truncated":
        archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    client(kind, f"cp {archive} .")
    with pytest.raises(fetching.FetchError, match=r"toy: .*python -m jaxicml\.data fetch toy"):
        fetching.fetch(packages.source_of(kind))
    assert not leftovers(cache)
    assert not written(cache / "data" / "toy-1.0")
    assert not list(tmp_path.rglob("evil"))


def test_killed_in_the_middle(client, cache, tmp_path):
    archive = packages.make_tgz(tmp_path)
    client("npm", f"head -c 60 {archive} > toy-pkg-1.0.tgz; touch {tmp_path}/half; exec sleep 60")
    script = (
        "from tests.data.packages import source_of\n"
        "from jaxicml.data.fetching import fetch\n"
        "fetch(source_of('npm'))\n"
    )
    root = os.getcwd()
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": root},
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "half").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    assert leftovers(cache)
    assert not written(cache / "data" / "toy-1.0")
    client("npm", f"cp {archive} .")
    assert written(fetching.fetch(packages.source_of("npm"))) == CONTENT
    assert not leftovers(cache)


@pytest.mark.parametrize(("kind", "name"), [("npm", "npm"), ("debian", "apt-get")])
def test_a_missing_client(kind, name, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(fetching.FetchError, match=f"needs {name}, which is not on this machine"):
        fetching.fetch(packages.source_of(kind))


CLIENT_WORDS = [
    ("pypi", "python: No module named pip", "this Python has no pip"),
    (
        "pypi",
        "WARNING: Retrying after NewConnectionError(refused)\n"
        "ERROR: No matching distribution found for toy-pkg==1.0",
        "cannot be reached .offline",
    ),
    ("pypi", "ERROR: No matching distribution found for toy-pkg==1.0", "not have that version"),
    ("pypi", "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "another archive under that"),
    ("npm", "npm error code ECONNREFUSED\nnpm error A complete log", "cannot be reached"),
    ("npm", "npm error code ETARGET\nnpm error A complete log", "not have that version"),
    ("debian", "E: Failed to fetch\n  Could not connect to proxy", "cannot be reached"),
    ("debian", "E: Unable to locate package toy-pkg", "not have that version"),
    ("npm", "npm error something new", "exit status 7: npm error something new"),
]


@pytest.mark.parametrize(("kind", "words", "meaning"), CLIENT_WORDS)
def test_what_a_client_says_is_explained(kind, words, meaning, client, cache):
    client(kind, f"printf '%s\\n' '{words}' >&2; exit 7")
    with pytest.raises(fetching.FetchError, match=meaning) as caught:
        fetching.fetch(packages.source_of(kind))
    assert "python -m jaxicml.data fetch toy" in str(caught.value)
    assert not leftovers(cache)


def test_a_client_that_hangs(client, monkeypatch):
    monkeypatch.setattr(fetching, "_TIMEOUT", 0.2)
    client("npm", "exec sleep 30")
    with pytest.raises(fetching.FetchError, match=r"npm took more than 0\.2 s"):
        fetching.fetch(packages.source_of("npm"))


def test_a_client_that_brings_nothing(client):
    client("npm", "true")
    with pytest.raises(fetching.FetchError, match="expected one archive from npm, got 0"):
        fetching.fetch(packages.source_of("npm"))


def test_an_archive_brought_by_hand_needs_no_client(client, tmp_path):
    calls = client("npm", "exit 1")
    folder = fetching.fetch(packages.source_of("npm"), archive=packages.make_tgz(tmp_path))
    assert written(folder) == CONTENT
    assert calls() == []


def test_a_file_somebody_has(tmp_path):
    source = packages.source_of("file")
    with pytest.raises(fetching.FetchError, match=r"in no registry.*fetch toy --from PATH"):
        fetching.fetch(source)
    with pytest.raises(fetching.FetchError, match="nowhere"):
        fetching.fetch(source, archive=tmp_path / "nowhere")
    for path, data in CONTENT.items():
        (tmp_path / "mine" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / path).write_bytes(data)
    assert written(fetching.fetch(source, archive=tmp_path / "mine")) == CONTENT


def test_a_single_file_somebody_has(tmp_path):
    path = "pkg/a.txt"
    (tmp_path / "mine").write_bytes(CONTENT[path])
    source = packages.source_of("file", {path: CONTENT[path]})
    assert written(fetching.fetch(source, archive=tmp_path / "mine")) == {path: CONTENT[path]}


@pytest.fixture
def toys(monkeypatch):
    """A table of two toy sources for the command."""
    toy = packages.source_of("npm")
    other = sources.Source("other", "npm", "other", "2", toy.files, "CC0", ("toy",), "Another")
    monkeypatch.setattr(sources, "SOURCES", (toy, other))
    monkeypatch.setattr(command, "SOURCES", (toy, other))


def test_command_lists_and_fetches(toys, client, cache, tmp_path, capsys):
    client("npm", f"cp {packages.make_tgz(tmp_path)} .")
    assert command.main(["list"]) == 0
    before = capsys.readouterr().out
    assert re.search(r"^toy +npm:toy-pkg 1\.0 +0\.00 +no ", before, re.M)
    assert str(cache) in before
    assert command.main(["fetch", "--for", "toy", "toy"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"toy: {cache}/data/toy-1.0",
        f"other: {cache}/data/other-2",
    ]
    assert command.main(["list"]) == 0
    assert re.search(r"^toy +npm:toy-pkg 1\.0 +0\.00 +yes ", capsys.readouterr().out, re.M)


def test_command_goes_on_after_a_failure_and_says_so(toys, client, cache, tmp_path, capsys):
    client("npm", f'case "$2" in toy-pkg*) exit 1;; esac; cp {packages.make_tgz(tmp_path)} .')
    assert command.main(["fetch", "toy", "other"]) == 1
    out, err = capsys.readouterr()
    assert out == f"other: {cache}/data/other-2\n"
    assert err.startswith("error: toy: npm pack toy-pkg@1.0")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fetch"], "expected a NAME or --for METHOD"),
        (["fetch", "tyo"], "did you mean 'toy'"),
        (["fetch", "--for", "nobody"], "method: expected one of toy, got 'nobody'"),
        (["fetch", "toy", "other", "--from", "x"], "--from: expected one source"),
        (["fetch", "toy", "--from", "nowhere.tgz"], "nowhere.tgz"),
    ],
)
def test_command_refuses(toys, words, message, capsys):
    assert command.main(words) == 1
    assert message in capsys.readouterr().err


def test_the_command_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "jaxicml.data", "list"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert all(source.name in done.stdout for source in sources.SOURCES)


@pytest.mark.slow
@pytest.mark.parametrize("source", sources.SOURCES, ids=lambda source: source.name)
def test_the_real_package(source):
    try:
        folder = fetching.fetch(source)
    except fetching.FetchError as error:
        if re.search("cannot be reached|not on this machine|Unable to locate", str(error)):
            pytest.skip(str(error))
        raise
    assert set(written(folder)) == {file.path for file in source.files}
