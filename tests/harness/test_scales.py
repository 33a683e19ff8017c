import sys
from pathlib import Path

import pytest

from jaxicml.harness import scales


def call(house, name, *argv):
    return scales.parse(scales.load(house, name), argv, prog="toys")


def test_discovery_reads_docstrings_and_imports_nothing(house, name):
    (house / "breaks.py").write_text('"""Breaks when imported.\n\nMore."""\nraise SystemExit(3)\n')
    (house / "silent.py").write_text("x = 1\n")
    (house / "_private.py").write_text('"""Hidden."""\n')
    found = {driver.name: driver for driver in scales.discover(house)}
    assert [*found] == sorted([name, "breaks", "silent"])
    assert found["breaks"].summary == "Breaks when imported."
    assert found["silent"].summary == ""
    assert "Second paragraph." in found[name].doc
    assert f"{house.name}.{name}" not in sys.modules


def test_unknown_driver_suggests_the_nearest(house, as_user):
    with pytest.raises(ValueError, match=r"driver: .*got 'sinkhorn'; did you mean 'sinkhorn_eff"):
        scales.find(house, "sinkhorn")


def test_scales_differ_only_in_their_config(house, name):
    module = scales.load(house, name)
    for scale, config in module.SCALES.items():
        got = call(house, name, "--scale", scale)
        assert got.config == config
        assert (got.overridden, got.custom) == ((), False)


def test_overridden_fields_are_those_that_differ(house, name):
    got = call(house, name, "--repeats", "5", "--scale", "cpu", "--sizes", "4", "5", "6")
    assert got.config == scales.load(house, name).Config(repeats=5, sizes=(4, 5, 6))
    assert (got.overridden, got.custom) == (("repeats", "sizes"), True)
    assert call(house, name, "--scale", "cpu", "--repeats", "3").overridden == ()
    assert call(house, name, "--seed", "1").custom
    assert not call(house, name, "--devices", "2", "--strict", "--out", "x").custom


def test_common_flags_are_not_abbreviations(house, name):
    common = scales.parse_common(["--seeds", "7", "--scale", "cpu", "--repeats", "2", "-h"])
    assert common == scales.Common(scale="cpu")


def test_flags_of_a_common_call_give_it_back(house, name):
    common = scales.Common("full", 3, 2, Path("a b"), True)
    again = scales.parse_common(common.flags("toy"))
    assert again == scales.Common("full", 3, 2, Path("a b/toy"), True)


def test_help_explains_common_flags_and_fields(house, name, capsys):
    with pytest.raises(SystemExit) as stop:
        call(house, name, "--scale", "cpu", "--help")
    assert stop.value.code == 0
    words = " ".join(capsys.readouterr().out.split())
    for part in ("A toy that counts.", "Seed of the random key", "How many repeats", "default: 3"):
        assert part in words


@pytest.mark.parametrize("argv", [["--reapeats", "2"], ["--repeats", "two"], ["extra"]])
def test_wrong_flags_end_with_status_two(house, name, argv, capsys):
    with pytest.raises(SystemExit) as stop:
        call(house, name, *argv)
    assert stop.value.code == 2
    assert argv[0] in capsys.readouterr().err


def test_wrong_scale_and_devices(house, name, as_user):
    with pytest.raises(ValueError, match=r"--scale: .*got 'cpuu'; did you mean 'cpu'"):
        call(house, name, "--scale", "cpuu")
    with pytest.raises(ValueError, match="--devices: expected a whole number of at least 1, got 0"):
        call(house, name, "--devices", "0")


def test_incomplete_drivers_are_named(house, as_user):
    (house / "half.py").write_text("SCALES = {}\nclass Config: pass\n")
    with pytest.raises(
        ValueError, match="driver half: expected Config, SCALES and run, got no run"
    ):
        scales.load(house, "half")
    (house / "clash.py").write_text(
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass Config:\n  seed: int = 0\n"
        "SCALES = {}\ndef run(): pass\n"
    )
    with pytest.raises(ValueError, match=r"expected other names in Config, \['seed'\]"):
        scales.load(house, "clash")
