"""The driver without its data, and with it."""

import jax
import numpy as np
import pytest

from experiments import _ddpm_gmm as evidence
from experiments.ddpm_gmm import SCALES
from jaxicml.data import images
from jaxicml.data.sources import DataMissing
from jaxicml.harness.progress import Silent


def test_without_the_images_the_claim_is_not_run(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXICML_CACHE", str(tmp_path))
    assert evidence.run_images(SCALES["cpu"], jax.random.key(0), Silent()) == {}
    claim = evidence._approximate(SCALES["cpu"], {})
    assert claim.verdict == "not run"
    assert "fetched" in claim.reason


def test_fashion_mnist_as_shipped():
    try:
        found = images.load_fashion_mnist("test")
    except DataMissing as missing:
        pytest.skip(str(missing))
    assert found.pixels.shape == (10_000, 28, 28)
    np.testing.assert_array_equal(np.bincount(found.labels), np.full(10, 1000))
