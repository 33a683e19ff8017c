"""Runs a driver and keeps what it found.

The result folder holds `result.json`, `table.md` and the figures. It is replaced whole at the
end of a run: a run that breaks leaves the old one as it was.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from jaxicml import checks
from jaxicml.harness import files, plots, progress, provenance, scales, terminal, text
from jaxicml.harness.claims import Report
from jaxicml.harness.threads import one_blas_thread

__all__ = ["CompileClock", "destination", "run_driver", "write_result"]

COMPILE_EVENTS = "/jax/core/compile/"


class CompileClock:
    """Seconds in which JAX traced, lowered or compiled while the clock was watching.

    Inner functions are traced inside the tracing of outer ones, so durations are not added:
    what counts is the time that at least one of the spans covers.
    """

    def __init__(self):
        self._spans: list[tuple[float, float]] = []

    def note(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        """Takes one monitoring event, which ends now."""
        if event.startswith(COMPILE_EVENTS):
            now = time.perf_counter()
            self._spans.append((now - duration_secs, now))

    @contextmanager
    def watching(self) -> Iterator["CompileClock"]:
        """Listens to JAX for the length of a block."""
        jax.monitoring.register_event_duration_secs_listener(self.note)
        try:
            yield self
        finally:
            jax.monitoring.unregister_event_duration_listener(self.note)

    @property
    def seconds(self) -> float:
        """Length of the union of the spans."""
        return covered(self._spans)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals.

    >>> covered([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def run_driver(name: str, argv: Sequence[str], *, root: Path) -> int:
    """Runs one driver with its flags, prints what it found and writes its result.

    Args:
        name: the driver.
        argv: its flags.
        root: the package folder that holds it; results go to `root/results`.

    Returns:
        Exit status: 0, or 1 with `--strict` when a claim fails.

    Raises:
        SystemExit: no such driver, scale, flag or number of devices (2), or help (0).
    """
    with terminal.usage_errors():
        scales.find(root, name)
        want_devices(scales.parse_common(argv).devices)
    module = scales.load(root, name)
    with terminal.usage_errors():
        call = scales.parse(module, argv, prog=f"python -m {root.name} {name}")
        devices = take_devices(call.common.devices)
    tree = provenance.commit(root)  # before the run: this code is loaded now
    report, seconds = _timed_run(module, call, devices)
    record = {
        "config": call.config,
        "scale": call.common.scale,
        "seed": call.common.seed,
        "versions": provenance.versions(),
        "device": provenance.device_words(devices),
        "commit": tree.commit,
        "dirty": tree.dirty,
        "seconds": seconds,
        "claims": [claim.to_json() for claim in report.claims],
        "tables": [table.to_json() for table in report.tables],
        "figures": sorted(report.figures),
    }
    folder = destination(root, name, call, report)
    write_result(folder, record, report, title=f"{name}, scale {call.common.scale}")
    terminal.show_report(report, seconds=seconds, folder=folder)
    return int(call.common.strict and report.verdict == "fails")


def want_devices(count: int) -> None:
    """Asks for that many CPU devices; without effect where there are accelerators.

    Raises:
        ValueError: JAX was used before with fewer.
    """
    checks.check_integer("--devices", count, low=1)
    if jax.config.jax_num_cpu_devices < count and count > 1:  # pyright: ignore
        try:
            jax.config.update("jax_num_cpu_devices", count)
        except RuntimeError:
            raise ValueError(
                f"--devices: expected at most {jax.device_count()}, because JAX has started "
                f"already, got {count}"
            ) from None


def take_devices(count: int) -> list[Any]:
    """The first devices.

    Raises:
        ValueError: there are fewer.
    """
    devices = jax.devices()
    if count > len(devices):
        raise ValueError(f"--devices: expected at most {len(devices)}, got {count}")
    return devices[:count]


def _timed_run(module, call: scales.Call, devices: Sequence[Any]):
    from jaxicml.train.sharding import use_devices

    start = time.perf_counter()
    with (
        CompileClock().watching() as clock,
        use_devices(devices),
        one_blas_thread(),
        progress.for_terminal() as log,
    ):
        report = module.run(call.config, jax.random.key(call.common.seed), log)
    total = time.perf_counter() - start
    if not isinstance(report, Report):
        raise ValueError(f"run: expected a Report, got {type(report).__name__}")
    seconds = {"compile": round(clock.seconds, 2), "run": round(total - clock.seconds, 2)}
    return report, seconds


def destination(root: Path, name: str, call: scales.Call, report: Report) -> Path:
    """Where a result goes.

    The folder of a scale holds only its stated configuration; the one of `cpu`, which is
    committed, only runs in which every claim was examined. Everything else is `custom`.
    """
    if call.common.out is not None:
        return call.common.out
    missing = any(claim.verdict == "not run" for claim in report.claims)
    other = call.custom or (call.common.scale == "cpu" and missing)
    return root / "results" / name / ("custom" if other else call.common.scale)


def write_result(folder: Path, record: Mapping[str, Any], report: Report, *, title: str) -> None:
    """Replaces the result in a folder, figures included.

    Args:
        folder: where.
        record: what `result.json` holds.
        report: figures and tables.
        title: heading of `table.md`.
    """
    contents = {f"{name}.png": plots.png(figure) for name, figure in report.figures.items()}
    contents["table.md"] = report.markdown(title).encode()
    contents["result.json"] = text.dumps(record).encode()
    files.write_folder(folder, contents, index="result.json", stale=_figures(folder))


def _figures(folder: Path) -> list[str]:
    """Figures of the result that is there now."""
    try:
        names = json.loads((folder / "result.json").read_text())["figures"]
        return [f"{name}.png" for name in names]
    except (OSError, ValueError, KeyError, TypeError):
        return []
