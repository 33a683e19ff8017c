"""Pallas kernels of jaxicml, each with its XLA reference. Imports jax only."""
