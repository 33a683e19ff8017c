"""Sinkhorn treatment effects: size, power, debiasing, saturation, images and real studies.

Claims: the test holds its level and finds changes of shape that a test of means cannot see;
debiasing pays under confounding; the divergence keeps growing where MMD saturates.
Data: simulated trials; scikit-learn digits as a stand-in for pathology images; NHEFS and the
LaLonde trial as they ship in causaldata.   cpu: about 5 min on 2 cores, nothing is trained.
Run:   python -m experiments sinkhorn_effect --scale cpu
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from experiments import _sinkhorn_effect as evidence
from jaxicml.data import tabular
from jaxicml.harness.claims import Report
from jaxicml.methods.sinkhorn_effect import bimodal_curve, digits_pools, study
from jaxicml.methods.sinkhorn_effect.data import gaussian_law
from jaxicml.train.sharding import replicate
from jaxicml.types import Key, Progress

NULL, MEAN, COV, MODES = evidence.CELLS
LOADERS = {
    "nhefs": tabular.load_nhefs,
    "nsw": partial(tabular.load_nsw, transform="thousands"),
    "cps": partial(tabular.load_nsw, controls="cps", transform="thousands", max_controls=815),
    "cps_all": partial(tabular.load_nsw, controls="cps", transform="thousands"),
}


@dataclass(frozen=True)
class Config:
    """Sizes of the studies; everything else is `study.Protocol`."""

    n: int = 200
    """Observations of the evaluation sample, and of the nuisance sample."""
    replications: int = 200
    """Data sets per cell."""
    batch: int = 8
    """Replications run as one vmap on a device."""
    num_null: int = 500
    """Draws of each null law."""
    cells: tuple[tuple[str, float], ...] = (NULL, ("mean", 0.6), MEAN, COV, MODES)
    """Kind and strength θ of the Gaussian trials; the claims need the null and three others."""
    estimation: tuple[tuple[float, int, int], ...] = (
        (1.0, 2, 1), (0.0, 2, 1), (1.0, 1, 1), (2.0, 2, 1), (2.0, 2, 2))  # fmt: skip
    """Confounding, folds and multiple of n of the debiasing rows; the claim is on the first."""
    seeds: int = 20
    """Data sets per θ of the saturation curve."""
    healing: tuple[float, ...] = (-20.0, 0.0, 20.0)
    """Log odds θ that treatment heals, in the image trial; the first is the null."""
    studies: tuple[tuple[str, int], ...] = (("nhefs", 1566), ("nsw", 445), ("cps", 1000))
    """Observed studies and the size of the random subsample analysed."""
    splits: int = 5
    """Random splits of each observed study."""
    permutations: int = 200
    """Permuted subsamples of NHEFS."""
    subsample: int = 500
    """Size of a permuted subsample."""


_TINY = {"n": 30, "replications": 4, "num_null": 99, "seeds": 4, "splits": 4, "permutations": 4}
SCALES = {
    "smoke": Config(**_TINY, cells=(NULL, MEAN, COV, MODES), estimation=((1.0, 2, 1),), batch=1,
                    healing=(-20.0, 20.0), studies=(("nhefs", 90),), subsample=90),
    "cpu": Config(),
    "full": Config(n=5000, replications=1000, num_null=2000, batch=1, permutations=200,
                   subsample=1566, studies=(("nhefs", 1566), ("nsw", 445), ("cps_all", 16177))),
}  # fmt: skip


def run(cfg: Config, key: Key, log: Progress) -> Report:
    """Runs every study in float64; `evidence` states the claims."""
    with jax.enable_x64(True):
        keys = jax.random.split(key, 5)
        protocol = study.Protocol(n=cfg.n, num_null=cfg.num_null)
        result = evidence.Evidence(
            multiples=protocol.multiples,
            tests=_gaussian(cfg, protocol, keys[0], log),
            estimates=_estimates(cfg, keys[1], log),
            curve=_curve(cfg, protocol, keys[2], log),
            images=_images(cfg, protocol, keys[3], log),
            observed=_observed(cfg, keys[4], log),
        )
        return Report(
            evidence.claims(result), evidence.tables(result), {"figure": evidence.figure(result)}
        )


def _gaussian(cfg: Config, protocol: study.Protocol, key: Key, log: Progress):
    trial = study.gaussian_comparison(protocol)
    keys = jax.random.split(key, (len(cfg.cells), cfg.replications))
    run_cell = lambda i: replicate(
        trial, keys[i], gaussian_law(cfg.cells[i][1], cfg.cells[i][0]), 0.0, 1.0,
        batch_size=cfg.batch)  # fmt: skip
    return {cfg.cells[i]: run_cell(i) for i in log.track(range(len(keys)), "Gaussian trials")}


def _estimates(cfg: Config, key: Key, log: Progress):
    out = {}
    keys = jax.random.split(key, (len(cfg.estimation), cfg.replications))
    for i, row in enumerate(log.track(cfg.estimation, "debiasing")):
        confounding, folds, multiple = row
        trial = study.estimation_trial(
            study.Protocol(n=multiple * cfg.n, num_null=cfg.num_null), folds
        )
        law = gaussian_law(evidence.SHIFT, "mean")
        # ε = 0 stands for the median cost; overlap .5
        out[row] = replicate(trial, keys[i], law, confounding, 0.5, 0.0, batch_size=cfg.batch)
    return out


def _curve(cfg: Config, protocol: study.Protocol, key: Key, log: Progress):
    thetas = np.linspace(0, 6, 13)
    trial = study.estimation_trial(protocol, 2)
    keys = jax.random.split(key, (len(thetas), cfg.seeds))
    fitted = [
        replicate(trial, keys[i], gaussian_law(theta, "bimodal"), 0.0, 1.0, 1.0,
                  batch_size=cfg.batch).onestep
        for i, theta in enumerate(log.track(thetas, "saturation"))
    ]  # fmt: skip
    exact = bimodal_curve(jnp.asarray(thetas), epsilon=1.0)
    return evidence.Curve(thetas, np.stack(fitted, 1), *map(np.asarray, exact))


def _images(cfg: Config, protocol: study.Protocol, key: Key, log: Progress):
    trial, pools = study.image_comparison(protocol), digits_pools()
    keys = jax.random.split(key, (len(cfg.healing), cfg.replications))
    return {
        theta: replicate(trial, keys[i], theta, *pools, batch_size=cfg.batch)
        for i, theta in enumerate(log.track(cfg.healing, "image trials"))
    }


def _observed(cfg: Config, key: Key, log: Progress):
    protocol = study.Protocol(num_null=cfg.num_null, bandwidth=(0.75, 1.0, 1.5, 2.0, 3.0))
    runs = [(name, size, False, cfg.splits) for name, size in cfg.studies]
    runs.append(("nhefs", cfg.subsample, True, cfg.permutations))
    keys, out = jax.random.split(key, len(runs)), {}
    try:
        for i, (name, size, permute, count) in enumerate(log.track(runs, "observed studies")):
            trial = study.subsample_test(protocol, size)
            x, a, y = LOADERS[name]()[:3]
            arrays = (x - x.mean(0)) / x.std(0), a.astype(float), y
            splits = jax.random.split(keys[i], count)
            out[name, permute] = replicate(trial, splits, *arrays, permute, batch_size=1)
    except ImportError as missing:
        log.note(str(missing))
    return out
