"""Prints how far scores of components spread over eight devices are from those of one device."""

import sys

import jax
import jax.numpy as jnp
import numpy as np

from jaxicml.diffusion import gmm, mixture

QUANTITIES = (
    mixture.gmm_log_prob,
    mixture.gmm_score,
    mixture.gmm_denoise,
    mixture.gmm_hess_trace,
)


def differences():
    """The largest difference of each quantity, components streamed in blocks on every device."""
    rng = np.random.default_rng(0)
    weights, means = rng.dirichlet(np.ones(64)), rng.normal(size=(64, 12))
    g = gmm.gaussian_mixture(jnp.asarray(weights), jnp.asarray(means), 0.3)
    x = jnp.asarray(rng.normal(size=(5, 12)))
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("k",))
    P = jax.sharding.PartitionSpec
    specs = jax.tree.map(lambda leaf: P("k") if leaf.shape[:1] == (64,) else P(), g)
    for quantity in QUANTITIES:
        local = lambda g, x, quantity=quantity: quantity(g, x, 0.5, block=3, axis_name="k")
        spread = jax.shard_map(
            local, mesh=mesh, in_specs=(specs, P()), out_specs=P(), check_vma=False
        )
        alone = quantity(g, x, 0.5)
        yield float(jnp.max(jnp.abs(jax.jit(spread)(g, x) - alone)) / jnp.max(jnp.abs(alone)))


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    assert len(jax.devices()) == 8
    with jax.enable_x64(True):
        sys.stdout.write("NUMBERS " + str([[value] for value in differences()]) + "\n")
