"""Runs a small study of `sinkhorn_effect` on the devices of this process and prints its numbers.

Usage: study.py DEVICES [RANK PORT]     with a rank: one of two processes, half of the devices each
"""

import json
import sys

import jax


def connect(devices, rank=None, port=None):
    """Fixes the devices of this process, and joins the other process when there is one."""
    jax.config.update("jax_num_cpu_devices", devices if rank is None else devices // 2)
    if rank is not None:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
    assert len(jax.devices()) == devices


def numbers():
    """Leaves of a comparison over twelve data sets, spread over all devices."""
    from jaxicml.methods.sinkhorn_effect import study
    from jaxicml.methods.sinkhorn_effect.data import gaussian_law
    from jaxicml.train import sharding

    with jax.enable_x64(True), sharding.use_devices(jax.devices()):
        trial = study.gaussian_comparison(study.Protocol(n=16, num_null=99))
        keys = jax.random.split(jax.random.key(0), 12)
        out = sharding.replicate(trial, keys, gaussian_law(0.9, "mean"), 0.0, 1.0)
    # outside of the block every process works for itself
    alone = sharding.replicate(jax.random.uniform, jax.random.split(jax.random.key(1), 3))
    return [leaf.tolist() for leaf in jax.tree.leaves((out, alone))]


if __name__ == "__main__":
    connect(*map(int, sys.argv[1:]))
    sys.stdout.write(f"NUMBERS {json.dumps(numbers())}\n")
