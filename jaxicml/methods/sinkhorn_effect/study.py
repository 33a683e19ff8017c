"""Monte-Carlo studies of the method: each is one pure function of a key, for `train.replicate`.

The factories are cached, so that equal settings give the same function object and compile once.
Strength, confounding, pools and data are arguments of that function: a sweep over them runs the
same program. Every replication draws its data, fits its nuisances and runs every test on them.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxicml import checks
from jaxicml.methods.sinkhorn_effect import estimator, folds, grid
from jaxicml.methods.sinkhorn_effect.baselines import ate_aipw, dr_xkte, mmd_fold_terms
from jaxicml.methods.sinkhorn_effect.data import sample_gaussian, simulate_image_trial
from jaxicml.methods.sinkhorn_effect.flow import fit_flow, flow_law
from jaxicml.methods.sinkhorn_effect.laws import kernel_law, select_bandwidth
from jaxicml.methods.sinkhorn_effect.propensity import clip_propensity, logistic_propensity
from jaxicml.types import Key

__all__ = [
    "Comparison",
    "Estimates",
    "Protocol",
    "RealTest",
    "estimation_trial",
    "gaussian_comparison",
    "image_comparison",
    "subsample_test",
]

_POTENTIALS = {"reference": "balanced", "tol": None, "max_iter": 2000}


@dataclass(frozen=True)
class Protocol:
    """How every test of a comparison is run; fixed before any result.

    Attributes:
        n: observations of the evaluation sample, and of the nuisance sample.
        bandwidth: of the kernel law, in units of the covariates; one of several is chosen by
            leave-one-out.
        multiples: η of the grid ε = η · median cost.
        num_null: draws of the null laws.
        alpha: level.
        clip: bound of the propensities.
        law: conditional law, "kernel" or "flow" (conditional RealNVP, fitted anew on every data
            set).
    """

    n: int = 200
    bandwidth: float | tuple[float, ...] = 1.0
    multiples: tuple[float, ...] = grid.DEFAULT_MULTIPLES
    num_null: int = 500
    alpha: float = 0.05
    clip: float = 0.02
    law: str = "kernel"

    def __post_init__(self):
        checks.check_integer("n", self.n, low=4)
        for name in ("bandwidth", "multiples"):
            checks.check_positive(name, checks.as_numbers(name, getattr(self, name)))
        estimator.check_test(self.num_null, self.clip, alpha=self.alpha)
        checks.check_choice("law", self.law, ("kernel", "flow"))


class Comparison(NamedTuple):
    """p-values of all tests on one data set; e is the grid of ε."""

    ste: Float[Array, " e"]
    guarded: Float[Array, ""]
    """STEAgg with the quadratic-regime guard, the default."""
    plain: Float[Array, ""]
    """STEAgg as the paper's plain maximum."""
    mte: Float[Array, " e"]
    mte_agg: Float[Array, ""]
    dr_xkte: Float[Array, ""]
    ate: Float[Array, ""]
    regime: Float[Array, " e"]
    """ρ_ε, one where the divergence is quadratic."""
    ste_estimate: Float[Array, " e"]
    """One-step STE."""
    mte_estimate: Float[Array, " e"]


class Estimates(NamedTuple):
    """Estimates of one effect at one ε, with the standard error of the one-step estimator."""

    plugin: Float[Array, ""]
    onestep: Float[Array, ""]
    se: Float[Array, ""]


class RealTest(NamedTuple):
    """Test and estimate on observed data, at the median ε where one ε is meant."""

    p_value: Float[Array, ""]
    plain_p_value: Float[Array, ""]
    onestep: Float[Array, ""]
    ci_low: Float[Array, ""]
    ci_high: Float[Array, ""]
    kept: Bool[Array, " e"]


@functools.cache
def gaussian_comparison(protocol: Protocol):
    """`f(key, law, confounding, overlap) -> Comparison` on the Gaussian trial, one plain split."""

    def one(key, law, confounding, overlap):
        draw_key, test_key = jax.random.split(key)
        sample = sample_gaussian(
            draw_key, 2 * protocol.n, law, confounding=confounding, overlap=overlap
        )
        return _compare(test_key, *sample, protocol)

    return one


@functools.cache
def image_comparison(protocol: Protocol, p: int = 5):
    """`f(key, theta, pool0, pool1) -> Comparison` on the image trial, one plain split."""

    def one(key, theta, pool0, pool1):
        draw_key, test_key = jax.random.split(key)
        sample = simulate_image_trial(draw_key, 2 * protocol.n, theta, pool0, pool1, p=p)
        return _compare(test_key, *sample, protocol)

    return one


def _compare(key: Key, x, a, y, protocol: Protocol) -> Comparison:
    """All tests on the second half, with nuisances and the median cost from the first."""
    n = protocol.n
    propensity, clipped = clip_propensity(logistic_propensity(x[:n], a[:n])(x[n:]), protocol.clip)
    key, law_key = jax.random.split(key)
    law = _law(protocol, law_key, x[:n], a[:n], y[:n], x[n:])
    median = grid.median_cost(y[:n])
    epsilons = median * jnp.asarray(protocol.multiples, y.dtype)
    sample = y[n:], a[n:], propensity, law

    terms = estimator.fold_terms(key, *sample, epsilons, num_null=protocol.num_null, **_POTENTIALS)
    mmd_terms = mmd_fold_terms(key, *sample, epsilons, num_null=protocol.num_null)
    test = lambda terms, regime_tol: _summary([terms], epsilons, clipped, protocol, regime_tol)
    guarded, plain, mmd = test(terms, 0.1), test(terms, None), test(mmd_terms, None)
    return Comparison(
        ste=guarded.per_eps.p_value,
        guarded=guarded.p_value,
        plain=plain.p_value,
        mte=mmd.per_eps.p_value,
        mte_agg=mmd.p_value,
        dr_xkte=dr_xkte(*sample, bandwidth=median).p_value,
        ate=ate_aipw(*sample).p_value,
        regime=guarded.regime_ratio,
        ste_estimate=guarded.per_eps.onestep,
        mte_estimate=mmd.per_eps.onestep,
    )


@functools.cache
def estimation_trial(protocol: Protocol, num_folds: int):
    """`f(key, law, confounding, overlap, epsilon) -> Estimates` on the Gaussian trial.

    Folds have `protocol.n` observations each; one fold means a plain split of twice as many.
    An ε of zero stands for the median cost of the outcomes.
    """
    total = protocol.n * max(num_folds, 2)

    def one(key, law, confounding, overlap, epsilon):
        draw_key, fit_key = jax.random.split(key)
        x, a, y = sample_gaussian(draw_key, total, law, confounding=confounding, overlap=overlap)
        epsilon = jnp.where(epsilon > 0, epsilon, grid.median_cost(y))
        terms, clipped = _terms(fit_key, x, a, y, epsilon[None], protocol, num_folds)
        out = _summary(terms, epsilon[None], clipped, protocol, None).per_eps
        return Estimates(out.plugin[0], out.onestep[0], out.se[0])

    return one


@functools.cache
def subsample_test(protocol: Protocol, size: int, num_folds: int = 2):
    """`f(key, x, a, y, permute) -> RealTest` on a random subsample of given data.

    With `permute` the treatment of the subsample is shuffled, which makes the null true. The key
    draws subsample, folds and null.
    """
    checks.check_choice("η = 1 in the grid", 1.0, protocol.multiples)

    def one(key, x, a, y, permute):
        choose_key, permute_key, test_key = jax.random.split(key, 3)
        chosen = jax.random.choice(choose_key, x.shape[0], (size,), replace=False)
        x, a, y = x[chosen], a[chosen], y[chosen]
        a = jnp.where(permute, jax.random.permutation(permute_key, a), a)
        epsilons = grid.epsilon_grid(y, protocol.multiples)
        terms, clipped = _terms(test_key, x, a, y, epsilons, protocol, num_folds)
        guarded = _summary(terms, epsilons, clipped, protocol, 0.1)
        plain = _summary(terms, epsilons, clipped, protocol, None)
        middle = protocol.multiples.index(1.0)
        single = jax.tree.map(lambda leaf: leaf[middle], guarded.per_eps)
        return RealTest(
            guarded.p_value,
            plain.p_value,
            single.onestep,
            single.ci_low,
            single.ci_high,
            guarded.kept,
        )

    return one


def _terms(key, x, a, y, epsilons, protocol: Protocol, num_folds: int):
    return folds.cross_fit_terms(
        key,
        x,
        a,
        y,
        lambda key, x, a: logistic_propensity(x, a),
        functools.partial(_law, protocol),
        functools.partial(estimator.fold_terms, num_null=protocol.num_null, **_POTENTIALS),
        epsilons,
        num_folds,
        protocol.clip,
    )


def _law(protocol: Protocol, key: Key, x, a, y, x_eval):
    """The conditional law; a bandwidth is chosen on the training sample where there is a choice."""
    if protocol.law == "flow":
        masks = jnp.stack([a == 1, a == 0])
        fit = lambda key, mask: fit_flow(key, x, y, mask=mask).flow
        flows = jax.vmap(fit)(jax.random.split(key), masks)
        flow1, flow0 = (jax.tree.map(lambda leaf, arm=arm: leaf[arm], flows) for arm in (0, 1))
        return flow_law(flow1, flow0, x, a, y, x_eval)
    bandwidth = jnp.asarray(protocol.bandwidth, x.dtype)
    if bandwidth.ndim:
        bandwidth = select_bandwidth(x, a, y, bandwidth).bandwidth
    return kernel_law(x, a, y, x_eval, bandwidth=bandwidth)


def _summary(terms, epsilons, clipped, protocol: Protocol, regime_tol):
    alpha = protocol.alpha
    return estimator.summarise(terms, epsilons, clipped, alpha, alpha, regime_tol)
