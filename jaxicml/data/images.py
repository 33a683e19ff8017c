"""Grey images with labels: idx files, Fashion-MNIST, and the digits that scikit-learn ships.

An idx file holds one array: two zero bytes, a type byte, the number of dimensions, each dimension
as a big-endian 32-bit integer, then the entries. Files are not trusted: what the header promises
is bounded before anything is allocated, and must be what follows.

References:
    LeCun, Cortes, Burges, "The MNIST database of handwritten digits" (the idx format). Xiao, Rasul,
    Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms",
    2017, arXiv:1708.07747.
"""

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped, UInt8

from jaxicml import checks
from jaxicml.data.sources import find_source, load

__all__ = ["Images", "load_digits", "load_fashion_mnist", "read_idx", "signed_pixels"]

MAX_BYTES = 1 << 30
"""Largest array that an idx file may promise unless the caller says otherwise."""

_MAX_RANK = 32

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


class Images(NamedTuple):
    """Images and what they show.

    Attributes:
        pixels: brightness, 0 is dark.
        labels: class of each image.
    """

    pixels: UInt8[np.ndarray, "n height width"]
    labels: Int[np.ndarray, " n"]


def read_idx(path: str | os.PathLike, *, max_bytes: int = MAX_BYTES) -> Shaped[np.ndarray, "..."]:
    """Reads one idx file, compressed by gzip or not.

    Args:
        path: the file.
        max_bytes: largest array that is read.

    Returns:
        The array, in the byte order of this machine.

    Raises:
        ValueError: no idx file, an unknown type, an array above the limit, or another number of
            bytes than the header promises.
        FileNotFoundError: there is no such file.
    """
    path = Path(path)
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    with gzip.open(path, "rb") if packed else path.open("rb") as stream:
        try:
            return _read(path.name, stream, max_bytes)
        except (EOFError, gzip.BadGzipFile, struct.error, zlib.error) as broken:
            raise ValueError(f"{path.name}: expected a whole idx file, got {broken}") from broken


def _read(name, stream, max_bytes):
    head = stream.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _TYPES:
        raise ValueError(f"{name}: expected an idx file, got one that starts with {head!r}")
    dtype, rank = np.dtype(_TYPES[head[2]]), head[3]
    shape = struct.unpack(f">{rank}I", stream.read(4 * rank))
    size = math.prod(shape) * dtype.itemsize
    if rank > _MAX_RANK or max(shape, default=0) > max_bytes or size > max_bytes:
        raise ValueError(f"{name}: expected at most {max_bytes} bytes, got shape {shape}")
    data = stream.read(size + 1)
    if len(data) != size:
        got = "more" if len(data) > size else len(data)
        raise ValueError(f"{name}: expected {size} bytes for shape {shape}, got {got}")
    return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def load_fashion_mnist(split: str = "train", *, folder: str | os.PathLike | None = None) -> Images:
    """Fashion-MNIST: 60,000 images to train on, 10,000 to test on, 28 by 28 pixels.

    Args:
        split: "train" or "test".
        folder: where the four idx files lie; the fetched package by default.

    Returns:
        Images and labels 0 to 9.

    Raises:
        ValueError: an unknown split, files that do not belong together.
        DataMissing: the package was not fetched; the message says how.
    """
    checks.check_choice("split", split, ("train", "test"))
    prefix = {"train": "train", "test": "t10k"}[split]
    names = [f"{prefix}-images-idx3-ubyte.gz", f"{prefix}-labels-idx1-ubyte.gz"]
    if folder is None:
        source = find_source("fashion-mnist")
        paths = [load(source.name, f"usr/share/datasets/fashion-mnist/{name}") for name in names]
    else:
        paths = [Path(folder) / name for name in names]
    pixels, labels = map(read_idx, paths)
    checks.check_shape(names[0], pixels, (None, None, None))
    checks.check_shape(names[1], labels, (len(pixels),))
    return Images(pixels, labels.astype(np.int32))


def load_digits() -> Images:
    """The 1,797 digits that ship in scikit-learn, 8 by 8 pixels of 17 levels (0 to 16).

    >>> load_digits().pixels.shape
    (1797, 8, 8)
    """
    from sklearn import datasets

    pixels, labels = map(np.asarray, datasets.load_digits(return_X_y=True))
    return Images(pixels.reshape(-1, 8, 8).astype(np.uint8), labels.astype(np.int32))


def signed_pixels(images: Images, *, white: int = 255) -> Float[np.ndarray, "n d"]:
    """Flat pixels mapped from [0, white] to [−1, 1], as float32.

    Args:
        images: the images.
        white: the brightest level that a pixel can have.

    Returns:
        One row per image.

    Raises:
        ValueError: no image, a pixel above `white`.

    >>> images = Images(np.array([[[0, 255]]], np.uint8), np.zeros(1, int))
    >>> signed_pixels(images)
    array([[-1.,  1.]], dtype=float32)
    """
    checks.check_integer("white", white, low=1)
    checks.check_min_rows("pixels", images.pixels, 1)
    checks.check_range("pixels", images.pixels, 0, white)
    flat = images.pixels.reshape(len(images.pixels), -1)
    return flat.astype(np.float32) * np.float32(2 / white) - 1
