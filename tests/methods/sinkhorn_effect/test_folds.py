"""Cross-fitting: which rows each nuisance sees, how folds add up, splits that are refused."""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxicml.methods import sinkhorn_effect as ste
from jaxicml.methods.sinkhorn_effect import estimator, folds
from tests.methods.sinkhorn_effect import cheap
from tests.methods.sinkhorn_effect.cases import sample

ROWS, NUM_NULL = 26, 199
GRID = (3.0, 0.8, 1.0)
FOLDS = [*(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2)), 3]
"""Three make groups of unequal sizes."""


def trial(seed=0):
    """Covariates whose first column is the number of the row."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.arange(ROWS), rng.normal(size=ROWS)])
    a = np.arange(ROWS) % 2.0
    return x, a, np.column_stack([np.arange(ROWS) / ROWS, rng.normal(size=ROWS) + a])


def predicted(xp, a, x_eval):
    return xp.clip(a.mean() + 0.1 * xp.tanh(x_eval[:, 1]), 0.05, 0.95)


def fit_law(key, x, a, y, x_eval):
    return ste.kernel_law(x[:, 1:], a, y, x_eval[:, 1:], bandwidth=1.0)


def fit_law_by_hand(x, a, y, x_eval):
    """Mean outcome of each arm under the kernel weights of every evaluation row."""
    kernel = np.exp(-((x_eval[:, None, 1] - x[None, :, 1]) ** 2) / 2)
    arms = ((a == arm) * kernel for arm in (1, 0))
    return [weights / weights.sum(1, keepdims=True) @ y for weights in arms]


class Crossed(NamedTuple):
    """The result of one cross-fit, and the rows that its nuisances were given."""

    out: ste.AggResult
    propensities: list
    laws: list


@functools.cache
def crossed(num_folds):
    """`cross_fit` with cheap terms in float64, as one program."""
    propensities, laws = [], []

    def propensity_fn(key, x, a):
        def predict(x_eval):
            jax.debug.callback(lambda *v: propensities.append(v), x[:, 0], x_eval[:, 0])
            return predicted(jnp, a, x_eval)

        return predict

    def law_fn(key, x, a, y, x_eval):
        rows = (x[:, 0], x_eval[:, 0], a, y[:, 0] * ROWS)
        jax.debug.callback(lambda *v: laws.append(v), *rows)
        return fit_law(key, x, a, y, x_eval)

    call = functools.partial(
        ste.cross_fit,
        propensity_fn=propensity_fn,
        law_fn=law_fn,
        epsilons=jnp.array(GRID),
        num_folds=num_folds,
        num_null=NUM_NULL,
        regime_tol=None,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimator, "fold_terms", cheap.fold_terms)
        out = jax.jit(call)(jax.random.key(5), *map(jnp.asarray, trial()))
    jax.effects_barrier()
    return Crossed(jax.tree.map(np.asarray, out), propensities, laws)


def bounds(num_folds):
    """First and last row of each evaluation fold in the random order."""
    if num_folds == 1:
        return [(ROWS // 2, ROWS)]
    return itertools.pairwise(round(k * ROWS / num_folds) for k in range(num_folds + 1))


def fold_sizes(num_folds):
    """How many rows train and evaluate in each fold."""
    sizes = [high - low for low, high in bounds(num_folds)]
    return [(ROWS - size, size) for size in sizes]


@pytest.mark.parametrize("num_folds", [1, 2, 3])
def test_splits_are_pieces_of_one_random_order(num_folds):
    key = jax.random.key(0)
    order, splits = np.asarray(jax.random.permutation(key, ROWS)), bounds(num_folds)
    ours = folds.split_indices(key, ROWS, num_folds)
    for (train, evaluate), (low, high) in zip(ours, splits, strict=True):
        np.testing.assert_array_equal(evaluate, order[low:high])
        np.testing.assert_array_equal(train, np.delete(order, range(low, high)))


@pytest.mark.parametrize("num_folds", FOLDS)
def test_nuisances_never_see_what_they_are_evaluated_on(num_folds, x64):
    _, *nuisances = crossed(num_folds)
    for calls in nuisances:
        assert sorted((len(c[0]), len(c[1])) for c in calls) == sorted(fold_sizes(num_folds))
        for train, evaluate, *_ in calls:
            assert not set(np.asarray(train)) & set(np.asarray(evaluate))
        evaluated = np.concatenate([call[1] for call in calls])
        assert len(set(evaluated)) == len(evaluated)
        assert len(evaluated) == (ROWS if num_folds > 1 else ROWS // 2)
    for train, _, a, y in crossed(num_folds).laws:
        np.testing.assert_array_equal(a, np.asarray(train) % 2)
        np.testing.assert_allclose(y, train)


@pytest.mark.parametrize("num_folds", FOLDS)
def test_folds_add_up(num_folds, x64):
    """Σ_k n_k S̄_k, Σ_k W^(k) and the rest by hand, each fold from its own nuisances and draws."""
    x, a, y = trial()
    split_key, fold_key = jax.random.split(jax.random.key(5))
    order, terms = np.asarray(jax.random.permutation(split_key, ROWS)), []
    keys = jax.random.split(fold_key, num_folds)
    for own, (low, high) in zip(keys, bounds(num_folds), strict=True):
        evaluate = order[low:high]
        train = np.setdiff1d(order, evaluate)
        *_, null_key = jax.random.split(own, 3)
        e = predicted(np, a[train], x[evaluate])
        means = fit_law_by_hand(x[train], a[train], y[train], x[evaluate])
        bits = np.asarray(jax.random.key_data(null_key), float)
        null = cheap.null_draws(np, bits, GRID, NUM_NULL)
        sample = y[evaluate], a[evaluate], e, means
        terms.append(cheap.terms(np, *sample, np.array(GRID), null))

    out = crossed(num_folds).out
    sizes = np.array([fold.eif1.shape[1] for fold in terms])
    onesteps = np.array([fold.plugin + fold.eif1.mean(1) for fold in terms])
    second_orders = onesteps + np.array([fold.correction for fold in terms]) / 2
    statistic, null = sizes @ second_orders, sum(fold.null for fold in terms)
    eif1, effects = np.concatenate([fold.eif1 for fold in terms], axis=1), out.per_eps
    expected = {
        "onestep": onesteps.mean(0),
        "second_order": second_orders.mean(0),
        "statistic": statistic,
        "eif1": eif1,
        "se": eif1.std(1) / np.sqrt(sizes.sum()),
        "p_value": (1 + (null >= statistic[:, None]).sum(1)) / (NUM_NULL + 1),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(effects, name), value, atol=1e-10, err_msg=name)
    regimes = np.array([fold.regime for fold in terms])
    furthest = np.abs(regimes - 1).argmax(0)
    np.testing.assert_allclose(out.regime_ratio, regimes[furthest, range(len(GRID))])


@jax.jit
def with_bad_nuisances(x, a, propensity, factor):
    """A cross-fit whose propensity is constant and whose treated law has the mass `factor`."""

    def law_fn(key, x, a, y, x_eval):
        good = fit_law(key, x, a, y, x_eval)
        rows = factor * good.weights1
        return ste.ConditionalLaw(good.atoms1, good.atoms0, rows, good.weights0, shared=True)

    return ste.cross_fit(
        jax.random.key(0),
        x,
        a,
        x[:, :1],
        propensity_fn=lambda key, x, a: lambda x_eval: jnp.full(len(x_eval), propensity),
        law_fn=law_fn,
        epsilons=jnp.array(GRID),
        num_null=99,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("propensity", "factor"), [(2.0, 1.0), (-0.5, 1.0), (0.5, 2.0), (0.5, -1.0)]
)
def test_nuisances_that_are_no_probabilities_give_no_p_value(propensity, factor, x64, monkeypatch):
    """They come out of a trace, where no check can look at them."""
    monkeypatch.setattr(estimator, "fold_terms", cheap.fold_terms)
    sample = tuple(map(jnp.asarray, trial()[:2]))
    good = with_bad_nuisances(*sample, 0.5, 1.0)
    assert good.per_eps.converged.all()
    assert np.isfinite(good.p_value)
    out = with_bad_nuisances(*sample, propensity, factor)
    assert np.isnan(out.p_value)
    assert not np.asarray(out.per_eps.converged).any()


def cross_fit(data, **options):
    fixed = {
        "propensity_fn": lambda key, x, a: functools.partial(predicted, jnp, a),
        "law_fn": fit_law,
        "epsilons": jnp.array(GRID),
    }
    return ste.cross_fit(jax.random.key(0), *map(jnp.asarray, data), **fixed | options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_null": 98}, "num_null: expected a whole number of at least 99, got 98"),
        ({"reference": "arm0"}, "reference: expected one of .*, got 'arm0'"),
        ({"clip": 0.5}, "clip: expected a number below 0.5, got 0.5"),
        ({"max_iter": 0}, "max_iter: expected a whole number of at least 1, got 0"),
        ({"alpha": 1.0}, "alpha: expected values strictly between 0 and 1, got 1.0"),
        ({"beta": 0.0}, "beta: expected values strictly between 0 and 1, got 0.0"),
        ({"epsilons": jnp.array([1.0, 1.0])}, "epsilons: expected distinct values, got 1 twice"),
    ],
)
def test_bad_options(options, match, as_user):
    fixed = {"epsilons": jnp.array(GRID)}
    with pytest.raises(ValueError, match=match):
        ste.sinkhorn_effect_aggregated(jax.random.key(0), *sample(), **fixed | options)
    with pytest.raises(ValueError, match=match):
        cross_fit(trial(), **options)


@pytest.mark.parametrize("num_folds", [0, 7, 2.0])
def test_number_of_folds(num_folds, as_user):
    with pytest.raises(ValueError, match="num_folds: expected a whole number of at least 1 and at"):
        cross_fit(trial(), num_folds=num_folds)


@pytest.mark.parametrize("num_folds", [1, 2])
def test_empty_arm_in_a_fold(num_folds, as_user):
    x, _, y = trial()
    with pytest.raises(ValueError, match=r"treatment \(in .* fold\): expected both arms"):
        cross_fit((x, np.eye(ROWS)[4], y), num_folds=num_folds)
