"""A toy house: a package with small drivers, benchmarks and a README, in a temporary folder."""

import contextlib
import itertools
import sys
import textwrap
import types

import pytest

from jaxicml.harness.catalogue import METHODS

GOOD = '''
"""A toy that counts.

Second paragraph.
"""

from dataclasses import dataclass

import jax

from jaxicml.harness import claims, plots


@dataclass(frozen=True)
class Config:
    repeats: int = 3
    """How many repeats."""
    sizes: tuple[int, ...] = (1, 2)
    """Sizes to look at."""
    fault: str = ""
    """What goes wrong."""
    threshold: float = 0.0
    """What the claim demands."""


SCALES = {"smoke": Config(repeats=2), "cpu": Config(), "full": Config(repeats=9)}


def run(cfg, key, log):
    values = [1.0 + float(v) for v in jax.random.uniform(key, (cfg.repeats,))]
    for _ in log.track(range(cfg.repeats), "repeats"):
        if cfg.fault == "crash":
            raise RuntimeError("the toy broke")
    if cfg.fault == "number":
        return 3
    decided = claims.Claim("mean", "The mean is | large.",
                           [claims.paired("mean", values, "above", cfg.threshold)])
    absent = claims.Claim.not_run("data", "It works on data.", "not fetched")
    figure, (ax,) = plots.panels(["toy"])
    plots.line(ax, range(cfg.repeats), values, label="values")
    plots.direct_labels(ax)
    table = claims.Table("Values", ["i", "value"], list(enumerate(values)), "A note.")
    figures = {"figure": figure} | ({} if cfg.fault == "one figure" else {"more": figure})
    return claims.Report([decided] + [absent] * (cfg.fault == "data"), [table], figures)
'''

BENCH = '''
"""Toy benchmark."""

from jaxicml.harness import bench

SIZES = {"smoke": 10, "full": 1000}


def run(size, log):
    work = lambda: sum(range(size))
    entries = bench.interleave([bench.Case("sum", "itself", work, work, 0.5)], repeats=3, log=log)
    return bench.Bench([*entries, bench.limit("bytes", 2, 4, "buffers")], ["POT: not installed"])
'''

README = """# Toys

<!-- generated: methods -->
<!-- end: methods -->

Between.

<!-- generated: gallery -->
<!-- end: gallery -->

After.
"""

numbers = itertools.count()


@pytest.fixture
def house(tmp_path, monkeypatch):
    """The package folder; drivers carry names of the catalogue so that reports show them."""
    root = tmp_path / f"toys{next(numbers)}"
    (root / "bench").mkdir(parents=True)
    for path in (root / "__init__.py", root / "bench" / "__init__.py"):
        path.write_text('"""Toys."""\n')
    (root / f"{next(iter(METHODS))}.py").write_text(GOOD)
    (root / "bench" / f"{next(iter(METHODS))}.py").write_text(BENCH)
    (root / "__main__.py").write_text(
        textwrap.dedent("""
            import pathlib, sys
            from experiments.__main__ import main
            sys.exit(main(sys.argv[1:], pathlib.Path(__file__).resolve().parent))
        """)
    )
    (tmp_path / "README.md").write_text(README)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield root
    for name in [name for name in sys.modules if name.partition(".")[0] == root.name]:
        del sys.modules[name]


@pytest.fixture
def name():
    """The driver of the house."""
    return next(iter(METHODS))


@pytest.fixture
def used(monkeypatch):
    """Replaces the device context by one that records; holds the devices of each run."""
    seen = []

    @contextlib.contextmanager
    def use_devices(devices):
        seen.append(list(devices))
        yield

    fake = types.ModuleType("jaxicml.train.sharding")
    fake.use_devices = use_devices
    monkeypatch.setitem(sys.modules, "jaxicml.train.sharding", fake)
    return seen
