"""Sinkhorn treatment effects: size, power, debiasing, saturation, images and real studies.

Claims: the test holds its level and finds changes of shape that a test of means cannot see;
debiasing pays under confounding; the divergence keeps growing where MMD saturates.
Data: simulated trials; scikit-learn digits as a stand-in for pathology images; NHEFS and the
LaLonde trial as they ship in causaldata.   cpu: about 5 min on 2 cores, nothing is trained.
Run:   python -m experiments sinkhorn_effect --scale cpu
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from experiments import _sinkhorn_effect as evidence
from jaxicml.harness.claims import Report
from jaxicml.methods.sinkhorn_effect import study
from jaxicml.methods.sinkhorn_effect.data import gaussian_law
from jaxicml.train.sharding import sweep
from jaxicml.types import Key, Progress

NULL, MEAN, COV, MODES = evidence.CELLS


@dataclass(frozen=True)
class Config:
    """Sizes of the studies; everything else is `study.Protocol`."""

    n: int = 200
    """Observations of the evaluation sample, and of the nuisance sample."""
    replications: int = 200
    """Data sets per cell."""
    batch: int = 1
    """Replications run as one vmap on a device."""
    num_null: int = 500
    """Draws of each null law."""
    law: str = "kernel"
    """Conditional law of the simulated trials, "kernel" or "flow"."""
    pcam: str = ""
    """Folder or embeddings of PatchCamelyon; digits stand in where it is empty."""
    cells: tuple[tuple[str, float], ...] = (NULL, ("mean", 0.6), MEAN, COV, MODES)
    """Kind and strength θ of the Gaussian trials; the claims need the null and three others."""
    estimation: tuple[tuple[float, int, int], ...] = (
        (1.0, 2, 1), (0.0, 2, 1), (1.0, 1, 1), (2.0, 2, 1), (2.0, 2, 2))  # fmt: skip
    """Confounding, folds and multiple of n of the debiasing rows; the claim is on the first."""
    seeds: int = 20
    """Data sets per θ of the saturation curve."""
    healing: tuple[float, ...] = (-20.0, 0.0, 20.0)
    """Log odds θ that treatment heals, in the image trial; the first is the null. None: skipped."""
    studies: tuple[tuple[str, int], ...] = (("nhefs", 1566), ("nsw", 445), ("cps", 1000))
    """Observed studies and the size of the random subsample analysed."""
    splits: int = 5
    """Random splits of each observed study."""
    permutations: int = 200
    """Permuted subsamples of NHEFS."""
    subsample: int = 500
    """Size of a permuted subsample."""


_TINY: dict[str, Any] = {
    "n": 64,  # loops over powers of two compile fastest
    "replications": 4,
    "num_null": 99,
    "seeds": 4,
    "splits": 4,
    "permutations": 4,
}
SCALES = {
    "smoke": Config(**_TINY, cells=evidence.CELLS, estimation=((1.0, 2, 1), (0.0, 2, 1)),
                    healing=(), studies=(("nhefs", 128),), subsample=128),
    "cpu": Config(),
    "full": Config(n=5000, replications=1000, num_null=2000, law="flow", permutations=200,
                   subsample=1566, studies=(("nhefs", 1566), ("nsw", 445), ("cps_all", 16177))),
}  # fmt: skip


def run(cfg: Config, key: Key, log: Progress) -> Report:
    """Runs every study in float64; `evidence` states the claims."""
    with jax.enable_x64(True):
        keys = jax.random.split(key, 5)
        run_all = partial(sweep, batch_size=cfg.batch, log=log)
        protocol = study.Protocol(n=cfg.n, num_null=cfg.num_null, law=cfg.law)
        cells = [(gaussian_law(theta, kind), 0.0, 1.0) for kind, theta in cfg.cells]
        trial = study.gaussian_comparison(protocol)
        tests = run_all(trial, keys[0], cells, cfg.replications, label="Gaussian trials")
        result = evidence.Evidence(
            multiples=protocol.multiples,
            tests=dict(zip(cfg.cells, tests, strict=True)),
            estimates=evidence.run_estimates(cfg, keys[2], run_all),
            curve=evidence.run_curve(cfg, keys[3], run_all),
            images=evidence.run_images(cfg, keys[1], run_all),
            observed=evidence.run_observed(cfg, keys[4], log),
        )
        return Report(
            evidence.claims(result), evidence.tables(result), {"figure": evidence.figure(result)}
        )
