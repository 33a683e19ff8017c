"""Public entries of `jaxicml.diffusion`."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxicml.diffusion import (
    ema,
    guidance,
    inversion,
    losses,
    parameterization,
    samplers,
    schedules,
)
from tests.contract import Bad, Row
from tests.diffusion import gaussian

NORMAL = lambda *shape: lambda rng: (rng.normal(size=shape),)
FLOATS = ("float32", "bfloat16")
STEPS = (12, 7, 2)
made = lambda: schedules.cosine(16)
few = lambda: jnp.array(STEPS)


def point(rng):
    angle = rng.uniform(0.2, 1.3)
    return rng.normal(size=3), rng.normal(size=3), np.array(np.cos(angle)), np.array(np.sin(angle))


def convert(name):
    entry = getattr(parameterization, f"to_{name}")
    source = "x0" if name == "eps" else "eps"
    return Row(
        f"diffusion.parameterization.to_{name}",
        lambda out, x, a, b: entry(out, x, a, b, source),
        point,
        vmap=(0, 1, 2, 3),
        grad=(0, 1, 2, 3),
        dtypes=FLOATS,
        bad=(Bad("shape", {0: jnp.ones(2)}, r"out: expected shape \(3\), got \(2,\)"),),
    )


def whole(x):
    return x.astype(int)


def sampler(method, *, noise_levels=False):
    entry = getattr(samplers, f"sample_{method}")

    def call(*args):
        *key, x = args
        if noise_levels:
            return entry(gaussian.edm_denoiser(), x, schedules.karras(3)).x
        net = gaussian.denoiser(made())
        if method == "ddim":
            return entry(net, x, made(), few(), eta=0.5, key=key[0]).x
        return entry(*key, net, x, made(), few()).x

    return Row(
        f"diffusion.samplers.sample_{method}",
        call,
        NORMAL(3),
        random=method in ("ddpm", "ddim"),
        vmap=(0,),
        grad=(0,),
        dtypes=FLOATS,
        bad=(Bad("integers", {0: whole}, "dtype of x: expected one of"),),
    )


def shifted(x, t, shift):
    return made().noise[t].astype(x.dtype) * (x - shift), shift


def null_text(path, condition, embedding):
    fit = inversion.null_text_optimisation(
        *(shifted, path, made(), few()), condition=condition, embedding=embedding, iterations=2
    )
    return fit.embeddings, fit.x


def loss(key, x0):
    net = gaussian.denoiser(made(), "v")
    batched = lambda x, t, carry: jax.vmap(lambda x, t: net(x, t, carry))(x, t)
    return losses.diffusion_loss(
        key, batched, x0, made(), prediction="v", weighting="min_snr", gamma=2.0
    )


ROWS = [
    Row(
        "diffusion.schedules.linear",
        schedules.linear,
        lambda rng: (5,),
        host=True,
        bad=(Bad("one step", {0: 1}, "T: expected a whole number of at least 2, got 1"),),
    ),
    Row(
        "diffusion.schedules.scaled_linear",
        schedules.scaled_linear,
        lambda rng: (5,),
        host=True,
        bad=(Bad("a fraction", {0: 2.5}, "T: expected a whole number of at least 2, got 2.5"),),
    ),
    Row(
        "diffusion.schedules.cosine",
        schedules.cosine,
        lambda rng: (5,),
        host=True,
        bad=(Bad("none", {0: 0}, "T: expected a whole number of at least 2, got 0"),),
    ),
    Row(
        "diffusion.schedules.theory",
        schedules.theory,
        lambda rng: (20,),
        host=True,
        bad=(Bad("few", {0: 8}, r"c1 · log\(T\) / T: expected a number below 1, got 1.03"),),
    ),
    Row(
        "diffusion.schedules.from_betas",
        schedules.from_betas,
        lambda rng: (rng.uniform(0.1, 0.5, 4),),
        host=True,
        bad=(Bad("NaN", {0: np.array([0.1, np.nan])}, "betas: expected a finite number above 0"),),
    ),
    Row(
        "diffusion.schedules.zero_snr",
        schedules.zero_snr,
        lambda rng: (schedules.linear(4),),
        host=True,
    ),
    Row(
        "diffusion.schedules.karras",
        schedules.karras,
        lambda rng: (4,),
        host=True,
        bad=(Bad("none", {0: 0}, "num: expected a whole number of at least 1, got 0"),),
    ),
    Row(
        "diffusion.schedules.grid",
        lambda steps: schedules.grid(made(), steps),
        lambda rng: (np.sort(rng.choice(16, 3, replace=False))[::-1].copy(),),
        vmap=(0,),
        bad=(
            Bad("outside", {0: jnp.array([16])}, r"timesteps: expected values in \[0.0, 15.0\]"),
            Bad("rising", {0: jnp.array([1, 2])}, "timesteps: expected descending values"),
            Bad("none", {0: jnp.ones(0, int)}, "timesteps: expected at least 1 rows, got 0"),
        ),
    ),
    Row(
        "diffusion.schedules.reverse_variance",
        lambda sigma2: schedules.reverse_variance(made(), "component", sigma2),
        lambda rng: (np.array(rng.uniform(0.1, 2)),),
        vmap=(0,),
        grad=(0,),
        bad=(Bad("negative", {0: -1.0}, r"sigma2: expected values in \[0.0, inf\], got -1.0"),),
    ),
    Row(
        "diffusion.schedules.transition_variance",
        lambda betas, before, after: schedules.transition_variance(
            betas, before, after, "component", 0.5
        ),
        lambda rng: (rng.uniform(0.1, 0.5, 3), -rng.uniform(1, 2, 3), -rng.uniform(0.1, 1, 3)),
        vmap=(0, 1, 2),
        grad=(0, 1, 2),
    ),
    Row(
        "diffusion.parameterization.add_noise",
        parameterization.add_noise,
        point,
        vmap=(0, 1, 2, 3),
        grad=(0, 1, 2, 3),
        dtypes=FLOATS,
        bad=(Bad("shape", {1: jnp.ones(2)}, r"eps: expected shape \(3\), got \(2,\)"),),
    ),
    *(convert(name) for name in ("eps", "x0", "v", "score")),
    Row(
        "diffusion.parameterization.edm_scalings",
        parameterization.edm_scalings,
        lambda rng: (rng.uniform(0, 3, 3),),
        vmap=(0,),
        grad=(0,),
        bad=(Bad("negative", {0: -jnp.ones(2)}, r"sigma: expected values in \[0.0, inf\]"),),
    ),
    Row(
        "diffusion.parameterization.edm_denoiser",
        lambda x, sigma: parameterization.edm_denoiser(lambda x, c, carry: (x * c, carry))(
            x, sigma, None
        )[0],
        lambda rng: (rng.normal(size=3), np.array(rng.uniform(0.1, 3))),
        vmap=(0, 1),
        grad=(0, 1),
        dtypes=FLOATS,
    ),
    sampler("ddpm"),
    sampler("ddim"),
    sampler("dpmpp_2m"),
    sampler("euler", noise_levels=True),
    sampler("heun", noise_levels=True),
    Row(
        "diffusion.inversion.ddim_invert",
        lambda x: (
            inversion.ddim_invert(
                gaussian.denoiser(made()), x, made(), few(), fixed_point=2
            ).trajectory
        ),
        NORMAL(3),
        vmap=(0,),
        grad=(0,),
        dtypes=FLOATS,
        bad=(Bad("integers", {0: whole}, "dtype of x: expected one of"),),
    ),
    Row(
        "diffusion.inversion.null_text_optimisation",
        null_text,
        lambda rng: (rng.normal(size=(4, 2)), rng.normal(size=2), rng.normal(size=2)),
        vmap=(0, 1, 2),
        bad=(
            Bad("short", {0: jnp.ones((3, 2))}, r"trajectory: expected shape \(4, 2\), got"),
            Bad("integers", {0: whole}, "dtype of trajectory: expected one of"),
        ),
    ),
    Row(
        "diffusion.guidance.guide",
        guidance.guide,
        lambda rng: (*rng.normal(size=(2, 3)), np.array(rng.uniform(1, 9))),
        vmap=(0, 1, 2),
        grad=(0, 1, 2),
        dtypes=FLOATS,
        bad=(Bad("shape", {1: jnp.ones(2)}, r"conditional: expected shape \(3\), got \(2,\)"),),
    ),
    Row(
        "diffusion.guidance.rescale",
        guidance.rescale,
        lambda rng: (*rng.normal(size=(2, 2, 3)), np.array(rng.uniform())),
        vmap=(0, 1, 2),
        grad=(0, 1, 2),
        bad=(
            Bad("shape", {1: jnp.ones(2)}, r"conditional: expected shape \(2, 3\), got \(2,\)"),
            Bad("phi", {2: 1.5}, r"phi: expected values in \[0.0, 1.0\], got 1.5"),
        ),
    ),
    Row(
        "diffusion.guidance.interval_weight",
        guidance.interval_weight,
        lambda rng: tuple(
            np.array(value) for value in (rng.uniform(1, 9), rng.normal(), -1.0, 1.0)
        ),
        vmap=(0, 1, 2, 3),
        bad=(Bad("ends", {2: 2.0}, r"high - low: expected values in \[0.0, inf\], got -1"),),
    ),
    Row(
        "diffusion.ema.decay_at",
        lambda count, decay: ema.decay_at(count, decay).astype(decay.dtype),
        lambda rng: (np.array(rng.integers(0, 50)), np.array(rng.uniform(0.3, 1))),
        vmap=(0, 1),
        bad=(
            Bad("decay", {1: jnp.array(1.5)}, r"decay: expected values in \[0.0, 1.0\], got 1.5"),
            Bad("count", {0: -1}, r"count: expected values in \[0.0, inf\], got -1"),
        ),
    ),
    Row(
        "diffusion.ema.update",
        ema.update,
        lambda rng: (rng.normal(size=3), rng.normal(size=3), np.array(4)),
        vmap=(0, 1),
        grad=(0, 1),
        dtypes=FLOATS,
    ),
    Row(
        "diffusion.losses.diffusion_loss",
        loss,
        NORMAL(4, 3),
        random=True,
        vmap=(0,),
        grad=(0,),
        bad=(Bad("none", {0: jnp.ones((0, 3))}, "x0: expected at least 1 rows, got 0"),),
    ),
    Row(
        "diffusion.losses.prediction_target",
        lambda x0, eps, a, b: losses.prediction_target(x0, eps, a, b, "v"),
        point,
        vmap=(0, 1, 2, 3),
        grad=(0, 1, 2, 3),
        dtypes=FLOATS,
        bad=(Bad("shape", {1: jnp.ones(2)}, r"eps: expected shape \(3\), got \(2,\)"),),
    ),
    Row(
        "diffusion.losses.min_snr_weight",
        lambda snr: losses.min_snr_weight(snr, "v"),
        lambda rng: (rng.uniform(0, 9, 3),),
        vmap=(0,),
        grad=(0,),
        bad=(Bad("negative", {0: -jnp.ones(2)}, r"snr: expected values in \[0.0, inf\]"),),
    ),
]
