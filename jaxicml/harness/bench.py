"""Speed against peers, in one process, turn by turn.

Both sides are warmed up, then timed alternately and with results waited for, so that what slows
the machine slows both. The figure is the median of the ratios of neighbours,

    ratio = theirs / ours,

above 1 when ours is better, with a bootstrap interval. The first call, which compiles, is kept
apart. A limit of the hardware (bytes, roofline) is a peer called "limit". A peer that is not
installed is named as missing.
"""

import importlib
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxicml import checks
from jaxicml.harness import files, progress, provenance, scales, terminal, text
from jaxicml.stats import intervals

__all__ = [
    "Bench",
    "Case",
    "Entry",
    "exponent",
    "interleave",
    "limit",
    "run_bench",
    "seconds",
    "write_bench",
]

Work = Callable[[], Any]
Clock = Callable[[], float]
Number = float | int


@dataclass(frozen=True)
class Case:
    """Two pieces of work that do the same."""

    id: str
    """What is compared."""
    peer: str
    """Whose the other one is."""
    ours: Work
    theirs: Work
    target: Number | None = None
    """The ratio to reach."""
    note: str = ""


@dataclass(frozen=True)
class Entry:
    """One figure of `bench.json`; a ratio above 1 is the better for us."""

    id: str
    peer: str
    ours: Number
    theirs: Number
    unit: str
    ratio: Number
    interval: tuple[Number, Number] | None = None
    target: Number | None = None
    note: str = ""
    compile: Mapping[str, Number] = field(default_factory=dict)
    """Seconds that the first call of each side took longer."""


@dataclass(frozen=True)
class Bench:
    """What a benchmark module returns: its figures and the peers that are not here."""

    entries: Sequence[Entry]
    missing: Sequence[str] = ()

    def __post_init__(self):
        ids = [entry.id for entry in self.entries]
        twice = sorted({id for id in ids if ids.count(id) > 1})
        if twice:
            raise ValueError(f"entries: expected different ids, got {twice} more than once")


def interleave(
    cases: Iterable[Case],
    *,
    repeats: int = 15,
    warmup: int = 2,
    log: Any = None,
    clock: Clock = time.perf_counter,
) -> list[Entry]:
    """Times both sides of every case in turn.

    Args:
        cases: what to compare.
        repeats: timed pairs; who goes first alternates.
        warmup: calls of each side before, of which the first is kept as the compiling one.
        log: progress, see `types.Progress`.
        clock: seconds.

    Returns:
        One entry a case.

    Raises:
        ValueError: fewer than two repeats or no warm-up.

    >>> same = lambda: sum(range(1000))
    >>> (entry,) = interleave([Case("sum", "itself", same, same)], repeats=3)
    >>> entry.peer, entry.unit, entry.ratio > 0
    ('itself', 's', True)
    """
    checks.check_integer("repeats", repeats, low=2)
    checks.check_integer("warmup", warmup, low=1)
    log = progress.Silent() if log is None else log
    tracked = log.track(list(cases), "benchmark")
    return [_compare(case, repeats, warmup, clock) for case in tracked]


def _compare(case: Case, repeats: int, warmup: int, clock: Clock) -> Entry:
    first_theirs = _warm(case.theirs, warmup, clock)
    first_ours = _warm(case.ours, warmup, clock)
    ours, theirs = [], []
    for turn in range(repeats):
        sides = [(case.theirs, theirs), (case.ours, ours)]
        for work, times in sides if turn % 2 == 0 else reversed(sides):
            times.append(_timed(work, clock))
    ratios = np.divide(theirs, ours)
    steady = {"ours": statistics.median(ours), "theirs": statistics.median(theirs)}
    return Entry(
        id=case.id,
        peer=case.peer,
        **steady,
        unit="s",
        ratio=float(np.median(ratios)),
        interval=_median_interval(ratios),
        target=case.target,
        note=case.note,
        compile={
            "ours": max(0.0, first_ours - steady["ours"]),
            "theirs": max(0.0, first_theirs - steady["theirs"]),
        },
    )


def _timed(work: Work, clock: Clock) -> float:
    start = clock()
    jax.block_until_ready(work())
    return clock() - start


def _warm(work: Work, calls: int, clock: Clock) -> float:
    """Seconds of the first call, after all of them."""
    first, *_ = [_timed(work, clock) for _ in range(calls)]
    return first


def _median_interval(values: np.ndarray) -> tuple[float, float]:
    key = jax.random.key(0)
    low, high = intervals.bootstrap_interval(key, jnp.asarray(values, float), statistic=jnp.median)
    return float(low), float(high)


def seconds(
    work: Work, *, repeats: int = 7, warmup: int = 2, clock: Clock = time.perf_counter
) -> float:
    """Median seconds of one piece of work after its warm-up.

    Raises:
        ValueError: no repeat or no warm-up.
    """
    checks.check_integer("repeats", repeats, low=1)
    checks.check_integer("warmup", warmup, low=1)
    _warm(work, warmup, clock)
    return statistics.median(_timed(work, clock) for _ in range(repeats))


def limit(
    id: str,
    ours: Number,
    bound: Number,
    unit: str,
    *,
    target: Number | None = None,
    note: str = "",
) -> Entry:
    """A figure against a limit: bytes, a roofline, an exponent. Smaller is better for ours.

    Raises:
        ValueError: a number that is not above zero.

    >>> limit("peak memory", ours=7.0, bound=14.0, unit="buffers", target=1).ratio
    2.0
    """
    checks.check_positive("ours", ours)
    checks.check_positive("bound", bound)
    return Entry(id, "limit", ours, bound, unit, bound / ours, None, target, note)


def exponent(sizes: Sequence[Number], costs: Sequence[Number]) -> float:
    """Slope of log cost against log size: 2 when the cost is quadratic.

    Raises:
        ValueError: fewer than two sizes, other lengths, numbers not above zero.

    >>> round(exponent([10, 20, 40], [1.0, 4.0, 16.0]), 6)
    2.0
    """
    checks.check_same_length(sizes=sizes, costs=costs)
    checks.check_integer("number of sizes", len(set(sizes)), low=2)
    checks.check_positive("sizes", sizes)
    checks.check_positive("costs", costs)
    slope = statistics.linear_regression(list(map(math.log, sizes)), list(map(math.log, costs)))
    return slope.slope


def write_bench(path: Path, bench: Bench, *, size: str, root: Path) -> None:
    """Writes `bench.json`.

    Args:
        path: the file.
        bench: figures.
        size: at which size they were taken.
        root: folder of the experiments, whose commit is named.
    """
    tree = provenance.commit(root)
    record = {
        "size": size,
        "versions": provenance.versions(),
        "device": provenance.device_words(jax.devices()),
        "commit": tree.commit,
        "dirty": tree.dirty,
        "entries": bench.entries,
        "missing": bench.missing,
    }
    files.write_file(path, text.dumps(record).encode())


@dataclass(frozen=True)
class Flags:
    """Flags of a benchmark."""

    size: str = "full"
    """One of the module's sizes; only full becomes the committed file."""
    out: Path | None = None
    """Folder to write to."""


def run_bench(name: str, argv: Sequence[str], *, root: Path) -> int:
    """Runs `root/bench/NAME.py`, prints its figures and writes `bench.json`.

    The module has `SIZES`, a dictionary of whatever its `run(size, log) -> Bench` takes.

    Args:
        name: of the benchmark.
        argv: its flags.
        root: the package folder of the experiments.

    Returns:
        Exit status 0.

    Raises:
        SystemExit: no such benchmark, size or flag (2), or help (0).
    """
    known = sorted(path.stem for path in (root / "bench").glob("[!_]*.py"))
    with terminal.usage_errors():
        checks.check_known("benchmark", name, known)
    flags = scales.parse_flags(Flags, argv, prog=f"python -m {root.name} bench {name}")
    module = importlib.import_module(f"{root.name}.bench.{name}")
    with terminal.usage_errors():
        checks.check_known("--size", flags.size, module.SIZES)
    with progress.for_terminal() as log:
        bench = module.run(module.SIZES[flags.size], log)
    if not isinstance(bench, Bench):
        raise ValueError(f"run: expected a Bench, got {type(bench).__name__}")
    stated = root / "results" / name if flags.size == "full" else root / "results" / name / "custom"
    path = (flags.out or stated) / "bench.json"
    write_bench(path, bench, size=flags.size, root=root)
    terminal.show_bench(name, bench.entries, bench.missing, path)
    return 0
