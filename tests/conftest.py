"""Settings of the whole suite: two CPU devices, a compilation cache, fixtures."""

import itertools
import os
import pathlib

import hypothesis
import jax
import jaxtyping
import pytest
import scipy.linalg  # noqa: F401  (loads the BLAS whose threads are limited)
import threadpoolctl

jax.config.update("jax_num_cpu_devices", 2)

if os.environ.get("JAXICML_TEST_CACHE", "1") != "0":
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    jax.config.update("jax_compilation_cache_dir", str(cache / "jaxicml" / "test-xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# small factorisations: worker threads of BLAS cost several times what they bring
threadpoolctl.threadpool_limits(1, user_api="blas")

hypothesis.settings.register_profile(
    "jaxicml", deadline=None, max_examples=25, derandomize=True, database=None
)
hypothesis.settings.load_profile("jaxicml")


@pytest.fixture
def x64():
    """Runs a test in float64, as a front door would."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def as_user():
    """Switches the suite's type checks off, so that a test sees the error that a user sees."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


MAPS = pathlib.Path("/proc/self/maps")
MAX_MAPS = 20_000
"""Linux allows 65,530 mappings a process; compiled programs hold several each."""

finished = itertools.count(1)


def pytest_runtest_teardown():
    """Drops compiled programs before there are so many that the next compilation crashes."""
    if next(finished) % 20 == 0 and MAPS.exists() and MAPS.read_text().count("\n") > MAX_MAPS:
        jax.clear_caches()
