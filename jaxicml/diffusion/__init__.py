"""The diffusion core: noise schedules, parameterisations, samplers, inversion, guidance, losses.

Map:
    schedules           forward processes, timestep grids, variances of reverse steps
    parameterization    noise, data, v and score predictions; EDM preconditioning
    samplers            DDPM, DDIM, DPM-Solver++ 2M, Euler and Heun, each one `lax.scan`
    inversion           DDIM inversion with fixed-point refinement, null-text optimisation
    guidance            classifier-free guidance, its rescaling and its interval
    losses              denoising losses with min-SNR weights
    ema                 moving averages of parameters with warm-up
    gmm                 Gaussian mixtures as a type: building, diffusing, drawing
    mixture             the exact score of Gaussian mixtures

A network is a function `denoise(x, t, carry) -> (out, carry)`; x_t = a x_0 + b ε throughout.
Import the modules: `from jaxicml.diffusion import samplers, schedules`.
"""
