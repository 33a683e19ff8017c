"""One BLAS thread for programs that factorise many small matrices.

On the CPU jax calls the BLAS of SciPy for Cholesky factors and triangular solves. For matrices of a
few hundred rows its worker threads cost more than they bring, several times more when anything
else runs. Devices, not BLAS threads, are what spreads replications over cores.
"""

import contextlib
from collections.abc import Iterator

__all__ = ["one_blas_thread"]


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within the block BLAS libraries of this process use one thread."""
    import scipy.linalg  # noqa: F401  (loads the library whose threads are limited)
    import threadpoolctl

    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        yield
