"""The command `python -m experiments`.

python -m experiments                         lists the drivers
python -m experiments NAME [flags]            runs one; NAME --help shows its flags
python -m experiments all [--scale smoke]     runs every driver in a process of its own
python -m experiments bench NAME [flags]      times one method against its peers
python -m experiments report [--check]        rewrites, or checks, the README's tables
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxicml.harness import scales, terminal

ROOT = Path(__file__).resolve().parent


def main(argv: Sequence[str], root: Path = ROOT) -> int:
    """Runs one command.

    Args:
        argv: what follows `python -m experiments`.
        root: the package folder with the drivers.

    Returns:
        Exit status.
    """
    name, *rest = argv or ["list"]
    if name in ("list", "-h", "--help"):
        return list_drivers(root)
    if name == "all":
        return run_all(rest, root)
    if name == "bench":
        return run_bench(rest, root)
    if name == "report":
        return run_report(rest, root)
    with terminal.usage_errors():
        scales.find(root, name)
    from jaxicml.harness import runner

    return runner.run_driver(name, rest, root=root)


def list_drivers(root: Path) -> int:
    """Prints the commands, then the drivers with the first line of their docstrings."""
    print(__doc__)
    drivers = scales.discover(root)
    width = max((len(driver.name) for driver in drivers), default=0)
    for driver in drivers:
        print(f"{driver.name:<{width}}  {driver.summary}")
    return 0


def run_all(argv: Sequence[str], root: Path) -> int:
    """Runs every driver in a fresh process, since the number of devices is fixed per process."""
    common = scales.parse_flags(scales.Common, argv, prog=f"python -m {root.name} all")
    failed = []
    for driver in scales.discover(root):
        print(f"== {driver.name}", flush=True)
        command = [sys.executable, "-m", root.name, driver.name, *common.flags(driver.name)]
        if subprocess.run(command, cwd=root.parent).returncode:
            failed.append(driver.name)
    print(f"failed: {', '.join(failed)}" if failed else "all drivers ran")
    return int(bool(failed))


def run_bench(argv: Sequence[str], root: Path) -> int:
    """Runs one benchmark, or lists them."""
    if not argv or argv[0].startswith("-"):
        for path in sorted((root / "bench").glob("[!_]*.py")):
            print(path.stem)
        return 0
    from jaxicml.harness import bench

    return bench.run_bench(argv[0], argv[1:], root=root)


def run_report(argv: Sequence[str], root: Path) -> int:
    """Rewrites or checks the README, and writes the page when asked."""
    from jaxicml.harness import report

    flags = scales.parse_flags(report.Flags, argv, prog=f"python -m {root.name} report")
    with terminal.usage_errors():
        return report.run_report(flags, root=root)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
