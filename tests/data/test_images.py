"""Images: the idx format and the two data sets."""

import gzip
import struct

import numpy as np
import pytest

from jaxicml.data import images, sources

PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


def idx_bytes(array, code=0x08):
    """An idx file written from its definition."""
    head = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


def write(path, data):
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_reads_what_was_written(tmp_path, pack):
    path = write(tmp_path / "a", pack(idx_bytes(PIXELS)))
    np.testing.assert_array_equal(images.read_idx(path), PIXELS)


@pytest.mark.parametrize(("code", "dtype"), [(0x0B, ">i2"), (0x0C, ">i4"), (0x0E, ">f8")])
def test_other_types_are_big_endian(tmp_path, code, dtype):
    array = np.array([1, -2, 300]).astype(dtype)
    back = images.read_idx(write(tmp_path / "a", idx_bytes(array, code)))
    np.testing.assert_array_equal(back, [1, -2, 300])
    assert back.dtype.isnative


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda data: data[:-1], "expected 24 bytes for shape .2, 3, 4., got 23"),
        (lambda data: data + b"x", "expected 24 bytes .* got more"),
        (lambda data: b"\x89PNG" + data, "expected an idx file, got one that starts with"),
        (lambda data: data[:3], "expected an idx file"),
        (lambda data: data[:6], "expected a whole idx file"),
        (lambda data: gzip.compress(data)[:-9], "expected a whole idx file"),
        (lambda data: b"", "expected an idx file"),
    ],
)
def test_broken_files_are_refused(tmp_path, as_user, change, match):
    path = write(tmp_path / "a", change(idx_bytes(PIXELS)))
    with pytest.raises(ValueError, match=match):
        images.read_idx(path)


def test_nothing_is_allocated_for_a_header_that_promises_too_much(tmp_path, as_user):
    head = bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**31, 2**31, 2**31)
    with pytest.raises(ValueError, match="expected at most 1073741824 bytes"):
        images.read_idx(write(tmp_path / "a", head))


def test_fashion_mnist_from_a_folder(tmp_path):
    labels = np.array([3, 9], np.uint8)
    write(tmp_path / "t10k-images-idx3-ubyte.gz", gzip.compress(idx_bytes(PIXELS)))
    write(tmp_path / "t10k-labels-idx1-ubyte.gz", gzip.compress(idx_bytes(labels)))
    found = images.load_fashion_mnist("test", folder=tmp_path)
    np.testing.assert_array_equal(found.pixels, PIXELS)
    assert found.labels.tolist() == [3, 9]


def test_labels_of_another_length_are_refused(tmp_path, as_user):
    write(tmp_path / "train-images-idx3-ubyte.gz", gzip.compress(idx_bytes(PIXELS)))
    write(tmp_path / "train-labels-idx1-ubyte.gz", gzip.compress(idx_bytes(PIXELS[0, 0])))
    with pytest.raises(ValueError, match=r"train-labels.*: expected shape \(2\), got \(4,\)"):
        images.load_fashion_mnist(folder=tmp_path)
    with pytest.raises(ValueError, match=r"split: expected one of .*, got 'valid'"):
        images.load_fashion_mnist("valid")


def test_the_error_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXICML_CACHE", str(tmp_path))
    with pytest.raises(sources.DataMissing, match=r"python -m jaxicml\.data fetch fashion-mnist"):
        images.load_fashion_mnist()


def test_digits():
    digits = images.load_digits()
    assert digits.pixels.max() == 16
    assert set(digits.labels.tolist()) == set(range(10))
    assert images.signed_pixels(digits, white=16).max() == 1


def test_pixels_above_white_are_refused(as_user):
    with pytest.raises(ValueError, match=r"pixels: expected values in \[0, 16\]"):
        images.signed_pixels(images.Images(PIXELS, np.zeros(2, int)), white=16)
