"""DDPM on Gaussian mixtures: how many steps are enough, in exact numbers.

The theory says that DDPM with the exact score comes within total variation ε of a mixture of
Gaussians in T = Õ(1/ε) steps, whatever the dimension d and nearly whatever the number of components
K, and that it bears score errors. Here the law of the sampler's output is computed where that is
possible, bounded from both sides where not, and the one choice that makes the statement true in
practice, the reverse variance, can be varied:

    Y_{t-1} = (Y_t + (1 − α_t) s_t(Y_t)) / √α_t + sd_t Z_t,    t = T..2,    Y_T ~ N(0, I)
    β_1 = T^{−c0},  β_{t+1} = (c1 log T / T) min{β_1 (1 + c1 log T / T)^t, 1}

For one component N(0, σ² I) the output is N(0, V_1 I), V_{t-1} = (α_t v_{t-1}²/v_t²) V_t + sd_t²
with v_t = ᾱ_t σ² + 1 − ᾱ_t. Under the usual variances V_1/v_1 − 1 is of order log T / T, so the
distance grows like √d log T / T and reaches one; under sd_t² = (1 − α_t) v_{t-1}/v_t ("component")
the excess is 2e-10 at T = 100, and no dimension sees it.

Map:
    gaussian      one component: variance recursion, total variation between Gaussians
    density       the exact output law on the line; plane: the same in the plane
    subspace      span of the means and the rest: exact total variation in any dimension
    bounds        many dimensions: path KL from above, tests from below
    information   the trace bound, snr · mmse(snr) ≤ 2 H(π)
    sampling      draws; perturbation: scores with a known error
    targets       mixtures on lines, simplices and spheres, and laws near them; fitting: EM
    baselines     DDIM, DPM-Solver++(2M), Langevin at the same number of score calls

>>> import jax
>>> from jaxicml.diffusion import schedules
>>> from jaxicml.methods.ddpm_gmm import output_tv, three_modes
>>> with jax.enable_x64(True):
...     for d in (1, 10_000):
...         target, schedule = three_modes(d), schedules.theory(100)
...         good = output_tv(target, schedule, "component")
...         usual = output_tv(target, schedule, "posterior")
...         print(f"d = {d}: {good.upper:.4f} against {usual.lower:.4f} at least")
d = 1: 0.0274 against 0.0273 at least
d = 10000: 0.0274 against 0.9989 at least

Faithfulness:
    The paper's: the forward process, the sampler's mean, the question and the form of the answer.
    It is a theory paper without code; constants and powers of logarithms are not claimed here.
    Predecessors': the schedule (Li, Yan), the variances "beta", "upper", "posterior".
    Ours: the variance "component" and the reason for it, the propagation of densities, the path KL
    and its control variate, the lower bounds, the form of the trace bound, all targets and data.

References:
    Li, Cai, Wei, "Dimension-free convergence of diffusion models for approximate Gaussian
    mixtures", ICML 2026, arXiv:2504.05300. Li, Yan, "O(d/T) convergence theory for diffusion
    probabilistic models under minimal assumptions", arXiv:2409.18959.
"""

from jaxicml.methods.ddpm_gmm.baselines import (
    Baseline,
    TunedLaw,
    baseline_law_1d,
    baseline_sample,
    tuned_law_1d,
)
from jaxicml.methods.ddpm_gmm.bounds import (
    Estimate,
    LowerBound,
    kl_to_tv,
    path_kl_bound,
    tv_from_ratios,
    tv_lower_bound,
)
from jaxicml.methods.ddpm_gmm.density import (
    DensityResult,
    LineSteps,
    compare_densities,
    ddim_steps,
    ddpm_steps,
    line_grid,
    output_density_1d,
    output_law,
    propagate_density,
)
from jaxicml.methods.ddpm_gmm.fitting import fit_spherical_gmm, kernel_mixture
from jaxicml.methods.ddpm_gmm.gaussian import GaussianLaw, output_law_gaussian, tv_isotropic
from jaxicml.methods.ddpm_gmm.information import (
    mixture_entropy,
    mmse_curve,
    mmse_on_line,
    schedule_snr,
)
from jaxicml.methods.ddpm_gmm.perturbation import (
    Perturbation,
    misfit_mixture,
    perturb_score,
    score_error,
    score_shift,
)
from jaxicml.methods.ddpm_gmm.plane import PlaneResult, output_density_2d
from jaxicml.methods.ddpm_gmm.sampling import DDPMResult, ScoreFn, ddpm_sample, mixture_score
from jaxicml.methods.ddpm_gmm.subspace import Split, TVBounds, output_tv, split_subspace
from jaxicml.methods.ddpm_gmm.targets import (
    StudentMixture,
    anisotropic,
    collinear,
    random_means,
    simplex,
    student_mixture,
    three_modes,
)

__all__ = [
    "Baseline",
    "DDPMResult",
    "DensityResult",
    "Estimate",
    "GaussianLaw",
    "LineSteps",
    "LowerBound",
    "Perturbation",
    "PlaneResult",
    "ScoreFn",
    "Split",
    "StudentMixture",
    "TVBounds",
    "TunedLaw",
    "anisotropic",
    "baseline_law_1d",
    "baseline_sample",
    "collinear",
    "compare_densities",
    "ddim_steps",
    "ddpm_sample",
    "ddpm_steps",
    "fit_spherical_gmm",
    "kernel_mixture",
    "kl_to_tv",
    "line_grid",
    "misfit_mixture",
    "mixture_entropy",
    "mixture_score",
    "mmse_curve",
    "mmse_on_line",
    "output_density_1d",
    "output_density_2d",
    "output_law",
    "output_law_gaussian",
    "output_tv",
    "path_kl_bound",
    "perturb_score",
    "propagate_density",
    "random_means",
    "schedule_snr",
    "score_error",
    "score_shift",
    "simplex",
    "split_subspace",
    "student_mixture",
    "three_modes",
    "tuned_law_1d",
    "tv_from_ratios",
    "tv_isotropic",
    "tv_lower_bound",
]
