"""Public entries of DDPM on Gaussian mixtures."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxicml.diffusion import gmm, schedules
from jaxicml.methods import ddpm_gmm as lab
from tests.contract import Bad, Row

NAME = "methods.ddpm_gmm."
N_GRID = 400
with_nan = lambda value: value.at[0, 0].set(jnp.nan)
number = lambda rng, low, high: np.array(rng.uniform(low, high))
made = lambda: schedules.theory(9)


def mixture(rng, d=1, K=3):
    """Weights, means and one wide σ², so that a coarse grid serves."""
    return rng.dirichlet(np.full(K, 4.0)), rng.uniform(-1, 1, (K, d)), number(rng, 0.9, 1.2)


def on(d, *more):
    """Inputs: a mixture in d dimensions and what `more` draws."""
    return lambda rng: (*mixture(rng, d), *(draw(rng) for draw in more))


def of(function):
    """A function of a mixture as one of its arrays."""
    return lambda w, means, cov, *rest: function(gmm.gaussian_mixture(w, means, cov), *rest)


def keyed(function):
    """Likewise with a key in front."""
    return lambda key, *arrays: of(lambda g, *rest: function(key, g, *rest))(*arrays)


distances = lambda law: (law.tv, law.w2, law.mass)
POINTS = lambda rng: rng.normal(size=(4, 1))
UNEQUAL = Bad("unequal variances", {2: jnp.array([0.9, 1.0, 1.2])}, "variances .*: expected equal")
COARSE = Bad("coarse grid", {2: 0.01}, r"n_grid \(points needed for the smallest σ\): expected")
PLANE = Bad("plane", {1: jnp.ones((3, 2))}, r"means: expected shape \(any, 1\), got \(3, 2\)")
WEIGHTS = Bad("weights", {0: jnp.ones(3)}, "weights: expected rows that sum to 1, got a sum of 3")
NAN = Bad("NaN", {1: with_nan}, "means: expected finite values")
SIGMA2 = Bad("sigma2", {2: -1.0}, "cov: expected a finite number of at least 0, got -1.0")
STEP = (
    Bad("step size", {3: 0.0}, "step_size: expected a finite number above 0, got 0"),
    Bad("NaN step", {3: jnp.nan}, "step_size: expected a finite number above 0, got nan"),
    Bad("two steps", {3: jnp.ones(2)}, "step_size: expected one number, got an array"),
)
SNR = (
    Bad("negative", {3: -jnp.ones(2)}, "snr: expected a finite number of at least 0"),
    Bad("number", {3: jnp.array(1.0)}, r"snr: expected shape \(any\), got \(\)"),
)

LAWS = [
    Row(
        NAME + "output_law_gaussian",
        lambda sigma2: lab.output_law_gaussian(made(), sigma2, "posterior"),
        lambda rng: (number(rng, 0.1, 2),),
        vmap=(0,),
        grad=(0,),
        bad=(
            Bad("negative", {0: -0.1}, "sigma2: expected a finite number of at least 0, got -0.1"),
            Bad("vector", {0: jnp.ones(2)}, "sigma2: expected one number, got an array"),
        ),
    ),
    Row(
        NAME + "tv_isotropic",
        lab.tv_isotropic,
        lambda rng: (number(rng, 1, 9), number(rng, 0.5, 1), number(rng, 1.5, 2)),
        vmap=(0, 1, 2),
        grad=(0, 1, 2),
        bad=(
            Bad("n", {0: -1}, "n: expected a finite number of at least 0, got -1"),
            Bad("a", {1: 0.0}, "a: expected a finite number above 0, got 0"),
            Bad("b", {2: jnp.nan}, "b: expected a finite number above 0, got nan"),
        ),
    ),
    Row(
        NAME + "output_density_1d",
        of(lambda g: distances(lab.output_density_1d(g, made(), "component", n_grid=N_GRID))),
        on(1),
        vmap=(0, 1, 2),
        bad=(UNEQUAL, COARSE, PLANE, WEIGHTS, NAN, SIGMA2),
        also=(NAME + "output_law",),
    ),
    Row(
        NAME + "output_density_2d",
        of(lambda g: lab.output_density_2d(g, made(), "component", n_grid=80).tv),
        on(2),
        dtypes=(),
        bad=(
            UNEQUAL,
            COARSE,
            Bad("line", {1: lambda m: m[:, :1]}, r"means: expected shape \(any, 2\), got \(3, 1\)"),
        ),
    ),
    Row(
        NAME + "propagate_density",
        lambda grid, log_q: lab.propagate_density(
            lambda x, i: -x, grid, log_q, lab.ddpm_steps(made(), "beta")
        )[1],
        lambda rng: (np.linspace(-8, 8, 201), -((np.linspace(-8, 8, 201) - rng.normal()) ** 2)),
        vmap=(1,),
        bad=(Bad("shape", {1: jnp.ones(3)}, r"log_q: expected shape \(201\), got \(3,\)"),),
    ),
    Row(
        NAME + "compare_densities",
        lambda grid, a, b: lab.compare_densities(grid, -a * grid**2 / 2, -b * grid**2 / 2),
        lambda rng: (np.linspace(-8, 8, 101), number(rng, 0.5, 0.9), number(rng, 1, 2)),
        vmap=(1, 2),
        bad=(Bad("grid", {0: jnp.ones((2, 2))}, r"grid: expected shape \(any\), got \(2, 2\)"),),
    ),
    Row(
        NAME + "line_grid",
        of(lambda g: lab.line_grid(g, made(), N_GRID)),
        on(1),
        vmap=(0, 1, 2),
        bad=(COARSE, PLANE),
    ),
    Row(
        NAME + "ddpm_steps",
        lambda sigma2: lab.ddpm_steps(made(), "component", sigma2),
        lambda rng: (number(rng, 0.1, 2),),
        vmap=(0,),
        grad=(0,),
        bad=(Bad("negative", {0: -1.0}, r"sigma2: expected values in \[0.0, inf\], got -1"),),
    ),
    Row(
        NAME + "ddim_steps",
        lambda eta: lab.ddim_steps(made(), eta),
        lambda rng: (number(rng, 0.1, 0.9),),
        vmap=(0,),
        grad=(0,),
        bad=(Bad("eta", {0: 1.5}, r"eta: expected values in \[0.0, 1.0\], got 1.5"),),
    ),
    Row(
        NAME + "split_subspace",
        of(lab.split_subspace),
        lambda rng: tuple(jnp.asarray(a, "float32") for a in mixture(rng, 5)),
        host=True,
        bad=(UNEQUAL,),
        also=(NAME + "Split",),
    ),
    Row(
        NAME + "output_tv",
        of(lambda g: lab.output_tv(g, made(), "component", n_grid=N_GRID)),
        lambda rng: tuple(jnp.asarray(a, "float32") for a in mixture(rng, 5)),
        host=True,
        bad=(UNEQUAL, Bad("rank", {}, "rank of the means: expected .* at most 2, got 3")),
    ),
]

BOUNDS = [
    Row(
        NAME + "path_kl_bound",
        keyed(lambda key, g: lab.path_kl_bound(key, g, made(), "beta", 16)),
        on(1),
        random=True,
        bad=(UNEQUAL,),
    ),
    Row(
        NAME + "kl_to_tv",
        lab.kl_to_tv,
        lambda rng: (rng.uniform(0, 3, 4),),
        vmap=(0,),
        grad=(0,),
    ),
    Row(
        NAME + "tv_from_ratios",
        lab.tv_from_ratios,
        lambda rng: (rng.normal(size=8),),
        vmap=(0,),
        grad=(0,),
        bad=(
            Bad("NaN", {0: jnp.full(8, jnp.nan)}, "log_ratio: expected values in"),
            Bad("one", {0: jnp.zeros(1)}, "log_ratio: expected at least 2 rows, got 1"),
        ),
    ),
    Row(
        NAME + "tv_lower_bound",
        lambda x, y, level: lab.tv_lower_bound(
            jax.random.key(0), x, y, lambda z: z[:, 0], level=level
        ),
        lambda rng: (rng.normal(size=(8, 2)), 2 + rng.normal(size=(8, 2)), np.array(0.9)),
        vmap=(0, 1),
        bad=(
            Bad("dimension", {1: jnp.ones((8, 3))}, r"y: expected shape \(any, 2\), got \(8, 3\)"),
            Bad("NaN", {0: with_nan}, "x: expected finite values"),
            Bad("level", {2: 1.0}, "level: expected values strictly between 0 and 1"),
        ),
    ),
    Row(
        NAME + "mmse_curve",
        keyed(lambda key, g, snr: lab.mmse_curve(key, g, snr, 8)),
        on(2, lambda rng: rng.uniform(0, 3, 2)),
        random=True,
        bad=SNR,
    ),
    Row(
        NAME + "mmse_on_line",
        of(lambda g, snr: lab.mmse_on_line(g, snr, n_grid=51)),
        on(1, lambda rng: rng.uniform(0.1, 3, 2)),
        vmap=(0, 1, 3),
        bad=(*SNR, PLANE),
    ),
    Row(
        NAME + "schedule_snr",
        of(lambda g: lab.schedule_snr(g, made())),
        on(1),
        vmap=(2,),
        grad=(2,),
        bad=(UNEQUAL,),
    ),
    Row(NAME + "mixture_entropy", lab.mixture_entropy, lambda rng: (lab.three_modes(),), host=True),
]

SCORES = [
    Row(
        NAME + "mixture_score",
        of(lambda g, x: lab.mixture_score(g, made())(x, 3)),
        on(1, POINTS),
        vmap=(0, 1, 2, 3),
        bad=(Bad("dimension", {3: jnp.ones((4, 2))}, r"x: expected shape \(4, 1\), got \(4, 2\)"),),
        also=(NAME + "ScoreFn",),
    ),
    Row(
        NAME + "score_shift",
        lambda key, x, delta: lab.score_shift(key, "fourier", delta, 1)(x, 0),
        lambda rng: (POINTS(rng), number(rng, 0.1, 1)),
        random=True,
        vmap=(0, 1),
        grad=(0, 1),
        bad=(
            Bad("dimension", {0: jnp.ones((4, 2))}, r"x: expected shape \(4, 1\), got \(4, 2\)"),
            Bad("vector", {1: jnp.ones(2)}, "delta: expected one number, got an array"),
        ),
    ),
    Row(
        NAME + "perturb_score",
        lambda key, x, delta: lab.perturb_score(key, lambda x, t: -x, "constant", delta, dim=1)(
            x, 0
        ),
        lambda rng: (POINTS(rng), number(rng, 0.1, 1)),
        random=True,
        vmap=(0, 1),
        grad=(0, 1),
        bad=(Bad("text", {1: "small"}, "delta: expected one number, got 'small'"),),
        also=(NAME + "Perturbation",),
    ),
    Row(
        NAME + "misfit_mixture",
        keyed(lab.misfit_mixture),
        on(1, lambda rng: number(rng, 0.1, 1)),
        random=True,
        vmap=(0, 1, 2, 3),
        grad=(0, 1, 2, 3),
        bad=(Bad("vector", {3: jnp.ones(2)}, "delta: expected one number, got an array"),),
    ),
    Row(
        NAME + "score_error",
        keyed(lambda key, g: lab.score_error(key, lambda x, t: -x, g, made(), 8)),
        on(1),
        random=True,
        dtypes=(),
    ),
]

SAMPLERS = [
    Row(
        NAME + "ddpm_sample",
        keyed(
            lambda key, g: (
                lab.ddpm_sample(
                    key,
                    lab.mixture_score(g, made()),
                    made(),
                    (4, 1),
                    variance="component",
                    sigma2=g.variances,
                    dtype=g.offsets.dtype,
                ).x
            )
        ),
        on(1),
        random=True,
        vmap=(0, 1, 2),
        grad=(0, 1, 2),
        bad=(Bad("vector σ²", {2: jnp.ones(3)}, "sigma2: expected one number, got an array"),),
    ),
    Row(
        NAME + "baseline_sample",
        keyed(
            lambda key, g, step: lab.baseline_sample(
                key,
                "annealed_langevin",
                lab.mixture_score(g, made()),
                made(),
                (4, 1),
                step_size=step,
                dtype=g.offsets.dtype,
            )
        ),
        on(1, lambda rng: number(rng, 0.1, 0.5)),
        random=True,
        bad=STEP,
        also=(NAME + "Baseline",),
    ),
    Row(
        NAME + "baseline_law_1d",
        of(
            lambda g, step: distances(
                lab.baseline_law_1d("unadjusted_langevin", g, made(), step_size=step, n_grid=N_GRID)
            )
        ),
        on(1, lambda rng: number(rng, 0.1, 0.5)),
        vmap=(0, 1, 2, 3),
        dtypes=(),
        bad=(*STEP, COARSE, PLANE),
    ),
    Row(
        NAME + "tuned_law_1d",
        of(lambda g, sizes: lab.tuned_law_1d("ddim", g, made(), sizes, n_grid=N_GRID).law.tv),
        on(1, lambda rng: rng.uniform(0.1, 0.5, 2)),
        dtypes=(),
        bad=(
            Bad("none", {3: jnp.ones(0)}, "step_sizes: expected at least 1 rows, got 0"),
            Bad("negative", {3: -jnp.ones(2)}, "step_sizes: expected a finite number above 0"),
            Bad("number", {3: jnp.array(1.0)}, r"step_sizes: expected shape \(any\), got \(\)"),
        ),
    ),
]

TARGETS = [
    Row(
        NAME + "three_modes",
        lambda sigma2: lab.three_modes(2, sigma2),
        lambda rng: (number(rng, 0.1, 1),),
        vmap=(0,),
        bad=(Bad("negative", {0: -1.0}, "cov: expected a finite number of at least 0, got -1"),),
    ),
    Row(
        NAME + "collinear",
        lambda spread: lab.collinear(3, spread),
        lambda rng: (number(rng, 1, 4),),
        vmap=(0,),
        bad=(Bad("vector", {0: jnp.ones(2)}, "spread: expected one number, got an array"),),
    ),
    Row(
        NAME + "simplex",
        lambda separation: lab.simplex(3, 4, separation),
        lambda rng: (number(rng, 1, 4),),
        vmap=(0,),
        bad=(Bad("vector", {0: jnp.ones(2)}, "separation: expected one number, got an array"),),
    ),
    Row(
        NAME + "random_means",
        lambda key, radius: lab.random_means(key, 3, 2, radius),
        lambda rng: (number(rng, 1, 4),),
        random=True,
        vmap=(0,),
        bad=(Bad("vector", {0: jnp.ones(2)}, "radius: expected one number, got an array"),),
    ),
    Row(
        NAME + "anisotropic",
        keyed(lab.anisotropic),
        on(2, lambda rng: number(rng, 0.1, 0.9)),
        random=True,
        vmap=(3,),
        bad=(
            Bad("rho", {3: 1.5}, r"rho: expected values in \[0.0, 1.0\], got 1.5"),
            Bad(
                "diagonal",
                {2: jnp.ones((3, 2))},
                r"number of dimensions of g.variances: expected values in \[0, 1\], got 2",
            ),
        ),
    ),
    Row(
        NAME + "student_mixture",
        of(lambda g, x, dof: lab.student_mixture(g, dof).log_prob(x)),
        on(1, POINTS, lambda rng: number(rng, 3, 6)),
        vmap=(0, 1, 2, 3, 4),
        grad=(3,),
        bad=(
            Bad("dof", {4: 2.0}, "dof - 2: expected a finite number above 0, got 0.0"),
            Bad("dimension", {3: jnp.ones((4, 2))}, r"x: expected shape \(4, 1\), got \(4, 2\)"),
        ),
        also=(NAME + "StudentMixture",),
    ),
    Row(
        NAME + "fit_spherical_gmm",
        lambda key, x: lab.fit_spherical_gmm(key, x, 2, n_iter=3),
        lambda rng: (rng.normal(size=(9, 2)),),
        random=True,
        vmap=(0,),
        bad=(
            Bad("NaN", {0: with_nan}, "x: expected finite values"),
            Bad("vector", {0: jnp.ones(9)}, r"x: expected shape \(any, any\), got \(9,\)"),
            Bad("few", {0: jnp.ones((1, 2))}, "num_components: expected .* at most 1, got 2"),
            Bad("half", {0: lambda x: x.astype("bfloat16")}, "x: expected float32 or float64"),
        ),
    ),
    Row(
        NAME + "kernel_mixture",
        lab.kernel_mixture,
        lambda rng: (rng.normal(size=(4, 2)), number(rng, 0.1, 1)),
        vmap=(0, 1),
        bad=(
            Bad("negative", {1: -1.0}, "sigma2: expected a finite number of at least 0"),
            Bad("none", {0: jnp.ones((0, 2))}, "x: expected at least 1 rows, got 0"),
        ),
    ),
]

ROWS = [*LAWS, *BOUNDS, *SCORES, *SAMPLERS, *TARGETS]
