"""One study on one device, on eight, and on two processes of four: the same numbers."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

STUDY = pathlib.Path(__file__).with_name("study.py")
ROOT = STUDY.parents[2]


COMPONENTS = STUDY.with_name("components.py")


def start(*args, script=STUDY):
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "kernels")]))
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script), *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )


def numbers(process):
    try:
        out, err = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 0, err[-3000:]
    line = next(line for line in out.splitlines() if line.startswith("NUMBERS "))
    return [np.array(leaf, float) for leaf in json.loads(line.removeprefix("NUMBERS "))]


@pytest.fixture(scope="module")
def single():
    return numbers(start(1))


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_eight_devices_give_the_numbers_of_one(single):
    assert single[0].shape[0] == 12
    assert_same(numbers(start(8)), single)


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one(single):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    first, second = start(8, 0, port), start(8, 1, port)
    for process in (first, second):
        assert_same(numbers(process), single)


@pytest.mark.slow
def test_components_on_eight_devices_give_the_scores_of_one():
    assert np.max(numbers(start(script=COMPONENTS))) < 1e-12
