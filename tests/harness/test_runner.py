import json
import subprocess
import time

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxicml.harness import files, provenance, runner


def result(folder):
    return json.loads((folder / "result.json").read_text())


def run(house, name, *argv):
    return runner.run_driver(name, argv, root=house)


@pytest.fixture
def results(house, name):
    return house / "results" / name


def test_a_run_writes_everything(house, name, used, results, capsys):
    assert run(house, name, "--scale", "cpu") == 0
    folder = results / "cpu"
    assert {p.name for p in folder.iterdir()} == {
        *("result.json", "table.md", "figure.png", "more.png"),
    }
    got = result(folder)
    assert set(got) == {
        *("config", "scale", "seed", "versions", "device", "commit", "dirty", "seconds"),
        *("claims", "tables", "figures"),
    }
    assert got["config"] == {"repeats": 3, "sizes": [1, 2], "fault": "", "threshold": 0.0}
    assert (got["scale"], got["seed"], got["figures"]) == ("cpu", 0, ["figure", "more"])
    assert got["device"].startswith("1 CPU device (")
    assert got["versions"]["jax"] == jax.__version__
    assert set(got["seconds"]) == {"compile", "run"}
    condition = got["claims"][0]["conditions"][0]
    assert condition["interval"][0] <= condition["value"] <= condition["interval"][1]
    assert got["claims"][0]["verdict"] == condition["verdict"] == "holds"
    assert (folder / "table.md").read_text().startswith(f"# {name}, scale cpu\n")
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    for part in ("The mean is | large.", "holds", "Values", "A note.", str(folder)):
        assert part in shown


def test_equal_runs_give_equal_bytes_but_for_the_seconds(house, name, used, tmp_path):
    run(house, name, "--out", str(tmp_path / "a"))
    run(house, name, "--out", str(tmp_path / "b"))
    for file in ("table.md", "figure.png", "more.png"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    first, second = result(tmp_path / "a"), result(tmp_path / "b")
    assert first | {"seconds": 0} == second | {"seconds": 0}
    assert not (house / "results").exists()


@pytest.mark.parametrize(
    ("argv", "where"),
    [
        ([], "smoke"),
        (["--scale", "full"], "full"),
        (["--scale", "cpu", "--devices", "2"], "cpu"),
        (["--scale", "cpu", "--repeats", "4"], "custom"),
        (["--scale", "cpu", "--repeats", "3"], "cpu"),
        (["--scale", "cpu", "--seed", "1"], "custom"),
        (["--scale", "smoke", "--fault", "data"], "custom"),
    ],
)
def test_only_the_stated_configuration_reaches_the_folder_of_its_scale(
    house, name, used, results, argv, where
):
    run(house, name, *argv)
    assert [path.name for path in results.iterdir()] == [where]


def test_a_cpu_result_with_unexamined_claims_is_custom(house, name, used, results):
    path = house / f"{name}.py"
    path.write_text(path.read_text().replace('cfg.fault == "data"', 'cfg.fault == ""'))
    run(house, name, "--scale", "cpu")
    run(house, name, "--scale", "smoke")
    assert sorted(path.name for path in results.iterdir()) == ["custom", "smoke"]
    assert result(results / "custom")["claims"][1]["verdict"] == "not run"


@pytest.mark.parametrize("fault", ["crash", "number"])
def test_a_broken_run_leaves_the_old_result(house, name, used, tmp_path, fault):
    out = tmp_path / "out"
    run(house, name, "--out", str(out))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(
        (RuntimeError, ValueError), match=r"the toy broke|expected a Report, got int"
    ):
        run(house, name, "--out", str(out), "--fault", fault)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_crash_while_writing_leaves_the_old_result(house, name, used, tmp_path, monkeypatch):
    out = tmp_path / "out"
    run(house, name, "--out", str(out))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    replace, steps = files.os.replace, []

    def breaking(source, target):
        steps.append(target)
        if len(steps) == 5:
            raise OSError("disk full")
        replace(source, target)

    monkeypatch.setattr(files.os, "replace", breaking)
    with pytest.raises(OSError, match="disk full"):
        run(house, name, "--out", str(out), "--seed", "5")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_figures_of_the_older_result_leave_with_it(house, name, used, tmp_path):
    run(house, name, "--out", str(tmp_path / "out"))
    (tmp_path / "out" / "mine.png").write_bytes(b"not yours")
    run(house, name, "--out", str(tmp_path / "out"), "--fault", "one figure")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("result.json", "table.md", "figure.png", "mine.png"),
    }


def test_a_failing_claim_ends_with_status_zero_unless_strict(house, name, used, capsys):
    assert run(house, name, "--threshold", "9") == 0
    assert "fails" in capsys.readouterr().out
    assert run(house, name, "--threshold", "9", "--strict") == 1
    assert run(house, name, "--strict") == 0


def test_devices_are_handed_to_the_context(house, name, used):
    run(house, name)
    run(house, name, "--devices", "2")
    assert used == [jax.devices()[:1], jax.devices()[:2]]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--devices", "4"], "--devices: expected at most 2, because JAX has started already"),
        (["--devices", "0"], "--devices: expected a whole number of at least 1, got 0"),
        (["--scale", "cpuu"], "did you mean 'cpu'"),
    ],
)
def test_wrong_use_is_one_line_and_status_two(house, name, used, argv, words, capsys, as_user):
    with pytest.raises(SystemExit) as stop:
        run(house, name, *argv)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=8))
def test_covered_counts_every_instant_once(spans):
    spans = [(start, start + length) for start, length in spans]
    instants = {t for start, end in spans for t in range(start, end)}
    assert runner.covered((float(a), float(b)) for a, b in spans) == len(instants)


def test_compile_clock_sees_a_compilation_once_and_no_running():
    inner = jax.jit(lambda x: jnp.sin(x) + len(jax.devices()))
    work = jax.jit(lambda x: inner(inner(x) @ x) * 3.25)
    start = time.perf_counter()
    with runner.CompileClock().watching() as clock:
        work(jnp.ones((3, 3))).block_until_ready()
    wall = time.perf_counter() - start
    assert 0 < clock.seconds <= wall
    seen = clock.seconds
    work(jnp.ones((3, 3))).block_until_ready()
    assert clock.seconds == seen
    with runner.CompileClock().watching() as again:
        work(jnp.ones((3, 3))).block_until_ready()
    assert again.seconds < 0.1 * seen


@pytest.fixture
def repository(house, tmp_path):
    def git(*args):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        command = ["git", *identity, *args]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "toys")
    return git


def test_commit_and_dirty(repository, house, name, tmp_path):
    sha = repository("rev-parse", "HEAD").stdout.strip()
    assert provenance.commit(house) == (sha, False)
    (house / "results" / name).mkdir(parents=True)
    (house / "results" / name / "result.json").write_text("{}")
    (tmp_path / "README.md").write_text("other")
    assert provenance.commit(house) == (sha, False)
    (house / "new.py").write_text("")
    assert provenance.commit(house) == (sha, True)


def test_without_a_repository_the_commit_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance.commit(tmp_path / "toys") == (None, None)
    monkeypatch.setenv("PATH", "")
    assert provenance.commit(tmp_path / "toys") == (None, None)


def test_devices_in_words():
    words = provenance.device_words(jax.devices()[:2])
    assert words.startswith("2 CPU devices (")

    class Gpu:
        platform, device_kind = "gpu", "NVIDIA H100"

    assert provenance.device_words([Gpu(), Gpu()]) == "2 devices NVIDIA H100"
