import subprocess
import sys
import textwrap

import pytest

from experiments.__main__ import ROOT, main


def python(*args, cwd=None):
    return subprocess.run(
        [sys.executable, *args], cwd=cwd or ROOT.parent, capture_output=True, text=True
    )


def test_listing_is_light_and_names_every_driver(house, name, capsys):
    code = textwrap.dedent(f"""
        import pathlib, sys
        from experiments.__main__ import main
        assert main([], pathlib.Path({str(house)!r})) == 0
        loaded = {{"jax", "matplotlib", "numpy"}} & set(sys.modules)
        assert not loaded, loaded
    """)
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert f"{name}  A toy that counts.\n" in done.stdout
    assert "python -m experiments report" in done.stdout


def test_the_command_itself_lists():
    done = python("-m", "experiments")
    assert done.returncode == 0, done.stderr
    assert "python -m experiments NAME [flags]" in done.stdout


def test_the_report_does_not_load_jax(house):
    code = textwrap.dedent(f"""
        import pathlib, sys
        from experiments.__main__ import main
        assert main(["report"], pathlib.Path({str(house)!r})) == 0
        assert main(["report", "--check"], pathlib.Path({str(house)!r})) == 0
        assert not {{"jax", "matplotlib"}} & set(sys.modules)
    """)
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_unknown_name_suggests_and_ends_with_two(house, name, capsys, as_user):
    with pytest.raises(SystemExit) as stop:
        main([name[:-2]], house)
    assert stop.value.code == 2
    assert f"did you mean {name!r}?" in capsys.readouterr().err


def test_names_lead_to_the_driver_and_the_benchmark(house, name, used, capsys):
    assert main([name, "--scale", "smoke"], house) == 0
    assert main(["bench", name, "--size", "smoke"], house) == 0
    results = house / "results" / name
    assert sorted(path.name for path in results.iterdir()) == ["custom", "smoke"]
    capsys.readouterr()
    assert main(["bench"], house) == 0
    assert capsys.readouterr().out == f"{name}\n"


def test_check_of_a_stale_readme_ends_with_one(house, capsys):
    assert main(["report", "--check"], house) == 1
    assert main(["report"], house) == 0
    assert main(["report", "--check"], house) == 0
    (house.parent / "README.md").write_text("no blocks")
    with pytest.raises(SystemExit) as stop:
        main(["report"], house)
    assert stop.value.code == 2


def test_all_runs_each_driver_in_its_own_process(house, name, monkeypatch, capsys):
    (house / "other.py").write_text('"""Another."""\n')
    calls = []

    def record(command, cwd):
        calls.append((command[1:], cwd))
        return subprocess.CompletedProcess(command, returncode=int(command[3] == "other"))

    monkeypatch.setattr(subprocess, "run", record)
    assert main(["all", "--devices", "2", "--out", "x"], house) == 1
    flags = ["--scale", "smoke", "--seed", "0", "--devices", "2", "--out"]
    assert calls == [
        (["-m", house.name, "other", *flags, "x/other"], house.parent),
        (["-m", house.name, name, *flags, f"x/{name}"], house.parent),
    ]
    assert "failed: other" in capsys.readouterr().out


@pytest.mark.slow
def test_all_survives_a_driver_that_crashes(house, name, tmp_path):
    """Two real processes a driver, two devices each; one breaks, the other writes its result."""
    good = (house / f"{name}.py").read_text()
    (house / "atlas.py").write_text(good.replace('fault: str = ""', 'fault: str = "crash"'))
    path = f"import sys; sys.path.insert(0, {str(ROOT.parent)!r})"
    (house / "__main__.py").write_text(f"{path}\n" + (house / "__main__.py").read_text())
    done = python("-m", house.name, "all", "--scale", "smoke", "--devices", "2", cwd=tmp_path)
    assert done.returncode == 1
    assert "RuntimeError: the toy broke" in done.stderr
    assert "failed: atlas" in done.stdout
    assert not (house / "results" / "atlas").exists()
    written = (house / "results" / name / "smoke" / "result.json").read_text()
    assert '"device": "2 CPU devices (' in written
