"""Denoising steps against accuracy, dimension and components for DDPM on Gaussian mixtures.

Claims: the total variation falls like log T / T and depends neither on the dimension nor on the
number of components, given the right reverse variance; score errors add linearly.
Data: mixtures with known laws; Fashion-MNIST fitted with up to 1000 components.
cpu: about 5 min on 2 cores, nothing is trained beyond the fits.
Run:   python -m experiments ddpm_gmm --scale cpu
"""

from dataclasses import dataclass

import jax

from experiments import _ddpm_gmm as evidence
from experiments import _ddpm_gmm_show as show
from jaxicml.harness.claims import Report
from jaxicml.types import Key, Progress


@dataclass(frozen=True)
class Config:
    """Sizes of the studies."""

    steps: tuple[int, ...] = (25, 50, 100, 200, 400)
    """Denoising steps T of the three-mode target."""
    dims: tuple[int, ...] = (1, 100, 10_000, 1_000_000)
    """Ambient dimensions d, at T = 100."""
    outer: tuple[int, ...] = (100, 10_000, 1_000_000)
    """Dimensions without a mean in which the usual variances are compared, at T = 800."""
    components: tuple[int, ...] = (2, 8, 32, 128, 1024)
    """Numbers of components K on a line, at T = 100."""
    deltas: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)
    """Sizes δ of the score error, at T = 100."""
    step_sizes: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
    """Step sizes c among which the Langevin baselines take their best."""
    heavy_tails: tuple[float, ...] = (30, 10, 5, 3)
    """Degrees of freedom of targets near the three modes, at T = 100."""
    stretches: tuple[float, ...] = (0.1, 0.3, 0.9)
    """Sizes ρ of the anisotropy of targets near the three modes in the plane, at T = 100."""
    data: str = "fashion-mnist"
    """Images that are fitted: "fashion-mnist" or "digits"."""
    num_images: int = 10_000
    """How many of them."""
    fits: tuple[tuple[int, int, int], ...] = ((10, 1000, 2000), (100, 1000, 2000), (1000, 100, 100))
    """Components, draws of the path KL at each step, and draws of each sampler, per seed."""
    fit_iterations: int = 20
    """EM iterations."""
    image_steps: tuple[int, ...] = (50, 100, 200, 400, 800)
    """Denoising steps of the fitted mixtures."""
    seeds: int = 5
    """Repetitions of what is random."""


SCALES = {
    "smoke": Config(steps=(50, 100), dims=(1, 100), outer=(100, 10_000), components=(3, 8),
                    deltas=(0.1, 0.3), step_sizes=(0.1,), heavy_tails=(5,), stretches=(),
                    data="digits",
                    num_images=200, fits=((3, 16, 32),), fit_iterations=3, image_steps=(25, 50),
                    seeds=2),
    "cpu": Config(),
    "full": Config(steps=(25, 50, 100, 200, 400, 800, 1600), num_images=60_000, fit_iterations=100,
                   fits=((10, 4000, 10_000), (100, 4000, 10_000), (1000, 4000, 10_000))),
}  # fmt: skip


def run(cfg: Config, key: Key, log: Progress) -> Report:
    """Exact laws in float64, fitted images in float32; `evidence` states the claims."""
    exact_key, image_key = jax.random.split(key)
    with jax.enable_x64(True):
        laws = evidence.run_laws(cfg, exact_key, log)
    images = evidence.run_images(cfg, image_key, log)
    return Report(
        evidence.claims(cfg, laws, images),
        show.tables(cfg, laws, images),
        {"figure": show.figure(cfg, laws, images)},
    )
