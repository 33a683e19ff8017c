"""The studies of `sinkhorn_effect` and what they say: claims, tables and the figure."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxicml.data import tabular
from jaxicml.harness import plots
from jaxicml.harness.claims import Claim, Condition, Table, exact, paired, rate
from jaxicml.methods.sinkhorn_effect import bimodal_curve, digits_pools, load_pcam, study
from jaxicml.methods.sinkhorn_effect.data import gaussian_law
from jaxicml.methods.sinkhorn_effect.study import Comparison, Estimates, RealTest
from jaxicml.stats.intervals import bootstrap_interval, slope_interval, wilson_interval
from jaxicml.train.sharding import replicate
from jaxicml.types import Key, Progress

CELLS = NULL, MEAN, COV, MODES = ("mean", 0.0), ("mean", 0.9), ("cov", 1.35), ("bimodal", 1.0)
"""Gaussian trials that the claims are about."""

SHIFT = 1.6
"""Mean shift θ of the debiasing rows: S = θ² exactly, for every ε."""

LEVEL = 0.05

LOADERS = {
    "nhefs": tabular.load_nhefs,
    "nsw": partial(tabular.load_nsw, transform="thousands"),
    "cps": partial(tabular.load_nsw, controls="cps", transform="thousands", max_controls=815),
    "cps_all": partial(tabular.load_nsw, controls="cps", transform="thousands"),
}


class Curve(NamedTuple):
    """The bimodal family at ε = 1: strengths, estimates (seeds x strengths), exact effects."""

    thetas: np.ndarray
    fitted: np.ndarray
    sinkhorn: np.ndarray
    half_mmd: np.ndarray


class Evidence(NamedTuple):
    """Everything that was run.

    Attributes:
        multiples: η of the grid.
        tests: comparison of each Gaussian cell (kind, θ).
        estimates: by (confounding, folds, multiple of n).
        curve: the bimodal family.
        images: comparison by log odds of healing, the null first.
        observed: by (study, permuted); empty without the data.
    """

    multiples: tuple[float, ...]
    tests: dict[tuple[str, float], Comparison]
    estimates: dict[tuple[float, int, int], Estimates]
    curve: Curve
    images: dict[float, Comparison]
    observed: dict[tuple[str, bool], RealTest]


def run_images(cfg, key: Key, run_all) -> dict[float, Comparison]:
    """Comparisons on the image trial, by log odds of healing; empty where none are asked for."""
    if not cfg.healing:
        return {}
    pools = load_pcam(cfg.pcam) if cfg.pcam else digits_pools()
    settings = [(theta, *pools) for theta in cfg.healing]
    trial = study.image_comparison(study.Protocol(n=cfg.n, num_null=cfg.num_null, law=cfg.law))
    rows = run_all(trial, key, settings, cfg.replications, label="image trials")
    return dict(zip(cfg.healing, rows, strict=True))


def run_estimates(cfg, key: Key, run_all) -> dict[tuple[float, int, int], Estimates]:
    """Estimators on mean shifts, for each (confounding, folds, multiple of n)."""
    law, out = gaussian_law(SHIFT, "mean"), {}
    keys = jax.random.split(key, len(cfg.estimation))
    for own, (confounding, folds, multiple) in zip(keys, cfg.estimation, strict=True):
        protocol = study.Protocol(n=multiple * cfg.n, num_null=cfg.num_null, law=cfg.law)
        # overlap .5; ε = 0 stands for the median cost
        settings = [(law, confounding, 0.5, 0.0)]
        trial = study.estimation_trial(protocol, folds)
        out[confounding, folds, multiple] = run_all(
            trial, own, settings, cfg.replications, label="debiasing"
        )[0]
    return out


def run_curve(cfg, key: Key, run_all) -> Curve:
    """Estimates and exact effects along the bimodal family."""
    thetas = np.linspace(0, 6, 13)
    settings = [(gaussian_law(theta, "bimodal"), 0.0, 1.0, 1.0) for theta in thetas]
    trial = study.estimation_trial(study.Protocol(n=cfg.n, num_null=cfg.num_null, law=cfg.law), 2)
    fitted = run_all(trial, key, settings, cfg.seeds, label="saturation")
    exact = bimodal_curve(jnp.asarray(thetas), epsilon=1.0)
    return Curve(thetas, np.stack([row.onestep for row in fitted], 1), *map(np.asarray, exact))


def run_observed(cfg, key: Key, log: Progress) -> dict[tuple[str, bool], RealTest]:
    """Observed studies and permuted subsamples; empty where causaldata is not installed."""
    protocol = study.Protocol(num_null=cfg.num_null, bandwidth=(0.75, 1.0, 1.5, 2.0, 3.0))
    runs = [(name, size, False, cfg.splits) for name, size in cfg.studies]
    runs.append(("nhefs", cfg.subsample, True, cfg.permutations))
    keys, out = jax.random.split(key, len(runs)), {}
    try:
        for i, (name, size, permute, count) in enumerate(log.track(runs, "observed studies")):
            x, a, y = LOADERS[name]()[:3]
            arrays = (x - x.mean(0)) / x.std(0), a.astype(float), y
            trial = study.subsample_test(protocol, size)
            splits = jax.random.split(keys[i], count)
            out[name, permute] = replicate(trial, splits, *arrays, permute)
    except ImportError as missing:
        log.note(str(missing))
    return out


def claims(result: Evidence) -> list[Claim]:
    """The eight claims, each with its conditions."""
    return [
        Claim(
            "size",
            "STE and STEAgg keep the level .05 under a true null.",
            [
                *_size("STEAgg", result.tests[NULL].guarded),
                *_size("STE at the median ε", _at_median(result, result.tests[NULL].ste)),
            ],
        ),
        _power_mean(result),
        _power_shape(result),
        _debiasing(next(iter(result.estimates.values()))),
        _aggregation(result),
        _saturation(result.curve),
        _images(result),
        _real(result),
    ]


def _power(name: str, p_values, op: str | None = None, threshold: float | None = None) -> Condition:
    if np.isnan(p_values).any():
        # a test that could not be run is not a test that did not reject
        return Condition(name, np.nan, (0.0, 1.0), op=op, threshold=threshold)
    return rate(name, _rejections(p_values), len(p_values), op, threshold)


def _rejections(p_values) -> int:
    return int((p_values <= LEVEL).sum())


def _size(test: str, p_values) -> list[Condition]:
    return [
        _power(f"size of {test}", p_values, "not_above", LEVEL),
        _power(f"size of {test}, point", p_values, "point_below", 0.08),
    ]


def _at_median(result: Evidence, by_epsilon):
    return by_epsilon[:, result.multiples.index(1.0)]


def _power_mean(result: Evidence) -> Claim:
    weaker = ("mean", 0.6)
    conditions = [_power("STEAgg, θ = .9", result.tests[MEAN].guarded, "point_above", 0.70)]
    if weaker in result.tests:
        conditions.append(_power("STEAgg, θ = .6", result.tests[weaker].guarded))
    conditions.append(_power("ATE, θ = .9 (the optimal test here)", result.tests[MEAN].ate))
    return Claim("power_mean", "STEAgg finds a mean shift of .9 with power .7.", conditions)


def _power_shape(result: Evidence) -> Claim:
    conditions = []
    for name, cell in (("covariance", result.tests[COV]), ("bimodal", result.tests[MODES])):
        gain = (cell.guarded <= LEVEL) * 1.0 - (cell.ate <= LEVEL)
        conditions.append(paired(f"{name}: power of STEAgg minus ATE", gain, "above", 0))
        conditions.append(_power(f"{name}: power of ATE", cell.ate, "point_below", 0.09))
    modes = result.tests[MODES].guarded
    conditions.append(_power("bimodal: power of STEAgg", modes, "point_above", 0.50))
    sentence = "STEAgg finds changes of shape that a test of means does not see."
    return Claim("power_shape", sentence, conditions)


def _debiasing(row: Estimates) -> Claim:
    plugin, onestep = (row.plugin - SHIFT**2) ** 2, (row.onestep - SHIFT**2) ** 2
    return Claim(
        "debiasing",
        "Under confounding one-step halves the squared error of plug-in, and its interval covers.",
        [
            Condition(
                "MSE of one-step over plug-in",
                onestep.mean() / plugin.mean(),
                _ratio_interval(onestep, plugin),
                op="point_below",
                threshold=0.5,
            ),
            paired("squared error, one-step minus plug-in", onestep - plugin, "below", 0),
            _coverage("one-step", row.onestep, row.se, "not_below"),
            _coverage("plug-in", row.plugin, row.se, "below"),
        ],
    )


def _ratio_interval(top, bottom) -> tuple[float, float]:
    """Bootstrap interval of a ratio of means over the same replications."""
    ratio = lambda pairs: pairs[:, 0].mean() / pairs[:, 1].mean()
    pairs = jnp.stack([jnp.asarray(top), jnp.asarray(bottom)], axis=1)
    low, high = bootstrap_interval(jax.random.key(0), pairs, statistic=ratio)
    return float(low), float(high)


def _covered(estimate, se) -> np.ndarray:
    return np.abs(estimate - SHIFT**2) <= 1.959964 * se


def _coverage(name: str, estimate, se, op: str | None = None) -> Condition:
    hits = _covered(estimate, se)
    threshold = None if op is None else 0.95
    return rate(f"Wald coverage of {name}", hits.sum(), len(hits), op, threshold)


def _aggregation(result: Evidence) -> Claim:
    cell = result.tests[COV]
    rejected = cell.ste <= LEVEL
    plain, guarded = (cell.plain <= LEVEL) * 1.0, (cell.guarded <= LEVEL) * 1.0
    best, worst = rejected.mean(0).argmax(), rejected.mean(0).argmin()
    return Claim(
        "aggregation",
        "The plain maximum comes close to the best fixed ε without knowing it.",
        [
            paired(
                "power, best fixed ε minus maximum", rejected[:, best] - plain, "point_below", 0.1
            ),
            paired("power, maximum minus worst fixed ε", plain - rejected[:, worst], "above", 0),
            paired("power, best fixed ε minus guarded maximum", rejected[:, best] - guarded),
        ],
    )


def _saturation(curve: Curve) -> Claim:
    first, last = slice(None, 5), slice(-5, None)
    slope = lambda values, part: np.polyfit(curve.thetas[part], values[part], 1)[0]
    fitted = slope_interval(jnp.asarray(curve.thetas[last]), jnp.asarray(curve.fitted[:, last]))
    mean_slope = slope(curve.fitted.mean(0), last)
    growth = slope(curve.sinkhorn, last) - slope(curve.sinkhorn, first)
    mmd_ratio = slope(curve.half_mmd, last) / slope(curve.half_mmd, first)
    return Claim(
        "saturation",
        "As two modes move apart STE keeps growing and MMD stops.",
        [
            Condition("STE slope, last third, fitted", mean_slope, fitted, op="above", threshold=0),
            exact("STE slope, last minus first third", growth, "above", 0),
            exact("½MMD² slope, last over first third", mmd_ratio, "below", 0.05),
        ],
    )


def _images(result: Evidence) -> Claim:
    sentence = "On the digits trial STEAgg keeps its level and finds a strong effect."
    if not result.images:
        return Claim.not_run("images", sentence, "no image trial was asked for")
    thetas = list(result.images)
    null, strong = result.images[thetas[0]], result.images[thetas[-1]]
    return Claim(
        "images",
        sentence,
        [
            *_size("STEAgg", null.guarded),
            _power(f"power of STEAgg at θ = {thetas[-1]:g}", strong.guarded, "point_above", 0.8),
            _power("size of the unguarded maximum", null.plain),
        ],
    )


def _real(result: Evidence) -> Claim:
    sentence = "On NHEFS STEAgg rejects on the data in every split, and rarely under permutation."
    if ("nhefs", False) not in result.observed:
        return Claim.not_run("real", sentence, "the studies ship in causaldata, not installed")
    p_values = result.observed["nhefs", False].p_value
    span = p_values.min(), p_values.max()
    return Claim(
        "real",
        sentence,
        [
            Condition(
                f"largest p-value of {len(p_values)} splits (beside it their range)",
                p_values.max(),
                span,
                op="point_below",
                threshold=LEVEL,
            ),
            _power(
                "rejections under permutation",
                result.observed["nhefs", True].p_value,
                "point_below",
                0.09,
            ),
        ],
    )


def tables(result: Evidence) -> list[Table]:
    """Rejection rates by test and by ε, errors of the estimators, observed studies."""
    gaussian = {f"{kind} θ={theta:g}": cell for (kind, theta), cell in result.tests.items()}
    images = {f"digits θ={theta:g}": cell for theta, cell in result.images.items()}
    everywhere = gaussian | images
    return [
        _by_test(everywhere),
        _by_epsilon("STE", result.multiples, {k: c.ste for k, c in everywhere.items()}),
        _by_epsilon("MTE", result.multiples, {k: c.mte for k, c in everywhere.items()}),
        _regimes(result.multiples, everywhere),
        _errors(result.estimates),
        _observed(result.observed),
    ]


_COLUMNS = {
    "guarded": "STEAgg",
    "plain": "STEAgg, no guard",
    "mte_agg": "MTEAgg",
    "dr_xkte": "DR-xKTE",
    "ate": "ATE",
}


def _share(p_values) -> str:
    hits, count = _rejections(p_values), len(p_values)
    low, high = wilson_interval(hits, count)
    return f"{hits / count:.3f} [{float(low):.3f}, {float(high):.3f}]"


def _by_test(cells: dict[str, Comparison]) -> Table:
    rows = [
        [name, *(_share(getattr(cell, field)) for field in _COLUMNS)]
        for name, cell in cells.items()
    ]
    return Table(
        "Rejection rates at level .05, with Wilson intervals",
        ["trial", *_COLUMNS.values()],
        rows,
        "θ = 0 and digits θ = −20 are true nulls. The digits are a stand-in for pathology images. "
        "On mean shifts the test of means is the best one there is.",
    )


def _by_epsilon(test: str, multiples, cells: dict[str, Any]) -> Table:
    columns = ["trial", *(f"η = {eta:g}" for eta in multiples)]
    rows = [[name, *(_share(p[:, i]) for i in range(p.shape[1]))] for name, p in cells.items()]
    note = "Under a true null a rate whose interval lies above .05 over-rejects."
    return Table(f"Rejection rates of {test} at fixed ε = η · median cost", columns, rows, note)


def _regimes(multiples, cells: dict[str, Comparison]) -> Table:
    rows = [[name, *np.median(cell.regime, axis=0)] for name, cell in cells.items()]
    columns = ["trial", *(f"η = {eta:g}" for eta in multiples)]
    note = "ρ = 2S/(Δᵀ k Δ); the guard keeps |ρ − 1| ≤ .1, and always the largest η."
    return Table("Median ρ: one where the divergence is quadratic", columns, rows, note)


def _errors(estimates: dict[tuple[float, int, int], Estimates]) -> Table:
    rows = []
    for (confounding, folds, multiple), row in estimates.items():
        plugin, onestep = row.plugin - SHIFT**2, row.onestep - SHIFT**2
        rows.append(
            [
                f"confounding {confounding:g}, {folds} fold(s), n x {multiple}",
                plugin.mean(),
                (plugin**2).mean(),
                _coverage("", row.plugin, row.se).value,
                onestep.mean(),
                (onestep**2).mean(),
                _coverage("", row.onestep, row.se).value,
            ]
        )
    return Table(
        "Errors of the estimators at θ = 1.6, overlap .5",
        [
            "setting",
            *(f"{e}: {w}" for e in ("plug-in", "one-step") for w in ("bias", "MSE", "cover")),
        ],
        rows,
        "The truth is θ² = 2.56. Without confounding the plug-in is unbiased and one-step pays the "
        "variance of the propensity.",
    )


def _observed(observed: dict[tuple[str, bool], RealTest]) -> Table:
    rows = []
    for (name, permuted), test in observed.items():
        rows.append(
            [
                f"{name}, treatment permuted" if permuted else name,
                len(test.p_value),
                _share(test.p_value),
                _share(test.plain_p_value),
                float(np.median(test.p_value)),
                float(np.median(test.onestep)),
                f"[{np.median(test.ci_low):.3g}, {np.median(test.ci_high):.3g}]",
            ]
        )
    return Table(
        "Observed studies, two folds, over random splits",
        ["study", "splits", "rejects", "no guard", "median p", "one-step STE", "95 % interval"],
        rows,
        "Outcomes: kg (NHEFS), thousands of dollars (NSW, CPS); STE in their squares, at the "
        "median ε; the interval is no test of the null. CPS: the treated of NSW against 815 random "
        "men of the survey; overlap is poor, and no conclusion is drawn from it.",
    )


def figure(result: Evidence):
    """Power by test, power by ε, estimates under confounding, growth against saturation."""
    titles = [
        "Changes of shape need more than means",
        "No single ε serves every change",
        "Debiasing under confounding",
        "STE grows where MMD saturates",
    ]
    picture, (by_test, by_epsilon, errors, growth) = plots.panels(titles, columns=2, width=5.2)
    _draw_tests(by_test, result)
    _draw_epsilons(by_epsilon, result)
    _draw_errors(errors, next(iter(result.estimates.values())))
    _draw_growth(growth, result.curve)
    return picture


_NAMES = {NULL: "null", MEAN: "mean shift", COV: "covariance", MODES: "bimodal"}


def _interval(p_values) -> tuple[float, float, float]:
    hits, count = _rejections(p_values), len(p_values)
    low, high = wilson_interval(hits, count)
    return hits / count, float(low), float(high)


def _draw_tests(ax, result: Evidence):
    fields = {"guarded": "STEAgg", "mte_agg": "MTEAgg", "dr_xkte": "DR-xKTE", "ate": "ATE"}
    for k, (field, label) in enumerate(fields.items()):
        value, low, high = np.array([_interval(getattr(result.tests[c], field)) for c in CELLS]).T
        place, color = np.arange(len(CELLS)) + 0.16 * (k - 1.5), plots.PALETTE[k]
        ax.bar(place, value, width=0.14, color=color, alpha=0.85)
        ax.vlines(place, low, high, color="#444444", linewidth=1)
        ax.annotate(label, (0.02, 0.96 - 0.09 * k), xycoords="axes fraction", color=color, va="top")
    ax.set_xticks(range(len(CELLS)), [_NAMES[cell] for cell in CELLS])
    ax.set_ylabel("rejection rate")
    ax.set_ylim(0, 1.02)
    plots.reference(ax, LEVEL, "level .05")
    plots.direct_labels(ax)


def _draw_epsilons(ax, result: Evidence):
    for cell in CELLS:
        p_values = result.tests[cell].ste
        values = np.array([_interval(p_values[:, i]) for i in range(p_values.shape[1])]).T
        plots.line(ax, result.multiples, *values, label=_NAMES[cell], marked=True)
    plots.log_axis(ax, "x", result.multiples)
    ax.set_xlabel("ε / median cost")
    ax.set_ylabel("rejection rate of STE")
    ax.set_ylim(0, 1.02)
    plots.reference(ax, LEVEL, "level .05")
    plots.direct_labels(ax)


def _draw_errors(ax, row: Estimates):
    edges = np.histogram_bin_edges(np.concatenate([row.plugin, row.onestep]), 24)
    plots.histogram(ax, row.plugin, label="plug-in", bins=edges)
    plots.histogram(ax, row.onestep, label="one-step", bins=edges)
    ax.axvline(SHIFT**2, color=plots.GREY, linestyle="--")
    top = (SHIFT**2, 0.98)
    ax.annotate(" truth", top, xycoords=("data", "axes fraction"), va="top", color=plots.GREY)
    ax.set_xlabel("estimate of STE")
    ax.set_ylabel("density over data sets")
    plots.direct_labels(ax)


def _draw_growth(ax, curve: Curve):
    mean = curve.fitted.mean(0)
    low, high = np.quantile(curve.fitted, [0.05, 0.95], axis=0)
    plots.line(ax, curve.thetas, mean, low, high, label="STE, one-step")
    plots.line(ax, curve.thetas, curve.sinkhorn, label="STE, exact", dashed=True)
    scaled = curve.half_mmd / curve.half_mmd.max() * curve.sinkhorn.max() / 4
    plots.line(ax, curve.thetas, scaled, label="½MMD², rescaled")
    ax.set_xlabel("half distance θ of the modes")
    ax.set_ylabel("effect at ε = 1")
    plots.direct_labels(ax)
