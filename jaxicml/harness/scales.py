"""Finding drivers and reading their flags.

A driver is a module of the folder of experiments: `Config` is a frozen dataclass, `SCALES` gives
one instance per scale, `run` does the work. Its flags are read twice: first the common ones,
then, with the defaults of the chosen scale, the fields of its `Config` as well.
"""

import ast
import dataclasses
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = [
    "Call",
    "Common",
    "Driver",
    "discover",
    "find",
    "load",
    "parse",
    "parse_common",
    "parse_flags",
]


@dataclass(frozen=True)
class Driver:
    """A driver that was found, not imported."""

    name: str
    path: Path
    doc: str

    @property
    def summary(self) -> str:
        """First line of its docstring."""
        return self.doc.strip().partition("\n")[0]


@dataclass(frozen=True)
class Common:
    """Flags of every driver."""

    scale: str = "smoke"
    """How large: smoke (seconds), cpu (the committed result) or full (the paper's size)."""
    seed: int = 0
    """Seed of the random key."""
    devices: int = 1
    """How many devices the replications are spread over."""
    out: Path | None = None
    """Folder to write to, instead of the one of this scale."""
    strict: bool = False
    """End with status 1 when a claim fails."""

    def flags(self, name: str) -> list[str]:
        """The same flags as words, for one driver of several.

        >>> Common(scale="cpu", out=Path("results")).flags("atlas")
        ['--scale', 'cpu', '--seed', '0', '--devices', '1', '--out', 'results/atlas']
        """
        words = ["--scale", self.scale, "--seed", str(self.seed), "--devices", str(self.devices)]
        if self.out is not None:
            words += ["--out", str(self.out / name)]
        return words + ["--strict"] * self.strict


@dataclass(frozen=True)
class Call:
    """One parsed command line."""

    common: Common
    config: Any
    overridden: tuple[str, ...]
    """Fields of the configuration that differ from those of the scale."""

    @property
    def custom(self) -> bool:
        """Whether this is another run than the stated one of its scale."""
        return bool(self.overridden) or self.common.seed != 0


def discover(root: Path) -> list[Driver]:
    """The drivers of a folder by name, read without importing them.

    Args:
        root: a package folder.

    Returns:
        Modules without a leading underscore, sorted.
    """
    paths = sorted(root.glob("[!_]*.py"))
    return [Driver(path.stem, path, _docstring(path)) for path in paths]


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def find(root: Path, name: str) -> Driver:
    """The driver of that name.

    Raises:
        ValueError: there is none; the nearest name is suggested.
    """
    drivers = {driver.name: driver for driver in discover(root)}
    if name not in drivers:
        from jaxicml import checks  # loads JAX: only where it is needed

        checks.check_known("driver", name, drivers)
    return drivers[name]


def load(root: Path, name: str) -> ModuleType:
    """Imports a module of the package that lies in `root`.

    Raises:
        ValueError: it lacks something that a driver has.
    """
    module = importlib.import_module(f"{root.name}.{name}")
    for part in ("Config", "SCALES", "run"):
        if not hasattr(module, part):
            raise ValueError(f"driver {name}: expected Config, SCALES and run, got no {part}")
    fields = {field.name for field in dataclasses.fields(module.Config)}
    taken = sorted(fields & {field.name for field in dataclasses.fields(Common)})
    if taken:
        raise ValueError(f"driver {name}: expected other names in Config, {taken} are common flags")
    return module


def parse_flags(kind: type, argv: Sequence[str], *, prog: str) -> Any:
    """Flags of a dataclass.

    Raises:
        SystemExit: help was asked for (0) or a flag is wrong (2).
    """
    import tyro

    return tyro.cli(kind, args=list(argv), prog=prog)


def parse_common(argv: Sequence[str]) -> Common:
    """First pass: the common flags; everything else is left for the second.

    >>> parse_common(["--scale", "cpu", "--repeats", "3"]).scale
    'cpu'
    """
    import tyro

    args = [arg for arg in argv if arg not in ("-h", "--help")]
    common, _ = tyro.cli(Common, args=args, return_unknown_args=True)
    return common


def parse(module: ModuleType, argv: Sequence[str], *, prog: str) -> Call:
    """Second pass: all flags, with the defaults of the scale.

    Args:
        module: a driver.
        argv: the flags.
        prog: how the command is called, for its help.

    Returns:
        What to run.

    Raises:
        ValueError: the driver has no such scale.
        SystemExit: help was asked for (0) or a flag is wrong (2).
    """
    import tyro

    from jaxicml import checks

    common = parse_common(argv)
    checks.check_known("--scale", common.scale, module.SCALES)
    checks.check_integer("--devices", common.devices, low=1)
    default = module.SCALES[common.scale]
    flat = tyro.conf.OmitArgPrefixes
    flags = dataclasses.make_dataclass(
        "Flags", [("common", flat[Common]), ("config", flat[module.Config])]
    )
    parsed: Any = tyro.cli(
        flags,
        args=list(argv),
        default=flags(Common(), default),
        prog=prog,
        description=module.__doc__,
    )
    names = [field.name for field in dataclasses.fields(default)]
    changed = [name for name in names if getattr(parsed.config, name) != getattr(default, name)]
    return Call(parsed.common, parsed.config, tuple(changed))
