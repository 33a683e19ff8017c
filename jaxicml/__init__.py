"""jaxicml: nineteen methods from ICML 2026 as one JAX library.

Map:
    jaxicml.methods.NAME   one folder per paper: estimator, baselines, data, a page of explanation
    jaxicml.stats          intervals, significance tests, distances
    jaxicml.data           loaders, and fetch-and-cache of the data that packages ship
    jaxicml.train          what trains, maps and shards
    jaxicml.harness        experiment drivers: claims, tables, figures, benchmarks
    jaxicml.checks         the argument checks, the only place where error texts are worded
    jaxicml.types          shared array types and protocols
    jaxicml_kernels        Pallas kernels with XLA references; imports jax only

Importing `jaxicml` imports nothing else: take the room you need, for example
`from jaxicml.methods import sinkhorn_effect`.
"""

__version__ = "0.1.0"
