import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxicml.harness import bench


class Clock:
    """Time that only the timed work moves; the first call of each side costs more."""

    def __init__(self):
        self.now, self.calls = 0.0, []

    def __call__(self):
        return self.now

    def work(self, name, first, *then):
        times = iter([first, *then])
        last = then[-1]

        def call():
            self.calls.append(name)
            self.now += next(times, last)

        return call


def test_sides_alternate_and_the_ratio_is_the_median_of_pairs():
    clock = Clock()
    ours = clock.work("ours", 10.0, 1.0, 1.0, 2.0, 1.0)
    theirs = clock.work("theirs", 5.0, 3.0, 3.0, 8.0, 2.0)
    case = bench.Case("id", "peer", ours, theirs, target=2.0, note="note")
    (entry,) = bench.interleave([case], repeats=3, warmup=2, clock=clock)
    assert clock.calls == [
        *("theirs", "theirs", "ours", "ours"),
        *("theirs", "ours", "ours", "theirs", "theirs", "ours"),
    ]
    assert (entry.ours, entry.theirs) == (1.0, 3.0)  # medians of 1, 2, 1 and of 3, 8, 2
    assert entry.ratio == 3.0  # median of 3/1, 8/2, 2/1
    assert entry.interval == (2.0, 4.0)
    assert entry.compile == {"ours": 9.0, "theirs": 2.0}
    assert (entry.id, entry.peer, entry.unit) == ("id", "peer", "s")
    assert (entry.target, entry.note) == (2.0, "note")


def test_a_slowing_machine_does_not_move_the_ratio():
    clock = Clock()
    slow = [float(k) for k in range(1, 9)]
    ours, theirs = clock.work("ours", 1.0, *slow), clock.work("theirs", 2.0, *(2 * t for t in slow))
    (entry,) = bench.interleave([bench.Case("a", "b", ours, theirs)], repeats=7, clock=clock)
    assert entry.ratio == 2.0
    assert entry.interval == (2.0, 2.0)


def test_results_are_waited_for(monkeypatch):
    waited = []
    monkeypatch.setattr(bench.jax, "block_until_ready", waited.append)
    assert bench.seconds(lambda: "result", repeats=3, warmup=2) >= 0
    assert waited == ["result"] * 5


def test_compilation_of_a_jitted_function_is_kept_apart():
    compiled = jax.jit(lambda x: jnp.linalg.svd(x @ x.T)[1])
    x = jnp.ones((20, 20))
    case = bench.Case("svd", "itself", lambda: compiled(x), lambda: compiled(x))
    (entry,) = bench.interleave([case], repeats=5)
    assert entry.compile["theirs"] > 3 * entry.theirs  # it is called first
    assert entry.compile["ours"] < entry.compile["theirs"]


def test_wrong_numbers_of_calls(as_user):
    case = bench.Case("a", "b", list, list)
    with pytest.raises(ValueError, match="repeats: expected a whole number of at least 2, got 1"):
        bench.interleave([case], repeats=1)
    with pytest.raises(ValueError, match=r"warmup: .* got 0"):
        bench.interleave([case], warmup=0)
    with pytest.raises(ValueError, match=r"repeats: .* got 0"):
        bench.seconds(list, repeats=0)


def test_limits_are_peers(as_user):
    entry = bench.limit("memory", 7, 14, "buffers", target=1)
    assert (entry.peer, entry.ratio, entry.theirs) == ("limit", 2.0, 14)
    with pytest.raises(ValueError, match="ours: expected a finite number above 0, got 0"):
        bench.limit("memory", 0, 14, "buffers")
    with pytest.raises(ValueError, match=r"expected different ids, got \['memory'\]"):
        bench.Bench([entry, entry])


@given(st.lists(st.tuples(st.integers(1, 999), st.floats(1e-3, 1e3)), min_size=2, max_size=6))
def test_exponent_is_the_least_squares_slope(points):
    sizes, costs = map(list, zip(*points, strict=True))
    if len(set(sizes)) < 2:
        with pytest.raises(ValueError, match="number of sizes"):
            bench.exponent(sizes, costs)
        return
    want = np.polyfit(np.log(sizes), np.log(costs), 1)[0]
    assert bench.exponent(sizes, costs) == pytest.approx(want, rel=1e-6, abs=1e-6)


def test_run_writes_the_file_and_never_over_the_committed_one(house, name, capsys, tmp_path):
    assert bench.run_bench(name, ["--size", "smoke"], root=house) == 0
    results = house / "results" / name
    assert [path.name for path in results.iterdir()] == ["custom"]
    got = json.loads((results / "custom" / "bench.json").read_text())
    assert {"versions", "device", "commit", "entries", "missing"} <= set(got)
    assert got["missing"] == ["POT: not installed"]
    timed, limited = got["entries"]
    fields = {"id", "peer", "ours", "theirs", "unit", "ratio", "interval", "target", "note"}
    assert fields <= set(timed)
    assert timed["interval"][0] <= timed["ratio"] <= timed["interval"][1]
    assert (limited["peer"], limited["ratio"]) == ("limit", 2.0)
    shown = capsys.readouterr().out
    assert "missing peer: POT: not installed" in shown

    bench.run_bench(name, [], root=house)
    assert (results / "bench.json").is_file()
    bench.run_bench(name, ["--out", str(tmp_path / "out")], root=house)
    assert (tmp_path / "out" / "bench.json").is_file()


def test_unknown_benchmark_and_size(house, name, capsys, as_user):
    for argv, words in (((name[:-1], []), "benchmark: "), ((name, ["--size", "huge"]), "--size: ")):
        with pytest.raises(SystemExit) as stop:
            bench.run_bench(*argv, root=house)
        assert stop.value.code == 2
        assert words in capsys.readouterr().err


def test_a_benchmark_returns_a_bench(house, name):
    (house / "bench" / f"{name}.py").write_text("SIZES = {'full': 1}\nrun = lambda size, log: 3\n")
    with pytest.raises(ValueError, match="run: expected a Bench, got int"):
        bench.run_bench(name, [], root=house)
