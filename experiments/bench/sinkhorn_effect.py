"""Speed and memory of the Sinkhorn treatment effect.

    potentials    cross-term potentials against ott-jax, POT and geomloss, to one marginal error
    pipeline      one replication of the test, over the default grid of ε and at its median alone,
                  against the same formulas in NumPy
    memory        peak temporaries of one ε, in matrices of n × n numbers
    cost          seconds at one ε, and how they grow with n

Run: python -m experiments bench sinkhorn_effect
"""

import dataclasses
import functools
import importlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from ott.geometry import geometry
from ott.solvers import linear
from scipy.special import logsumexp

from jaxicml.harness import bench, threads
from jaxicml.methods.sinkhorn_effect import (
    DEFAULT_MULTIPLES,
    ConditionalLaw,
    epsilon_grid,
    kernel_law,
    median_cost,
    simulate_gaussian,
    sinkhorn_effect_aggregated,
    sinkhorn_treatment_effect,
)
from jaxicml.methods.sinkhorn_effect.potentials import cross_potentials, half_squared_cost
from jaxicml.types import Progress

TOL = 1e-9
"""L1 marginal error that everybody has to reach."""

MAX_ITER = 2000


@dataclasses.dataclass(frozen=True)
class Size:
    """Sizes of the four figures."""

    potentials: int = 1000
    """Atoms of each measure."""
    pipeline: int = 200
    """Observations, and training outcomes, of a replication."""
    replications: int = 8
    """Replications in one call."""
    memory: int = 2000
    growth: tuple[int, ...] = (250, 500, 1000, 2000)
    floor: int = 1000
    """Observations of the run that has to end within three seconds."""
    num_null: int = 2000
    repeats: int = 9


SIZES = {
    "smoke": Size(24, 20, 2, 24, (8, 160), 8, num_null=99, repeats=2),
    "full": Size(),
}


def run(size: Size, log: Progress) -> bench.Bench:
    """Takes all figures."""
    with jax.enable_x64(True):
        cases, missing = potential_cases(size)
        entries = bench.interleave(cases, repeats=size.repeats, log=log)
        with threads.one_blas_thread():
            entries += pipeline_entries(size, log)
        entries += [memory_entry(size), *cost_entries(size)]
    return bench.Bench(entries, missing)


def potential_cases(size: Size) -> tuple[list[bench.Case], list[str]]:
    """Our potentials against each peer that is installed; each starts from the cost matrix."""
    rng = np.random.default_rng(0)
    n = size.potentials
    x, y = rng.normal(size=(n, 10)), rng.normal(size=(n, 10)) + 0.5
    cost = half_squared_cost(jnp.array(x), jnp.array(y))
    epsilon = float(median_cost(jnp.concatenate([jnp.array(x), jnp.array(y)])))
    problem = Problem(x, y, np.asarray(cost), np.full(n, 1 / n), epsilon)

    weights = jnp.array(problem.weights)
    ours = jax.jit(functools.partial(cross_potentials, tol=TOL, max_iter=MAX_ITER))
    solve = lambda: ours(cost, weights, weights, epsilon)
    out = solve()
    own = f"ours {problem.marginal_error(out.f, out.g):.1e} after {int(out.n_iters)} steps"
    peers = {"ott-jax": (ott_peer, 1.0), "POT": (pot_peer, 2.0), "geomloss": (geomloss_peer, None)}
    cases, missing = [], []
    for name, (make, target) in peers.items():
        try:
            work, error = make(problem)
        except ImportError:
            missing.append(name)
            continue
        note = f"L1 marginal error: {own}, theirs {error:.1e}; n = {n}, d = 10, float64"
        cases.append(bench.Case(f"potentials, {name}", name, solve, work, target, note))
    return cases, missing


class Problem(NamedTuple):
    """Two uniform samples, ½‖x − y‖² between them and ε."""

    x: np.ndarray
    y: np.ndarray
    cost: np.ndarray
    weights: np.ndarray
    epsilon: float

    def marginal_error(self, f, g) -> float:
        """L1 error of both marginals of the plan a b exp((f + g − C)/ε)."""
        exponent = (np.asarray(f)[:, None] + np.asarray(g)[None, :] - self.cost) / self.epsilon
        plan = self.weights[:, None] * self.weights[None, :] * np.exp(exponent)
        return sum(np.abs(plan.sum(axis) - self.weights).sum() for axis in (0, 1))

    def from_weighted(self, log_u, log_v) -> float:
        """The error where scalings hold the weights: plan = exp(log u + log v − C/ε)."""
        shift = np.log(self.weights)
        return self.marginal_error(
            self.epsilon * (np.asarray(log_u) - shift), self.epsilon * (np.asarray(log_v) - shift)
        )


def ott_peer(problem: Problem):
    """ott-jax's `solve` with its defaults, compiled as one program."""

    @jax.jit
    def solve(cost, weights):
        geom = geometry.Geometry(cost_matrix=cost, epsilon=problem.epsilon)
        out: Any = linear.solve(geom, weights, weights, threshold=TOL, max_iterations=MAX_ITER)
        return out.f, out.g

    work = functools.partial(solve, jnp.array(problem.cost), jnp.array(problem.weights))
    f, g = work()
    return work, problem.from_weighted(f / problem.epsilon, g / problem.epsilon)


def pot_peer(problem: Problem):
    """POT's log-domain Sinkhorn, whose threshold is on the L2 error: the loosest that will do."""
    from ot.bregman import sinkhorn_log

    def solve(threshold):
        return sinkhorn_log(
            problem.weights,
            problem.weights,
            problem.cost,
            problem.epsilon,
            numItermax=MAX_ITER,
            stopThr=threshold,
            log=True,
        )[1]

    for threshold in TOL * 0.5 ** np.arange(20):
        out = solve(threshold)
        error = problem.from_weighted(out["log_u"], out["log_v"])
        if error <= TOL:
            break
    return functools.partial(solve, threshold), error


def geomloss_peer(problem: Problem):
    """The dense form of geomloss, which has no threshold: the fastest annealing that will do."""
    torch, geomloss = map(importlib.import_module, ("torch", "geomloss"))
    x, y = torch.from_numpy(problem.x), torch.from_numpy(problem.y)

    def solve(scaling):
        loss = geomloss.SamplesLoss(
            "sinkhorn",
            p=2,
            blur=problem.epsilon**0.5,
            scaling=scaling,
            debias=False,
            potentials=True,
            backend="tensorized",
        )
        with torch.no_grad():
            return [potential.flatten().numpy() for potential in loss(x, y)]

    for scaling in (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99):
        error = problem.marginal_error(*solve(scaling))
        if error <= TOL:
            break
    return functools.partial(solve, scaling), error


class Sample(NamedTuple):
    """What the estimators are given."""

    outcome: jax.Array
    treatment: jax.Array
    propensity: jax.Array
    law: ConditionalLaw
    epsilons: jax.Array


def draw(key, n: int, multiples: tuple[float, ...] = (1.0,)) -> Sample:
    """The simulated trial with a mean shift, true propensities, the kernel law of n other rows."""
    x, a, y = simulate_gaussian(key, 2 * n, 0.6, "mean")
    law = kernel_law(x[:n], a[:n], y[:n], x[n:], bandwidth=1.0)
    propensity = jnp.clip(jax.nn.sigmoid(x[n:].sum(1)), 0.02, 0.98)
    return Sample(y[n:], a[n:], propensity, law, epsilon_grid(y[:n], multiples))


def aggregated(key, sample: Sample, num_null: int):
    """Ours over a grid, as the paper aggregates."""
    outcome, treatment, propensity, law, epsilons = sample
    return sinkhorn_effect_aggregated(
        key,
        outcome,
        treatment,
        propensity,
        law,
        epsilons=epsilons,
        num_null=num_null,
        regime_tol=None,
    )


def single(key, sample: Sample, num_null: int):
    """Ours at the first ε."""
    outcome, treatment, propensity, law, epsilons = sample
    return sinkhorn_treatment_effect(
        key, outcome, treatment, propensity, law, epsilon=epsilons[0], num_null=num_null
    )


def pipeline_entries(size: Size, log: Progress) -> list[bench.Entry]:
    """Replications inside `vmap` against NumPy in a loop, in seconds a replication."""
    cases = [
        _pipeline_case(size, "pipeline", DEFAULT_MULTIPLES, 8),
        _pipeline_case(size, "pipeline, one ε", (1.0,), None),
    ]
    share = 1 / size.replications
    return [
        dataclasses.replace(
            entry, ours=entry.ours * share, theirs=entry.theirs * share, unit="s a replication"
        )
        for entry in bench.interleave(cases, repeats=size.repeats, log=log)
    ]


def _pipeline_case(size: Size, name: str, multiples, target) -> bench.Case:
    keys = jax.random.split(jax.random.key(0), size.replications)
    samples = jax.jit(jax.vmap(lambda key: draw(key, size.pipeline, multiples)))(keys)
    ours = jax.jit(jax.vmap(lambda key, sample: aggregated(key, sample, size.num_null)))
    one = lambda i: jax.tree.map(lambda leaf: np.asarray(leaf[i]), samples)
    on_host = [one(i) for i in range(size.replications)]
    theirs = lambda: [numpy_pipeline(i, s, size.num_null) for i, s in enumerate(on_host)]

    gap = np.abs(np.array([out.onestep for out in theirs()]) - ours(keys, samples).per_eps.onestep)
    words = ", ".join(f"{m:g}" for m in multiples)
    note = f"n = {size.pipeline}, {size.replications} replications in one vmap, "
    note += f"ε = {words} times the median cost; one-step estimates differ by {gap.max():.0e}"
    return bench.Case(name, "NumPy", lambda: ours(keys, samples), theirs, target, note)


def memory_entry(size: Size) -> bench.Entry:
    """Temporaries of the compiled program at one ε."""
    n = size.memory
    sample = jax.eval_shape(lambda key: draw(key, n), jax.random.key(0))
    program = jax.jit(functools.partial(single, num_null=size.num_null))
    compiled = program.lower(jax.eval_shape(jax.random.key, 0), sample).compile()
    analysis: Any = compiled.memory_analysis()
    buffers = analysis.temp_size_in_bytes / (8 * n * n)
    note = f"{n} observations, {n} atoms, {size.num_null} null draws"
    return bench.limit("memory", buffers, 14, "n × n float64", target=1, note=note)


def cost_entries(size: Size) -> list[bench.Entry]:
    """Seconds at one ε: the floor and the growth."""
    program = jax.jit(functools.partial(single, num_null=size.num_null))

    def cost(n):
        key = jax.random.key(n)
        sample = jax.jit(draw, static_argnums=1)(key, n)
        return bench.seconds(lambda: program(key, sample), repeats=3, warmup=1)

    seconds = {n: cost(n) for n in sorted({*size.growth, size.floor})}
    slope = bench.exponent(size.growth, [seconds[n] for n in size.growth])
    note = ", ".join(f"n = {n}: {seconds[n]:.3g} s" for n in size.growth)
    floor = f"n = m = {size.floor}, one ε"
    return [
        bench.limit("cost", seconds[size.floor], 3.0, "s", target=1, note=floor),
        bench.limit("growth", slope, 3.0, "exponent", note=note),
    ]


class NumpyResult(NamedTuple):
    """What `numpy_pipeline` returns, one entry an ε, and the p-value of the maximum."""

    plugin: np.ndarray
    onestep: np.ndarray
    second_order: np.ndarray
    p_value: float


def numpy_pipeline(seed: int, sample: Sample, num_null: int, alpha: float = 0.05) -> NumpyResult:
    """The method as its formulas stand, in vectorised NumPy with SciPy's `logsumexp`."""
    n = len(sample.outcome)
    points = np.concatenate([sample.outcome, sample.law.atoms1])
    squares = (points**2).sum(1)
    cost = np.maximum((squares[:, None] + squares[None, :]) / 2 - points @ points.T, 0)
    gaussians = np.random.default_rng(seed).standard_normal((num_null, n))
    outs = [_at_epsilon(sample, cost, gaussians, epsilon) for epsilon in sample.epsilons]
    plugin, onestep, second_order, null = map(np.array, zip(*outs, strict=True))

    scales = np.sort(null, axis=1)[:, -int(alpha * (num_null + 1) + 1e-9)]
    statistic = (n * second_order / scales).max()
    p_value = (1 + ((null / scales[:, None]).max(0) >= statistic).sum()) / (num_null + 1)
    return NumpyResult(plugin, onestep, second_order, float(p_value))


def _at_epsilon(sample: Sample, cost, gaussians, epsilon):
    """Plug-in, one-step, second-order estimate and null draws at one ε."""
    n, treatment, propensity = len(sample.outcome), sample.treatment, sample.propensity
    weights1, weights0 = sample.law.weights1, sample.law.weights0
    p1, p0 = weights1.mean(0), weights0.mean(0)
    atoms, to_atoms = cost[n:, n:], cost[:, n:]
    treated, control = treatment / propensity, (1 - treatment) / (1 - propensity)

    f, g = _cross(atoms, p1, p0, epsilon)
    own1, own0 = _symmetric(atoms, p1, epsilon), _symmetric(atoms, p0, epsilon)
    centred1 = _softmin(g, p0, to_atoms, epsilon) - _softmin(own1, p1, to_atoms, epsilon)
    centred0 = _softmin(f, p1, to_atoms, epsilon) - _softmin(own0, p0, to_atoms, epsilon)
    plugin = p1 @ centred1[n:] + p0 @ centred0[n:]
    mean1, mean0 = weights1 @ centred1[n:], weights0 @ centred0[n:]
    eif1 = treated * (centred1[:n] - mean1) + control * (centred0[:n] - mean0)
    eif1 = eif1 + mean1 + mean0 - (mean1 + mean0).mean()

    on_atoms = (1 - treated)[:, None] * weights1 - (1 - control)[:, None] * weights0 - p1 + p0
    rows = np.concatenate([np.diag(treated - control), on_atoms], axis=1)
    balance = treated + control
    mu = np.concatenate([balance / balance.sum(), (p1 + p0) / 2]) / 2
    eif2 = _second_order(rows, cost, mu, epsilon)

    onestep = plugin + eif1.mean()
    correction = (eif2.sum() - np.trace(eif2)) / (n * (n - 1))
    null = (((gaussians @ eif2) * gaussians).sum(1) - np.trace(eif2)) / (2 * n)
    return plugin, onestep, onestep + correction / 2, null


def _softmin(potential, weights, cost, epsilon):
    with np.errstate(divide="ignore"):
        exponent = np.log(weights) + potential / epsilon
    return -epsilon * np.asarray(logsumexp(exponent[None, :] - cost / epsilon, axis=1))


def _cross(cost, a, b, epsilon):
    """Alternating updates."""
    f = np.zeros(len(a))
    for _ in range(MAX_ITER):
        g = _softmin(f, a, cost.T, epsilon)
        update = _softmin(g, b, cost, epsilon)
        error = a @ np.abs(np.exp((f - update) / epsilon) - 1)
        f = update
        if error <= TOL:
            break
    return f, g


def _symmetric(cost, a, epsilon):
    """Averaged updates."""
    f = np.zeros(len(a))
    for _ in range(MAX_ITER):
        update = _softmin(f, a, cost, epsilon)
        error = a @ np.abs(np.exp((f - update) / epsilon) - 1)
        f = (f + update) / 2
        if error <= TOL:
            break
    return f


def _second_order(rows, cost, mu, epsilon):
    """ε L D⁻¹ (ξ − 1) Lᵀ by one Cholesky factor of the symmetrised D."""
    f = _symmetric(cost, mu, epsilon)
    xi = np.exp((f[:, None] + f[None, :] - cost) / epsilon)
    scale = np.sqrt(mu)
    symmetric = xi * scale[:, None] * scale[None, :]
    deflated = np.eye(len(mu)) - symmetric @ symmetric + np.outer(scale, scale)
    factor = scipy.linalg.cho_factor(deflated, lower=True)
    right = scipy.linalg.cho_solve(factor, (scale[:, None] * (xi - 1)) @ rows.T)
    return epsilon * (rows / scale) @ right
