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
    samplers = {
        f"ddpm, {kind}": [laws.by_variance[kind, T] for T in cfg.steps] for kind in VARIANCES
    }
    samplers |= {
        f"ddpm, component, {name} schedule": [laws.by_schedule[name, T] for T in cfg.steps]
        for name in ("linear", "cosine")
    }
    samplers |= {
        name: [float(laws.baselines[name, T].law.tv) for T in cfg.steps] for name in SAMPLERS
    }
    ranked = sorted(samplers.items(), key=lambda item: item[1][-1])
    sizes = [
        f"{name} {float(laws.baselines[name, max(cfg.steps)].step_size):g}"
        for name in SAMPLERS
        if name.endswith("langevin")
    ]
    made = [
        Table(
            "Three modes, 'component'", ["T", "TV", "KL", "W2", "T·TV / log T"], rate_rows, exactly
        ),
        Table(
            "Total variation of every sampler on three modes, by score calls",
            ["sampler", *(f"T = {T}" for T in cfg.steps)],
            [[name, *row] for name, row in ranked],
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
            ["δ", "shift up", "shift down", "random fields, mean over seeds"],
            [
                [delta, *laws.shifted[:, i], laws.wavy[:, i].mean()]
                for i, delta in enumerate(cfg.deltas)
            ],
        ),
    ]
    return made + _image_tables(cfg, images)


def _image_tables(cfg, images: dict[int, Fitted]) -> list[Table]:
    rows = []
    for K, fit in images.items():
        upper = np.asarray(lab.kl_to_tv(jnp.asarray(fit.kl)))
        for i, T in enumerate(cfg.image_steps):
            kl = mean_interval(jnp.asarray(fit.kl[i]))
            rows.append(
                [K, T, fit.kl[i].mean(), f"[{float(kl.low):.3g}, {float(kl.high):.3g}]",
                 fit.lower[i].mean(), upper[i].mean()]
            )  # fmt: skip
    note = "; ".join(
        f"K = {K}: σ² = {fit.sigma2:.3f}, means span {fit.rank} dimensions"
        for K, fit in images.items()
    )
    origin = "shipped with scikit-learn" if cfg.data == "digits" else "fetched data"
    title = f"Mixtures fitted to {cfg.num_images} images of {cfg.data} ({origin})"
    columns = ["K", "T", "path KL", "95 % interval", "TV at least", "TV at most"]
    return [Table(title, columns, rows, note)] if rows else []


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
    tuned = lambda name: [float(laws.baselines[name, T].law.tv) for T in cfg.steps]
    component = [laws.by_variance["component", T] for T in cfg.steps]
    plots.line(ax, cfg.steps, component, label="DDPM, component")
    cosine = [laws.by_schedule["cosine", T] for T in cfg.steps]
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
    ax.set(xlabel="dimensions without a mean", ylabel="total variation there", ylim=(0, 1.05))
    plots.log_axis(ax, "x")


def _draw_score_error(ax, cfg, laws: Laws) -> None:
    low, high = laws.wavy.min(0), laws.wavy.max(0)
    plots.line(ax, cfg.deltas, laws.shifted.mean(0), label="constant")
    plots.line(ax, cfg.deltas, laws.wavy.mean(0), low, high, label="random field")
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
