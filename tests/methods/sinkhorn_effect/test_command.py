import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxicml.data import tabular
from jaxicml.methods.sinkhorn_effect import __main__ as command
from jaxicml.methods.sinkhorn_effect.analysis import estimate

N = 200
MODULE = "jaxicml.methods.sinkhorn_effect"
COLUMNS = ["--treatment", "drug", "--outcome", "pain", "--covariates", "age", "dose"]


def people():
    rng = np.random.default_rng(0)
    age, dose = rng.normal(size=(2, N))
    drug = (rng.random(N) < 0.5).astype(int)
    return {"age": age, "dose": dose, "drug": drug, "pain": 2 * drug + age + rng.normal(size=N)}


def write(path, table):
    rows = zip(*(column.tolist() for column in table.values()), strict=True)
    lines = [",".join(table), *(",".join(map(repr, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write(tmp_path / "people.csv", people())


def test_a_file_is_analysed_as_the_front_door_does(table, tmp_path, capsys):
    words = ["--null", "199", "--json", "out/people.json", "--seed", "3", "--alpha", "0.1"]
    assert command.main([table, *COLUMNS, *words]) == 0
    report = estimate(
        people(),
        treatment="drug",
        outcome="pain",
        covariates=["age", "dose"],
        num_null=199,
        seed=3,
        alpha=0.1,
    )
    out = capsys.readouterr()
    assert out.out.startswith(str(report))
    assert out.err == ""
    written = json.loads((tmp_path / "out" / "people.json").read_text())
    assert written["ste"] == pytest.approx(report.ste, rel=1e-9)
    assert written["by_epsilon"]["kept"] == report.by_epsilon.kept.tolist()
    assert (tmp_path / "sinkhorn_effect.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "out",
        "people.csv",
        "sinkhorn_effect.png",
    ]


@pytest.mark.slow
def test_the_command_in_its_own_process(table, tmp_path):
    # the compilations of this process serve the other where there is a cache
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "JAX_NUM_CPU_DEVICES": "2"}
    if jax.config.jax_compilation_cache_dir:
        environment |= {
            "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    done = subprocess.run(
        [sys.executable, "-m", MODULE, table, *COLUMNS, "--null", "199", "--no-figure"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "The distribution of pain differs between treated and untreated" in done.stdout
    assert done.stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["people.csv"]


def small_study(name, outcome):
    rows = people()
    covariates = np.stack([rows["age"], rows["dose"]], axis=1)
    return tabular.Study(
        covariates, rows["drug"], rows["pain"][:, None], ("age", "dose"), (outcome,), name
    )


def test_without_arguments_both_studies_are_reported(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(tabular, "load_nhefs", lambda: small_study("NHEFS", "weight"))
    monkeypatch.setattr(tabular, "load_nsw", lambda transform: small_study("NSW", "pay"))
    figure, numbers = tmp_path / "both.png", tmp_path / "both.json"
    options = ["--null", "199", "--figure", str(figure), "--json", str(numbers)]
    assert command.main(options) == 0
    out = capsys.readouterr().out
    assert "Sinkhorn treatment effect of qsmk on weight" in out
    assert "Sinkhorn treatment effect of treat on pay" in out
    smoking, training = json.loads(numbers.read_text())
    assert smoking["by_epsilon"]["epsilon"] == training["by_epsilon"]["epsilon"]
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_a_figure_says_in_words_what_was_found(table, monkeypatch):
    from jaxicml.harness import plots

    kept = []
    monkeypatch.setattr(plots, "save", lambda figure, path: kept.append(figure))
    assert command.main([table, *COLUMNS, "--null", "199"]) == 0
    left, right = kept[0].axes
    assert left.get_title(loc="left") == "pain by drug: distributions differ, p ≤ 0.005"
    assert [text.get_text() for text in left.texts] == ["if untreated", "if treated"]
    assert right.get_xscale() == "log"
    assert len(right.texts) == 5
    assert right.get_title(loc="left").startswith("As far apart as a shift of ")
    assert right.get_ylabel() == "STE, units of pain squared"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["people.csv", *COLUMNS[:4], "--covariates", "aeg"], "got 'aeg'; did you mean 'age'?"),
        (["people.csv", "--outcome", "pain"], "--treatment: expected names of columns of people"),
        (["people.csv", *COLUMNS, "--alpha", "2"], "alpha: expected values strictly between"),
        (["people.csv", *COLUMNS, "--folds", "0"], "num_folds: expected a whole number"),
        (["people.csv", "--treatment", "age", *COLUMNS[2:4], "--covariates"], "only 0 and 1"),
        (["nobody.csv", *COLUMNS], "nobody.csv: expected a CSV file, got nothing of that name"),
        (COLUMNS, "FILE.csv: expected a table beside --treatment, got none"),
        (["--multiples", "0", "--null", "199"], "multiples: expected a finite number above 0"),
    ],
)
def test_an_error_is_one_line_and_status_2(table, words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tabular, "load_nhefs", lambda: small_study("NHEFS", "weight"))
    monkeypatch.setattr(tabular, "load_nsw", lambda transform: small_study("NSW", "pay"))
    assert command.main(words) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.startswith("error: ")
    assert out.err.count("\n") == 1
    assert message in out.err
    assert [path.name for path in tmp_path.iterdir()] == ["people.csv"]


def test_missing_packages_are_named(table, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "jaxicml.harness.plots", None)
    monkeypatch.delattr("jaxicml.harness.plots", raising=False)
    assert command.main([table, *COLUMNS, "--null", "199"]) == 2
    assert 'pip install "jaxicml[experiments]", or --no-figure' in capsys.readouterr().err
