"""Tables and figure of `ddpm_gmm`."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments._ddpm_gmm import SAMPLERS, VARIANCES, Fitted, Laws
from jaxicml.diffusion import schedules
from jaxicml.harness import plots
from jaxicml.harness.claims import Table
from jaxicml.methods import ddpm_gmm as lab
from jaxicml.stats.intervals import mean_interval


def tables(cfg, laws: Laws, images: dict[int, Fitted]) -> list[Table]:
    """What the claims rest on."""
    exactly = "Exact up to quadrature; intervals do not apply."
    rate_rows = [
        [T, *(float(x) for x in (law.tv, law.kl, law.w2)), T * float(law.tv) / np.log(T)]
        for T, law in laws.rate.items()
    ]
    ranked = sorted(_samplers(cfg, laws).items(), key=lambda item: item[1][-1].tv)
    sizes = [
        f"{name} {laws.step_sizes[name, max(cfg.steps)]:g}"
        for name in SAMPLERS
        if name.endswith("langevin")
    ]
    made = [
        Table(
            "Three modes, 'component'", ["T", "TV", "KL", "W2", "T·TV / log T"], rate_rows, exactly
        ),
        Table(
            "Total variation of every sampler on three modes, by score calls",
            ["sampler", *(f"T = {T}" for T in cfg.steps), "KL, last T", "W2, last T"],
            [[name, *(at.tv for at in row), row[-1].kl, row[-1].w2] for name, row in ranked],
            f"{exactly} Each Langevin row takes its best step size at each T (at the last: "
            f"{', '.join(sizes)}); unadjusted Langevin starts from N(0, 1) like all others.",
        ),
        Table(
            "By dimension, T = 100, 'component'",
            ["d", "inside the span", "outside", "lower", "upper"],
            [[d, *map(float, bounds)] for d, bounds in laws.by_dimension.items()],
        ),
        Table(
            "Dimensions without a mean, T = 800",
            ["variance", *(f"n = {n}" for n in cfg.outer)],
            [[kind, *(laws.outer[kind, n] for n in cfg.outer)] for kind in VARIANCES],
        ),
        Table(
            "By components on a line, T = 100",
            ["K", "TV"],
            [*map(list, laws.by_components.items())],
        ),
        Table(
            "Score errors, T = 100: total variation",
            ["δ", "shift up", "shift down", "random fields", "misfit"],
            [
                [delta, *laws.shifted[:, i], _spread(laws.wavy[:, i]), _spread(laws.misfit[:, i])]
                for i, delta in enumerate(cfg.deltas)
            ],
            f"The last two: mean and 95 % interval over {cfg.seeds} draws. A misfit is the score "
            "of a mixture whose means and log weights are off by δ z.",
        ),
        Table(
            "Targets near three modes, T = 100, sampled with the score of the mixture",
            ["target", "TV of target and mixture", "TV of X_1 and output", "sum of both errors"],
            [
                [name, apart, after, apart + _at_hundred(laws)]
                for name, (apart, after) in laws.near.items()
            ],
            "The sum, of the distance to the mixture and of the sampler's error on the mixture, "
            "bounds the third column by the triangle inequality.",
        ),
    ]
    return made + _image_tables(cfg, images)


def _samplers(cfg, laws: Laws) -> dict[str, list]:
    """Distances by T of every sampler on three modes."""
    kinds = {f"ddpm, {kind}": (laws.by_variance, kind) for kind in VARIANCES}
    kinds |= {
        f"ddpm, component, {name} schedule": (laws.by_schedule, name)
        for name in ("linear", "cosine")
    }
    kinds |= {name: (laws.baselines, name) for name in SAMPLERS}
    return {name: [found[kind, T] for T in cfg.steps] for name, (found, kind) in kinds.items()}


def _at_hundred(laws: Laws) -> float:
    known = laws.by_variance.get(("component", 100))
    return known.tv if known else np.nan


def _spread(values) -> str:
    """Mean and interval over draws."""
    low, high = mean_interval(jnp.asarray(values))
    return f"{np.mean(values):.4g} [{float(low):.4g}, {float(high):.4g}]"


def _image_tables(cfg, images: dict[int, Fitted]) -> list[Table]:
    rows = []
    for K, fit in images.items():
        upper = np.asarray(lab.kl_to_tv(jnp.asarray(fit.kl)))
        for i, T in enumerate(cfg.image_steps):
            rows.append([K, T, *map(_spread, (fit.kl[i], fit.lower[i], upper[i]))])
    note = "; ".join(
        f"K = {K}: σ² = {fit.sigma2:.3f}, means span {fit.rank} dimensions, "
        f"{samples} draws prove nothing below {_band(samples):.2f}"
        for (K, fit), (_, _, samples) in zip(images.items(), cfg.fits, strict=True)
    )
    note += f". Means and 95 % intervals over {cfg.seeds} repetitions."
    origin = "shipped with scikit-learn" if cfg.data == "digits" else "fetched data"
    title = f"Mixtures fitted to {cfg.num_images} images of {cfg.data} ({origin})"
    columns = ["K", "T", "path KL", "TV at least", "TV at most"]
    return [Table(title, columns, rows, note)] if rows else []


def _band(samples: int) -> float:
    """What the best threshold has to exceed at level .975, as in `tv_lower_bound`."""
    return 2 * np.sqrt(np.log(4 / 0.025) / (2 * samples))


def figure(cfg, laws: Laws, images: dict[int, Fitted]):
    """Rate, dimension, score error and fitted images."""
    titles = [
        "Three modes: error by steps",
        "Error by dimension, T = 800",
        "Error by size of the score error",
        f"Mixtures fitted to {cfg.data}: bounds by steps",
    ]
    drawn, axes = plots.panels(titles, columns=2, width=4.8)
    _draw_rate(axes[0], cfg, laws)
    _draw_dimensions(axes[1])
    _draw_score_error(axes[2], cfg, laws)
    _draw_images(axes[3], cfg, images)
    for ax in axes:
        plots.direct_labels(ax)
    return drawn


def _draw_rate(ax, cfg, laws: Laws) -> None:
    tuned = lambda name: [laws.baselines[name, T].tv for T in cfg.steps]
    component = [laws.by_variance["component", T].tv for T in cfg.steps]
    plots.line(ax, cfg.steps, component, label="DDPM, component")
    cosine = [laws.by_schedule["cosine", T].tv for T in cfg.steps]
    plots.line(ax, cfg.steps, cosine, label="cosine schedule")
    plots.line(ax, cfg.steps, tuned("ddim"), label="DDIM")
    plots.line(ax, cfg.steps, tuned("dpmpp_2m"), label="DPM-Solver++")
    plots.line(ax, cfg.steps, tuned("annealed_langevin"), label="annealed Langevin")
    law = np.log(cfg.steps) / np.array(cfg.steps)
    plots.line(ax, cfg.steps, 0.8 * component[0] * law / law[0], color=plots.GREY, dashed=True)
    ax.set(xlabel="score calls T", ylabel="total variation (dashed: log T / T)")
    plots.log_axis(ax, "x", cfg.steps)
    plots.log_axis(ax, "y")


def _draw_dimensions(ax) -> None:
    n = np.unique(np.logspace(0, 6, 61).astype(int))
    with jax.enable_x64(True):
        for kind in VARIANCES:
            law = lab.output_law_gaussian(schedules.theory(800), 0.25, kind)
            apart = jax.vmap(lambda n, law=law: lab.tv_isotropic(n, law.output, law.target))
            plots.line(ax, n, apart(jnp.asarray(n, float)), label=kind)
    plots.line(ax, n, np.minimum(n / 800, 1), color=plots.GREY, dashed=True)
    label = "total variation there (dashed: n / T)"
    ax.set(xlabel="dimensions without a mean", ylabel=label, ylim=(0, 1.05))
    plots.log_axis(ax, "x")


def _draw_score_error(ax, cfg, laws: Laws) -> None:
    low, high = laws.wavy.min(0), laws.wavy.max(0)
    plots.line(ax, cfg.deltas, laws.shifted.mean(0), label="constant")
    plots.line(ax, cfg.deltas, laws.wavy.mean(0), low, high, label="random field")
    low, high = laws.misfit.min(0), laws.misfit.max(0)
    plots.line(ax, cfg.deltas, laws.misfit.mean(0), low, high, label="misfit")
    ax.set(xlabel="score error δ", ylabel="total variation, T = 100", ylim=(0, None))


def _draw_images(ax, cfg, images: dict[int, Fitted]) -> None:
    for color, (K, fit) in zip(plots.PALETTE, images.items(), strict=False):
        upper = np.asarray(lab.kl_to_tv(jnp.asarray(fit.kl)))
        band = upper.min(1), upper.max(1)
        plots.line(ax, cfg.image_steps, upper.mean(1), *band, label=f"K = {K}", color=color)
        plots.line(ax, cfg.image_steps, fit.lower.mean(1), color=color, dashed=True)
    label = "total variation: at most, at least (dashed)"
    ax.set(xlabel="steps T", ylabel=label, ylim=(0, 1.02))
    plots.log_axis(ax, "x", cfg.image_steps)
