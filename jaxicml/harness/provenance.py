"""Where a number comes from: versions, device, commit."""

import importlib.metadata
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Commit", "commit", "device_words", "versions"]

PACKAGES = (
    *("jaxicml", "jax", "jaxlib", "numpy", "scipy", "equinox", "flax", "optax", "ott-jax"),
    *("jraph", "scikit-learn", "causaldata", "POT", "geomloss", "torch"),
)
"""Whose versions a result names, where they are installed."""


class Commit(NamedTuple):
    """State of the source tree; None where git or a repository is missing."""

    commit: str | None
    """Full hash."""
    dirty: bool | None
    """Whether the tree had uncommitted changes outside the results and the README."""


def commit(root: Path) -> Commit:
    """The commit that holds the folder `root`.

    Args:
        root: the folder of the drivers; results lie in `root/results`, the README beside `root`.

    Returns:
        Hash and dirtiness, or two None.
    """
    generated = [f":(exclude){root.name}/results", ":(exclude)README.md"]
    sha = _git(root.parent, "rev-parse", "HEAD")
    changes = _git(root.parent, "status", "--porcelain", "--", ".", *generated)
    if sha is None or changes is None:
        return Commit(None, None)
    return Commit(sha, bool(changes))


def _git(folder: Path, *args: str) -> str | None:
    try:
        done = subprocess.run(["git", *args], cwd=folder, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that numbers may depend on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def device_words(devices: Sequence[Any]) -> str:
    """The devices of a run in words.

    Args:
        devices: `jax.Device` objects.

    Returns:
        For example "2 CPU devices (Intel Xeon, 2 cores)" or "8 devices NVIDIA H100".
    """
    kinds = Counter((device.platform, device.device_kind) for device in devices)
    return ", ".join(_group(n, *kind) for kind, n in sorted(kinds.items()))


def _group(count: int, platform_name: str, kind: str) -> str:
    plural = "device" if count == 1 else "devices"
    if platform_name == "cpu":
        return f"{count} CPU {plural} ({_processor()}, {os.cpu_count()} cores)"
    return f"{count} {plural} {kind}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
