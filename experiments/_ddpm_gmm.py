"""The studies of `ddpm_gmm` and what they say: claims, tables and the figure."""

import itertools
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxicml.data import images as image_data
from jaxicml.data.sources import DataMissing
from jaxicml.diffusion import schedules
from jaxicml.diffusion.gmm import gmm_marginal, gmm_sample
from jaxicml.diffusion.mixture import gmm_log_prob, gmm_responsibilities
from jaxicml.diffusion.schedules import Variance
from jaxicml.harness.claims import Claim, exact, paired
from jaxicml.methods import ddpm_gmm as lab
from jaxicml.train.sharding import replicate
from jaxicml.types import Key, Progress

REFERENCE = {25: 0.08038, 50: 0.04730, 100: 0.02737, 200: 0.01565, 400: 0.008826}
"""Total variation of the three-mode target, by an independent computation."""

OUTER_REFERENCE = {"posterior": 0.4731, "upper": 0.5312, "beta": 0.2384}
"""Total variation at T = 800 in 10,000 dimensions without a mean, likewise."""

VARIANCES: tuple[Variance, ...] = ("component", "posterior", "upper", "beta")

SAMPLERS: tuple[lab.Baseline, ...] = (
    "ddim",
    "dpmpp_2m",
    "annealed_langevin",
    "unadjusted_langevin",
)


class Apart(NamedTuple):
    """How far an output law q is from its target p; NaN where the law lost mass."""

    tv: float
    """Total variation."""
    kl: float
    """KL(q ‖ p) in nats."""
    w2: float
    """Wasserstein-2, in units of x."""


class Laws(NamedTuple):
    """What was computed in closed form or by propagation.

    Attributes:
        rate: output law at each T.
        by_variance: `Apart` by (variance, T).
        by_schedule: `Apart` by (schedule, T), variance "component".
        by_dimension: bounds of the total variation by d.
        outer: total variation without a mean, by (variance, n).
        by_components: total variation by K.
        shifted: total variation by δ, rows a shift up and one down.
        wavy: total variation by δ, one row a random field.
        misfit: likewise with the score of a mixture with wrong means and weights.
        near: (total variation of target and mixture, of target and output) by target.
        trace: (T, left side) of the three-mode target, the integral of mmse, 2 H(π).
        baselines: `Apart` by (sampler, T).
        step_sizes: best step size by (sampler, T).
    """

    rate: dict
    by_variance: dict
    by_schedule: dict
    by_dimension: dict
    outer: dict
    by_components: dict
    shifted: np.ndarray
    wavy: np.ndarray
    misfit: np.ndarray
    near: dict
    trace: tuple
    baselines: dict
    step_sizes: dict


class Fitted(NamedTuple):
    """One fitted mixture.

    Attributes:
        sigma2: its σ².
        rank: dimensions of the span of its means.
        entropy: H(π) in nats.
        kl: path KL, (T, seeds).
        lower: what the samples prove, (T, seeds): the better of both statistics.
        left: snr · mmse at the levels of the longest schedule, (levels, seeds).
    """

    sigma2: float
    rank: int
    entropy: float
    kl: np.ndarray
    lower: np.ndarray
    left: np.ndarray


def run_laws(cfg, key: Key, log: Progress) -> Laws:
    """Everything that is exact; float64."""
    target = lab.three_modes()
    rate, by_variance = {}, {}
    for T in log.track(cfg.steps, "steps"):
        laws = _laws_by_variance(target, schedules.theory(T))
        rate[T] = laws[0]
        by_variance |= {(kind, T): _apart(law) for kind, law in zip(VARIANCES, laws, strict=True)}
    shortened = {
        # the 1000 steps of the original, shortened: the same noise at the end
        "linear": lambda T: schedules.linear(T, min(0.1 / T, 0.5), min(20 / T, 0.999)),
        "cosine": schedules.cosine,
    }
    component = lambda g, schedule: lab.output_density_1d(g, schedule, "component")
    by_schedule = {
        (name, T): _apart(component(target, make(T)))
        for name, make in log.track(shortened.items(), "schedules", total=len(shortened))
        for T in cfg.steps
    }
    by_dimension = {
        d: lab.output_tv(lab.three_modes(d), schedules.theory(100), "component")
        for d in log.track(cfg.dims, "dimensions")
    }
    outer = {}
    for kind in VARIANCES:
        law = lab.output_law_gaussian(schedules.theory(800), 0.25, kind)
        for n in cfg.outer:
            outer[kind, n] = float(lab.tv_isotropic(n, law.output, law.target))
    by_components = {
        K: _apart(component(lab.collinear(K), schedules.theory(100))).tv
        for K in log.track(cfg.components, "components")
    }
    error_key, near_key = jax.random.split(key)
    shifted, wavy, misfit = _perturbed(cfg, error_key, target, log)
    near = _near_mixture(cfg, near_key, log)
    baselines, step_sizes = {}, {}
    for name in log.track(SAMPLERS, "baselines"):
        for T in cfg.steps:
            sizes = jnp.array(cfg.step_sizes)
            best = lab.tuned_law_1d(name, target, schedules.theory(T), sizes)
            baselines[name, T] = _apart(best.law)
            step_sizes[name, T] = float(best.step_size)
    return Laws(
        rate, by_variance, by_schedule, by_dimension, outer, by_components, shifted, wavy,
        misfit, near, _trace(target), baselines, step_sizes,
    )  # fmt: skip


def _distances(law) -> jax.Array:
    """What `Apart` holds."""
    return jnp.where(law.valid, jnp.stack([law.tv, law.kl, law.w2]), jnp.nan)


def _apart(law) -> Apart:
    return Apart(*_distances(law).tolist())


def _laws_by_variance(target, schedule) -> list[lab.DensityResult]:
    """The law under each of `VARIANCES`, by one program."""
    steps = [lab.ddpm_steps(schedule, kind, target.variances) for kind in VARIANCES]
    stacked = jax.tree.map(lambda *rows: jnp.stack(rows), *steps)
    laws = _laws_by_steps(target, schedule, lab.line_grid(target, schedule, None), stacked)
    return [jax.tree.map(lambda leaf, i=i: leaf[i], laws) for i in range(len(VARIANCES))]


@jax.jit
def _laws_by_steps(target, schedule, grid, stacked):
    return jax.lax.map(lambda own: lab.output_law(target, schedule, grid, own), stacked)


def _perturbed(cfg, key: Key, target, log: Progress) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Total variation under constant shifts, random smooth fields and misfits, by δ."""
    schedule = schedules.theory(100)
    law = lambda shift: _distances(
        lab.output_density_1d(target, schedule, "component", score_perturb=shift)
    )[0]

    @jax.jit
    def constant(delta):
        return law(lambda x, t: jnp.full_like(x, delta))

    @partial(jax.jit, static_argnames="kind")
    def drawn(key, kind, delta):
        return law(lab.score_shift(key, kind, delta, 1, mixture=target, schedule=schedule))

    keys = jax.random.split(key, cfg.seeds)
    shifted = [[float(constant(sign * d)) for d in cfg.deltas] for sign in (1.0, -1.0)]
    fields, misfits = (
        [[float(drawn(own, kind, d)) for d in cfg.deltas] for own in log.track(keys, kind)]
        for kind in ("fourier", "misfit")
    )
    return np.array(shifted), np.array(fields), np.array(misfits)


def _near_mixture(cfg, key: Key, log: Progress) -> dict[str, tuple[float, float]]:
    """Targets that are no mixture of equal Gaussians, sampled with the score of one.

    Total variation between target and mixture, and between what the target's X_1 and the
    sampler's output follow.
    """
    out = {}
    for dof in log.track(cfg.heavy_tails, "heavy tails"):
        out[f"Student, {dof:g} degrees of freedom"] = tuple(map(float, _heavy_tailed(dof)))
    return out | (_stretched(cfg, key) if cfg.stretches else {})


@jax.jit
def _heavy_tailed(dof):
    mixture, schedule = lab.three_modes(), schedules.theory(100)
    grid = jnp.linspace(-40.0, 40.0, 8001)
    target = lab.StudentMixture(mixture, dof).log_prob(grid[:, None])
    one = lambda value: jnp.asarray(value)[None]
    forward = lab.LineSteps(
        one(schedule.signal[0]), one(0.0), one(1.0), one(0.0), one(schedule.noise[0])
    )
    later, _ = lab.propagate_density(lambda x, i: jnp.zeros_like(x), grid, target, forward)
    steps = lab.ddpm_steps(schedule, "component", mixture.variances)
    law = lab.output_law(mixture, schedule, grid, steps)
    apart = lab.compare_densities(grid, gmm_log_prob(mixture, grid[:, None]), target)[0]
    after = lab.compare_densities(grid, law.log_q, later)[0]
    return apart, jnp.where(law.valid, after, jnp.nan)


def _stretched(cfg, key: Key) -> dict[str, tuple[float, float]]:
    mixture, schedule = lab.three_modes(2), schedules.theory(100)
    law = lab.output_density_2d(mixture, schedule, "component", throw=True)
    points = jnp.stack(jnp.meshgrid(law.axis, law.axis, indexing="ij"), -1)
    cell = (law.axis[1] - law.axis[0]) ** 2
    distance = lambda p, q: float(0.5 * cell * jnp.abs(jnp.exp(p) - jnp.exp(q)).sum())
    start = gmm_log_prob(mixture, points)
    out = {}
    for own, rho in zip(jax.random.split(key, len(cfg.stretches)), cfg.stretches, strict=True):
        target = lab.anisotropic(own, mixture, rho)
        later = gmm_log_prob(target, points, schedule.abar[0], noise=schedule.noise[0])
        apart = distance(gmm_log_prob(target, points), start)
        out[f"variances σ²(1 ± {rho:g}), plane"] = apart, distance(later, law.log_q)
    return out


def _trace(target):
    """Left side of the trace bound along a schedule, the integral of mmse, and 2 H(π)."""
    left = lambda snr: snr * lab.mmse_on_line(target, snr)
    along = left(lab.schedule_snr(target, schedules.theory(100)))
    log_snr = jnp.linspace(-14.0, 14.0, 801)
    area = jnp.trapezoid(left(jnp.exp(log_snr)), log_snr)
    return np.asarray(along), float(area), 2 * lab.mixture_entropy(target)


def run_images(cfg, key: Key, log: Progress) -> dict[int, Fitted]:
    """Mixtures fitted to images, by K; empty where the images have not been fetched."""
    try:
        x = _pixels(cfg)
    except DataMissing as missing:
        log.note(str(missing))
        return {}
    out = {}
    keys = jax.random.split(key, len(cfg.fits))
    for own, (K, draws, samples) in zip(keys, log.track(cfg.fits, "fitted mixtures"), strict=True):
        fit_key, seed_key = jax.random.split(own)
        g, _ = lab.fit_spherical_gmm(fit_key, x, K, n_iter=cfg.fit_iterations)
        split = lab.split_subspace(g, rtol=1e-6)
        seeds = jax.random.split(seed_key, cfg.seeds)
        rows = [
            replicate(
                _image_trial(draws, samples),
                seeds,
                split.inner,
                split.num_outer,
                schedules.theory(T),
            )
            for T in log.track(cfg.image_steps, f"K = {K}")
        ]
        kl, lower = (np.stack([row[i] for row in rows]) for i in (0, 1))
        snr = lab.schedule_snr(split.inner, schedules.theory(max(cfg.image_steps)))
        left = replicate(_trace_trial(draws), seeds, split.inner, snr).T
        out[K] = Fitted(
            float(g.variances), split.inner.dim, lab.mixture_entropy(g), kl, lower, left
        )
    return out


def _pixels(cfg):
    if cfg.data == "digits":
        pixels = image_data.signed_pixels(image_data.load_digits(), white=16)
    else:
        pixels = image_data.signed_pixels(image_data.load_fashion_mnist("train"))
    return jnp.asarray(pixels[: cfg.num_images])


@cache
def _image_trial(draws: int, samples: int):
    """Path KL, and the largest total variation that draws of X_1 and Y_1 prove.

    Inside the span of the means; outside, "component" is exact but for the start.
    """

    def trial(key, g, num_outer, schedule):
        kl_key, x_key, y_key, label_key, score_key = jax.random.split(key, 5)
        kl = lab.path_kl_bound(kl_key, g, schedule, "component", draws, num_outer=num_outer).value
        target = gmm_marginal(g, schedule.abar[0], noise=schedule.noise[0])
        x = gmm_sample(x_key, target, samples)[0]
        score = lab.mixture_score(g, schedule)
        y = lab.ddpm_sample(
            y_key, score, schedule, (samples, g.dim), variance="component", sigma2=g.variances
        ).x
        label = lambda z: jnp.argmax(gmm_responsibilities(target, z), -1)
        by_label = lab.tv_lower_bound(label_key, x, y, label, level=0.975)
        by_density = lab.tv_lower_bound(
            score_key, x, y, lambda z: gmm_log_prob(target, z), level=0.975
        )
        return kl, jnp.maximum(by_label.low, by_density.low)

    return trial


@cache
def _trace_trial(draws: int):
    return lambda key, g, snr: snr * lab.mmse_curve(key, g, snr, draws).value


def claims(cfg, laws: Laws, images: dict[int, Fitted]) -> list[Claim]:
    """The eight claims, each with its conditions."""
    return [
        _rate(cfg, laws),
        _dimension_free(laws),
        _standard_variances_fail(cfg, laws),
        _components(laws),
        _score_error(cfg, laws),
        _approximate(cfg, images),
        _trace_bound(laws, images),
        _baselines(cfg, laws),
    ]


def _slope(steps, values) -> float:
    return float(np.polyfit(np.log(steps), np.log(values), 1)[0])


def _rate(cfg, laws: Laws) -> Claim:
    known = [T for T in cfg.steps if T in REFERENCE]
    steps = np.array(known)
    tv = np.array([float(laws.rate[T].tv) for T in known])
    slope = _slope(steps, tv / np.log(steps))
    off = max(abs(float(laws.rate[T].tv) / REFERENCE[T] - 1) for T in known)
    return Claim(
        "rate",
        "Total variation falls like log T / T for three modes, with the variance 'component'.",
        [
            exact("slope of log(TV / log T) against log T", slope, "above", -1.05),
            exact("the same from above", slope, "below", -0.95),
            exact("largest relative distance from the reference values", off, "below", 0.02),
            exact("slope of log TV", _slope(steps, tv)),
            exact("largest loss of mass", max(float(laws.rate[T].mass) for T in cfg.steps)),
        ],
        paper="T = Õ(1/ε)",
    )


def _dimension_free(laws: Laws) -> Claim:
    low = min(float(bounds.lower) for bounds in laws.by_dimension.values())
    high = max(float(bounds.upper) for bounds in laws.by_dimension.values())
    return Claim(
        "dimension_free",
        "With 'component' the total variation at T = 100 is the same in every dimension.",
        [
            exact("largest upper less smallest lower bound over d", high - low, "below", 1e-6),
            exact("upper bound over all d", high),
        ],
        paper="no dependence on d",
    )


def _standard_variances_fail(cfg, laws: Laws) -> Claim:
    conditions = []
    for kind, reference in OUTER_REFERENCE.items():
        tv = [laws.outer[kind, n] for n in cfg.outer]
        off = abs(laws.outer[kind, 10_000] / reference - 1)
        growth = min(b / a for a, b in itertools.pairwise(tv))
        conditions += [
            exact(f"{kind}: total variation at n = 10,000", laws.outer[kind, 10_000]),
            exact(f"{kind}: relative distance from {reference}", off, "below", 0.02),
            exact(f"{kind}: least growth from one n to the next", growth, "above", 1),
        ]
    largest = max(laws.outer["component", n] for n in cfg.outer)
    return Claim(
        "standard_variances_fail",
        "Under the usual variances the error at T = 800 grows with the dimension towards one.",
        [*conditions, exact("component: largest over n", largest)],
    )


def _components(laws: Laws) -> Claim:
    worst = max(laws.by_components.values()) / laws.by_components[8]
    return Claim(
        "components",
        "The total variation at T = 100 stays bounded as components are added on a line.",
        [exact("largest over K, relative to K = 8", worst, "not_above", 1.1)],
        paper="no dependence on K but for logarithms",
    )


def _score_error(cfg, laws: Laws) -> Claim:
    exact_tv = laws.by_variance["component", 100].tv if 100 in cfg.steps else _unperturbed(cfg)
    deltas = np.array(cfg.deltas)
    excess = laws.shifted - exact_tv
    squares = [np.corrcoef(deltas, row)[0, 1] ** 2 for row in excess]
    slopes = [np.polyfit(deltas, row, 1)[0] for row in excess]
    per_size = lambda tv: (tv - exact_tv)[:, -1] / deltas[-1]
    return Claim(
        "score_error",
        "The excess total variation at T = 100 is linear in the size δ of the score error.",
        [
            exact("R² of the fit, shift up", squares[0], "point_above", 0.98),
            exact("R² of the fit, shift down", squares[1], "point_above", 0.98),
            exact("slope, shift up", slopes[0]),
            exact("slope, shift down", slopes[1]),
            paired(f"excess / δ at δ = {deltas[-1]:g}, random fields", per_size(laws.wavy)),
            paired(f"excess / δ at δ = {deltas[-1]:g}, misfit", per_size(laws.misfit)),
        ],
        paper="ε_score √log T",
    )


def _unperturbed(cfg) -> float:
    with jax.enable_x64(True):
        schedule = schedules.theory(100)
        law = lab.output_density_1d(lab.three_modes(), schedule, "component")
        return float(law.tv)


def _approximate(cfg, images: dict[int, Fitted]) -> Claim:
    sentence = (
        f"For mixtures fitted to {cfg.data} the path KL falls at every doubling of T and its bound "
        "of the total variation lies above what samples prove."
    )
    if not images:
        return Claim.not_run("approximate", sentence, "the images have not been fetched")
    conditions, steps = [], np.array(cfg.image_steps)
    for K, fit in images.items():
        upper = np.asarray(lab.kl_to_tv(jnp.asarray(fit.kl)))
        gap = (fit.lower - upper).max(0)
        # the doubling whose fall is least certain
        falls = [
            paired(f"K = {K}: KL at T = {b} less KL at T = {a}", after - before, "below", 0)
            for a, b, before, after in zip(steps, steps[1:], fit.kl, fit.kl[1:], strict=False)
        ]
        slopes = np.polyfit(np.log(steps), np.log(np.where(fit.kl > 0, fit.kl, np.nan)), 1)[0]
        conditions += [
            paired(f"K = {K}: lower less upper bound, worst T", gap, "not_above", 0),
            max(falls, key=lambda condition: (condition.interval or (0, 0))[1]),
            paired(f"K = {K}: slope of log KL against log T", slopes, "below", -0.5),
        ]
    first = next(iter(images))
    last = np.asarray(lab.kl_to_tv(jnp.asarray(images[first].kl[-1])))
    name = f"K = {first}: upper bound of TV at T = {steps[-1]}"
    return Claim("approximate", sentence, [*conditions, paired(name, last, "below", 0.5)])


def _trace_bound(laws: Laws, images: dict[int, Fitted]) -> Claim:
    along, area, double = laws.trace
    conditions = [
        exact("three modes: largest snr · mmse, less 2 H(π)", along.max() - double, "not_above", 0),
        exact("three modes: |∫ mmse / 2 H(π) − 1|", abs(area / double - 1), "below", 0.01),
        exact("three modes: largest snr · mmse", along.max()),
    ]
    for K, fit in images.items():
        worst = fit.left.max(0)
        name = f"images, K = {K}: largest snr · mmse, less 2 H(π) = {2 * fit.entropy:.2f}"
        conditions.append(paired(name, worst - 2 * fit.entropy, "not_above", 0))
    return Claim(
        "trace",
        "snr · mmse stays below twice the entropy of the weights: no dimension appears.",
        conditions,
    )


def _baselines(cfg, laws: Laws) -> Claim:
    T = max(cfg.steps)
    rows = {name: laws.baselines[name, T].tv for name in SAMPLERS}
    rows["ddpm, component"] = laws.by_variance["component", T].tv
    return Claim(
        "baselines",
        f"Samplers at equal score calls, T = {T}, three modes, ranked by total variation.",
        [exact(name, tv) for name, tv in sorted(rows.items(), key=lambda item: item[1])],
    )
