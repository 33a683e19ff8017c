"""Speed and memory of DDPM on Gaussian mixtures.

    score       the streaming score against float32 matrix products of as many operations, torch's
                mixture with automatic differentiation, and smalldiffusion's denoiser
    memory      what the score and these peers hold beyond their input
    density     log p at the points against scikit-learn
    law         the exact law of the output against the same method in NumPy with dense kernels
    sampler     a sampler against its score calls, and against these and its random numbers

torch and BLAS get as many threads as there are cores, as jax takes them. The peak memory of
smalldiffusion is read from /proc, so on Linux alone.

Run: python -m experiments bench ddpm_gmm
"""

import dataclasses
import functools
import importlib
import importlib.util
import mmap
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.interpolate import CubicSpline

from jaxicml.diffusion import schedules
from jaxicml.diffusion.gmm import GMM, gaussian_mixture
from jaxicml.diffusion.mixture import gmm_eps, gmm_log_prob, gmm_score
from jaxicml.harness import bench
from jaxicml.methods import ddpm_gmm as lab
from jaxicml.types import Progress

MB = 1e6


@dataclasses.dataclass(frozen=True)
class Size:
    """Sizes of the figures."""

    points: int = 256
    dim: int = 784
    many: int = 60_000
    """Components that are streamed."""
    some: int = 1000
    """Components in the comparisons with torch and scikit-learn."""
    few: tuple[int, ...] = (100, 4000)
    """Components of the sampler's score: beside a cheap one its random numbers show."""
    block: int = 2048
    """Components at a time."""
    steps: tuple[int, ...] = (25, 50, 100, 200, 400)
    """Denoising steps of the laws; the last one is also taken alone."""
    n_grid: int = 2001
    sampler_steps: int = 20
    repeats: int = 9
    slow_repeats: int = 3
    """Timed pairs where a peer takes seconds."""


SIZES = {
    "smoke": Size(8, 16, 40, 12, (5,), 16, (10, 12), 701, 10, repeats=2, slow_repeats=2),
    "full": Size(),
}


def run(size: Size, log: Progress) -> bench.Bench:
    """Takes all figures."""
    import threadpoolctl

    quick = functools.partial(bench.interleave, repeats=size.repeats, log=log)
    slow = functools.partial(bench.interleave, repeats=size.slow_repeats, warmup=1, log=log)
    with threadpoolctl.threadpool_limits(cores()):
        entries = [*quick(gemm_cases(size)), *memory_entries(size)]
        missing = []
        try:
            entries += slow([torch_case(size)])
        except ImportError:
            missing.append("torch")
        try:
            case, memory = smalldiffusion_case(size)
            entries += [*quick([case]), memory]
        except ImportError:
            missing.append("smalldiffusion")
        entries += quick(sklearn_cases(size, np.float32, np.float64))
        for count in size.few:
            entries += quick(sampler_cases(size, count))
        with jax.enable_x64(True):
            entries += quick(sklearn_cases(size, np.float64))
            laws = [law_case(size.n_grid, steps) for steps in (size.steps, size.steps[-1:])]
            entries += slow(laws)
    return bench.Bench(entries, missing)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


class Problem(NamedTuple):
    """A mixture and points near it."""

    g: GMM
    x: jax.Array


def draw(size: Size, K: int, sigma2: float = 1.0) -> Problem:
    """K random means in the default float, with norm 2.8 where d = 784.

    Many components then have weight at a point, and nobody computes with denormal numbers.
    """
    rng = np.random.default_rng(0)
    means = jnp.array(0.1 * rng.normal(size=(K, size.dim)), float)
    x = jnp.array(rng.normal(size=(size.points, size.dim)), float)
    return Problem(gaussian_mixture(jnp.full(K, 1 / K), means, sigma2), x)


def gap(ours, theirs) -> str:
    """The largest difference, relative to the largest entry."""
    theirs = np.asarray(theirs)
    return f"{np.abs(np.asarray(ours) - theirs).max() / np.abs(theirs).max():.0e}"


def words(size: Size, K: int) -> str:
    """B, K and d in words."""
    return f"B = {size.points}, K = {K}, d = {size.dim}"


def gemm_cases(size: Size) -> list[bench.Case]:
    """The score's 4 B K d operations against one square product of as many, 2 n³."""
    g, x = draw(size, size.many)
    n = round((2 * size.points * size.many * size.dim) ** (1 / 3))
    square = np.random.default_rng(0).normal(size=(n, n)).astype(np.float32)
    score, multiply, on_device = streaming(gmm_score, size), jax.jit(jnp.matmul), jnp.array(square)
    peers = {
        "XLA": lambda: multiply(on_device, on_device),
        "NumPy": lambda: square @ square,
    }
    note = f"{words(size, size.many)}; their product is {n} × {n} by {n} × {n}, float32"
    return [
        bench.Case(f"score, product in {name}", name, lambda: score(g, x), product, 0.5, note)
        for name, product in peers.items()
    ]


def streaming(quantity, size: Size):
    """A compiled quantity of the mixture that takes its components in blocks."""
    return jax.jit(functools.partial(quantity, block=size.block))


def memory_entries(size: Size) -> list[bench.Entry]:
    """What the score holds, at three K, against limits."""
    counts = [size.many // 4, size.many // 2, size.many]
    held = {K: extra_memory(streaming(gmm_score, size), *draw(size, K)) / MB for K in counts}
    linear = 4 * size.dim * (size.points + size.block) / MB
    table = 4 * size.points * size.many / MB
    bounds = {
        "B d + block d, twice": (2 * linear, 1, ", ".join(f"K = {K}: {held[K]:.2f}" for K in held)),
        "B × K responsibilities": (table, 1, "one array"),
        "B × K × d of torch": (table * size.dim, None, "one array; not tried, it exceeds memory"),
    }
    at = f"{words(size, size.many)}, blocks of {size.block}"
    return [
        bench.limit(
            f"memory, {name}", held[size.many], bound, "MB", target=target, note=f"{at}; {note}"
        )
        for name, (bound, target, note) in bounds.items()
    ]


def extra_memory(program, *args) -> int:
    """Bytes of temporaries and results of a compiled program."""
    analysis: Any = program.lower(*args).compile().memory_analysis()
    return analysis.temp_size_in_bytes + analysis.output_size_in_bytes


def torch_case(size: Size) -> bench.Case:
    """The score by automatic differentiation of torch's mixture."""
    torch = load_torch()
    law = importlib.import_module("torch.distributions")
    g, x = draw(size, size.some)
    means, points = tensor(torch, g.means), tensor(torch, x)
    components = law.Independent(law.Normal(means, torch.ones_like(means)), 1)
    mixture = law.MixtureSameFamily(law.Categorical(torch.ones(size.some)), components)

    def theirs():
        at = points.clone().requires_grad_()
        return torch.autograd.grad(mixture.log_prob(at).sum(), at)[0]

    score = streaming(gmm_score, size)
    ours = lambda: score(g, x)
    note = f"{words(size, size.some)}, float32; scores differ by {gap(ours(), theirs())}"
    return bench.Case("score, torch", "torch", ours, theirs, 5.0, note)


def smalldiffusion_case(size: Size) -> tuple[bench.Case, bench.Entry]:
    """Expected noise given points of a data set and noise σ = 1, its time and its memory."""
    torch = load_torch()
    g, x = draw(size, size.many, sigma2=0.0)
    denoiser = load_alone("smalldiffusion", "model").IdealDenoiser(tensor(torch, g.means))
    points, sigma = tensor(torch, x), torch.tensor(1.0)

    def theirs():
        with torch.no_grad():
            return denoiser(points, sigma)

    noise = streaming(gmm_eps, size)
    abar = 0.5  # x / √2 = √ᾱ x_0 + √(1 − ᾱ) ε
    ours = lambda: noise(g, abar**0.5 * x, abar)
    at = words(size, size.many)
    note = f"{at}, float32; predicted noise differs by {gap(ours(), theirs())}"
    case = bench.Case("score, smalldiffusion", "smalldiffusion", ours, theirs, 1.2, note)
    held, peak = extra_memory(noise, g, x, abar) / MB, peak_growth(theirs) / MB
    how = "ours temporaries and results as compiled, theirs growth of the peak resident memory"
    memory = bench.Entry(
        "memory, smalldiffusion",
        "smalldiffusion",
        held,
        peak,
        "MB",
        peak / held,
        target=10,
        note=f"{at}, blocks of {size.block}; {how}",
    )
    return case, memory


def load_torch() -> Any:
    """PyTorch, with a thread for each core."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(cores())
    return torch


def load_alone(package: str, name: str) -> Any:
    """A module of a package without the package, which would import what trains networks."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise ImportError(f"{package}: not installed")
    path = Path(found.origin).with_name(f"{name}.py")
    spec: Any = importlib.util.spec_from_file_location(f"{package}_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tensor(torch, array: jax.Array):
    """A copy that torch owns."""
    return torch.from_numpy(np.array(array))


def peak_growth(work) -> int:
    """Bytes by which the resident memory rises during a call; a page where none is seen."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = resident("VmRSS")
    work()
    return max(resident("VmHWM") - before, mmap.PAGESIZE)


def resident(field: str) -> int:
    """A field of this process's status, in bytes."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def sklearn_cases(size: Size, *dtypes: type) -> list[bench.Case]:
    """Log densities in the default float, against scikit-learn in each of these dtypes."""
    g, x = draw(size, size.some)
    log_prob, product = jax.jit(gmm_log_prob), jax.jit(lambda x, means: x @ means.T)
    ours = lambda: log_prob(g, x)
    floor = bench.seconds(lambda: product(x, g.offsets))
    target = 2.0 if x.dtype == jnp.float32 else 1.0
    cases = []
    for dtype in dtypes:
        theirs = sklearn_density(g, x, dtype)
        note = f"{words(size, size.some)}; log densities differ by {gap(ours(), theirs())}; "
        note += f"x·μ alone takes XLA {floor:.2g} s"
        id = f"density, {x.dtype} against {np.dtype(dtype)}"
        cases.append(bench.Case(id, "scikit-learn", ours, theirs, target, note))
    return cases


def sklearn_density(g: GMM, x: jax.Array, dtype: type):
    """The work of scikit-learn's `score_samples` for a mixture with σ² = 1."""
    from sklearn.mixture import GaussianMixture

    peer: Any = GaussianMixture(g.num_components, covariance_type="spherical")
    peer.means_ = np.array(g.means, dtype)
    peer.weights_ = np.exp(np.array(g.log_weights, dtype))
    peer.precisions_cholesky_ = np.ones_like(peer.weights_)
    return functools.partial(peer.score_samples, np.array(x, dtype))


def sampler_cases(size: Size, count: int) -> list[bench.Case]:
    """DDPM against its T − 1 score calls, without and with the random numbers it needs."""
    g, x = draw(size, count)
    schedule = schedules.theory(size.sampler_steps)
    levels = jnp.arange(size.sampler_steps - 1, 0, -1)
    score = functools.partial(lab.mixture_score, schedule=schedule)

    @jax.jit
    def sample(key, g, x):
        return lab.ddpm_sample(key, score(g), schedule, x.shape, variance="component", sigma2=1.0).x

    @jax.jit
    def scores(key, g, x):
        return jax.lax.scan(lambda x, t: (score(g)(x, t), None), x, levels)[0]

    @jax.jit
    def noisy_scores(key, g, x):
        def step(x, row):
            t, key = row
            return score(g)(x, t) + jax.random.normal(key, x.shape), None

        return jax.lax.scan(step, x, (levels, jax.random.split(key, len(levels))))[0]

    note = f"{words(size, count)}, T = {size.sampler_steps}"
    peers = {"score calls": scores, "score calls and noise": noisy_scores}
    call = lambda work: functools.partial(work, jax.random.key(0), g, x)
    return [
        bench.Case(f"sampler, K = {count}, {name}", name, call(sample), call(work), 1 / 1.1, note)
        for name, work in peers.items()
    ]


def law_case(n_grid: int, steps: tuple[int, ...]) -> bench.Case:
    """The law of the three modes at each T, with the variance "component"."""
    g, made = lab.three_modes(), [schedules.theory(T) for T in steps]
    ours = lambda: [lab.output_density_1d(g, s, "component", n_grid=n_grid) for s in made]
    theirs = lambda: [numpy_law(np.array(s.betas), n_grid) for s in made]
    name = ", ".join(map(str, steps))
    apart = gap(np.exp(ours()[0].log_q), numpy_law(np.array(made[0].betas), n_grid))
    note = f"{n_grid} points, float64; densities at T = {steps[0]} differ by {apart}"
    return bench.Case(f"law, T = {name}", "NumPy", ours, theirs, 5.0, note)


def numpy_law(betas: np.ndarray, n_grid: int) -> np.ndarray:
    """Density of DDPM's output for the three modes: splines, dense kernels, quadrature.

    A step goes through its map by a cubic spline and through its Gaussian by a dense kernel, or,
    where the grid is too coarse for that, by Gauss-Hermite quadrature with 41 nodes.
    """
    sigma2 = 0.25
    grid, h = np.linspace(-11, 11, n_grid, retstep=True)
    abar = np.exp(np.cumsum(np.log1p(-betas)))
    v = abar * sigma2 + 1 - abar
    log_q = -(grid**2) / 2 - np.log(2 * np.pi) / 2
    for t in range(len(betas) - 1, 0, -1):
        m, slope = numpy_map(grid, betas[t], abar[t], v[t])
        spline = CubicSpline(m, log_q - np.log(slope))
        sd = np.sqrt(betas[t] * v[t - 1] / v[t])
        q = numpy_smoothed(spline, grid, h, sd)
        log_q = np.log(np.maximum(q, 1e-18 * q.max()))
    return np.exp(log_q)


def numpy_map(x, beta, abar, v):
    """The mean of a step and its derivative."""
    weights, means = np.array([0.3, 0.5, 0.2]), np.sqrt(abar) * np.array([-3.0, 0.5, 3.0])
    terms = weights * np.exp(-((x[:, None] - means) ** 2) / (2 * v))
    r = terms / terms.sum(1, keepdims=True)
    mean = r @ means
    spread = r @ means**2 - mean**2
    root = np.sqrt(1 - beta)
    return (x + beta * (mean - x) / v) / root, (1 + beta * (spread / v - 1) / v) / root


def numpy_smoothed(spline, grid, h, sd):
    """exp(spline), zero outside its knots, convolved with N(0, sd²)."""
    low, high = spline.x[[0, -1]]
    pushed = lambda y: np.where((y >= low) & (y <= high), np.exp(spline(y.clip(low, high))), 0)
    if sd > 6 * h:
        kernel = np.exp(-(((grid[:, None] - grid) / sd) ** 2) / 2) / (np.sqrt(2 * np.pi) * sd)
        return h * kernel @ pushed(grid)
    nodes, weights = np.polynomial.hermite_e.hermegauss(41)
    return pushed(grid[:, None] - sd * nodes) @ weights / np.sqrt(2 * np.pi)
