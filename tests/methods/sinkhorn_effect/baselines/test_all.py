"""What every comparison method promises: invariances, size, power, refusals."""

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxicml.methods.sinkhorn_effect import baselines
from jaxicml.methods.sinkhorn_effect.laws import kernel_law
from tests.methods.sinkhorn_effect import cases
from tests.methods.sinkhorn_effect.cases import N, as_numpy, sample

KEY = jax.random.key(0)


@pytest.mark.slow
def test_constant_outcomes_are_no_evidence():
    """In float32, where rounding could pass for an effect."""
    y, a, e, t1, t0, w1, w0 = (np.asarray(v, "float32") for v in as_numpy(sample(13)))
    same = lambda v: np.full_like(v, 3.7)
    law = cases.law(same(t1), same(t0), w1, w0)
    y, a, e = map(jnp.asarray, (same(y), a, e))
    assert np.isnan(baselines.dr_xkte(y, a, e, law, bandwidth=1.0).p_value)
    assert baselines.mmd_treatment_effect(KEY, y, a, e, law, epsilon=1.0).p_value == 1
    assert baselines.ipw_kte_permutation(KEY, y, a, e, bandwidth=1.0).p_value == 1


@jax.jit
def invariants(outcome, treatment, propensity, law):
    """What must not depend on the frame of the outcomes or on the order of the rows."""
    mmd = baselines.mmd_treatment_effect(
        KEY, outcome, treatment, propensity, law, epsilon=1.3, num_null=99
    )
    kte = baselines.ipw_kte_permutation(
        KEY, outcome, treatment, propensity, bandwidth=1.3, num_permutations=99
    )
    return {
        "ate": baselines.ate_aipw(outcome, treatment, propensity, law).statistic,
        "mmd": mmd[:4],
        "dr_xkte": baselines.dr_xkte(outcome, treatment, propensity, law, bandwidth=1.3),
        "kte": kte.statistic,
    }


@pytest.mark.slow
@hypothesis.given(
    seed=st.integers(0, 2**16),
    angle=st.floats(0.0, 6.0),
    shift=st.tuples(st.floats(-20, 20), st.floats(-20, 20)),
    order=st.permutations(range(N // 2)),
)
def test_frame_and_order_do_not_matter(seed, angle, shift, order):
    """Rows move within their half, which is all that the cross statistic looks at."""
    with jax.enable_x64(True):
        y, a, e, t1, t0, w1, w0 = as_numpy(sample(seed))
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        move = lambda v: v @ turn + np.array(shift)
        rows = np.concatenate([order, N // 2 + np.array(order)])
        observed = map(jnp.asarray, (move(y)[rows], a[rows], e[rows]))
        moved = cases.law(move(t1), move(t0), w1[rows], w0[rows])
        chex.assert_trees_all_close(
            invariants(*observed, moved), invariants(*sample(seed)), rtol=1e-7, atol=1e-9
        )


def draw_sample(key, effect, confounding, n=80):
    """(x, a, y, e): treatment depends on x, the outcome on x where confounded."""
    x_key, a_key, y_key = jax.random.split(key, 3)
    x = jax.random.normal(x_key, (n, 1))
    e = jax.nn.sigmoid(x[:, 0])
    a = jax.random.bernoulli(a_key, e).astype(x.dtype)
    y = jax.random.normal(y_key, (n, 2)) + effect * a[:, None] + confounding * x
    return x, a, y, e


@jax.jit
def p_values(keys, effect, confounding):
    """p-values of every test, and whether the first interval of the ATE covers."""

    def one(key):
        train_key, evaluate_key, test_key = jax.random.split(key, 3)
        x_train, a_train, y_train, _ = draw_sample(train_key, effect, confounding)
        x, a, y, e = draw_sample(evaluate_key, effect, confounding)
        law = kernel_law(x_train, a_train, y_train, x, bandwidth=0.4)
        ate = baselines.ate_aipw(y, a, e, law)
        mmd = baselines.mmd_effect_aggregated(
            test_key, y, a, e, law, epsilons=jnp.array([0.5, 2.0, 8.0]), num_null=299
        )
        return {
            "ate": ate.p_value,
            "mmd": mmd.per_eps.p_value[1],
            "mmd_aggregated": mmd.p_value,
            "dr_xkte": baselines.dr_xkte(y, a, e, law, bandwidth=2.0).p_value,
            "kte": baselines.ipw_kte_permutation(
                test_key, y, a, e, bandwidth=2.0, num_permutations=99
            ).p_value,
        }, (ate.ci_low[0] <= effect) & (effect <= ate.ci_high[0])

    return jax.lax.map(one, keys, batch_size=25)


REPLICATIONS = 200
AT_MOST = scipy.stats.binom.ppf(0.9995, REPLICATIONS, 0.05)
"""More rejections than this at a true null have probability below 1 in 2000."""


@pytest.mark.slow
@pytest.mark.parametrize("confounding", [0.0, 1.0])
def test_size_at_a_true_null(confounding):
    p, covered = p_values(jax.random.split(KEY, REPLICATIONS), 0.0, confounding)
    rejections = {name: int((value <= 0.05).sum()) for name, value in p.items()}
    assert max(rejections.values()) <= AT_MOST, rejections
    assert (~covered).sum() <= AT_MOST


@pytest.mark.slow
def test_power_and_coverage_at_a_large_effect():
    p, covered = p_values(jax.random.split(KEY, REPLICATIONS), 1.5, 0.0)
    power = {name: float((value <= 0.05).mean()) for name, value in p.items()}
    assert min(power.values()) >= 0.8, power
    assert (~covered).sum() <= AT_MOST


def naive_p_value(seed, confounding):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, 1))
    a = (rng.random(40) < 1 / (1 + np.exp(-x[:, 0]))).astype("float32")
    y = jnp.asarray(rng.normal(size=(40, 2)) + confounding * x, "float32")
    return baselines.naive_two_sample(
        jax.random.key(seed), y, jnp.asarray(a), epsilon=8.0, num_permutations=99
    ).p_value


@pytest.mark.slow
def test_naive_test_rejects_where_there_is_only_confounding():
    rejections = [
        sum(naive_p_value(seed, confounding) <= 0.05 for seed in range(60))
        for confounding in (0.0, 2.0)
    ]
    assert rejections[0] <= scipy.stats.binom.ppf(0.9995, 60, 0.05)
    assert rejections[1] >= 30


CALLS = {
    "ate": lambda y, a, e, law, **options: baselines.ate_aipw(y, a, e, law, **options),
    "mmd": lambda y, a, e, law, epsilon=1.0, **options: baselines.mmd_treatment_effect(
        KEY, y, a, e, law, epsilon=epsilon, **options
    ),
    "aggregated": lambda y, a, e, law, epsilons=(1.0,), **options: baselines.mmd_effect_aggregated(
        KEY, y, a, e, law, epsilons=jnp.array(epsilons), **options
    ),
    "dr_xkte": lambda y, a, e, law, bandwidth=1.0, **options: baselines.dr_xkte(
        y, a, e, law, bandwidth=bandwidth, **options
    ),
    "kte": lambda y, a, e, law, bandwidth=1.0, **options: baselines.ipw_kte_permutation(
        KEY, y, a, e, bandwidth=bandwidth, **options
    ),
    "plugin": lambda y, a, e, law, epsilon=1.0, **options: baselines.ipw_sinkhorn_plugin(
        y, a, e, epsilon=epsilon, **options
    ),
    "naive": lambda y, a, e, law, epsilon=1.0, **options: baselines.naive_two_sample(
        KEY, y, a, epsilon=epsilon, **options
    ),
}


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("ate", {"alpha": 1.0}, "alpha: expected values strictly between 0 and 1, got 1.0"),
        ("ate", {"clip": 0.5}, "clip: expected a number below 0.5, got 0.5"),
        ("mmd", {"epsilon": 0.0}, "epsilon: expected a finite number above 0, got 0.0"),
        ("mmd", {"num_null": 98}, "num_null: expected a whole number of at least 99, got 98"),
        ("aggregated", {"epsilons": ()}, "epsilons: expected at least one value"),
        ("aggregated", {"epsilons": (1.0, 1.0)}, "epsilons: expected distinct values, got 1"),
        ("aggregated", {"epsilons": (1.0, -1.0)}, "epsilons: expected a finite number above 0"),
        ("aggregated", {"beta": 0.0}, "beta: expected values strictly between 0 and 1"),
        ("dr_xkte", {"bandwidth": -1.0}, "bandwidth: expected a finite number above 0, got -1.0"),
        ("kte", {"bandwidth": np.nan}, "bandwidth: expected a finite number above 0, got nan"),
        ("kte", {"num_permutations": 20}, "num_permutations: expected a whole number of at least"),
        ("plugin", {"epsilon": 0.0}, "epsilon: expected a finite number above 0"),
        ("plugin", {"max_iter": 0}, "max_iter: expected a whole number of at least 1, got 0"),
        ("naive", {"num_permutations": 98}, "num_permutations: expected a whole number of at"),
        ("naive", {"tol": 0.0}, "tol: expected"),
    ],
)
def test_bad_options_are_refused(name, options, match, as_user):
    with pytest.raises(ValueError, match=match):
        CALLS[name](*sample(), **options)


@pytest.mark.parametrize("name", CALLS)
def test_bad_samples_are_refused(name, as_user):
    y, a, e, law = sample()
    hole, one = np.array(y), np.array(e)
    hole[3, 0], one[0] = np.nan, 1.0
    half, shorter, longer = np.asarray(a) / 2, np.asarray(a)[:5], np.append(e, 0.5)

    def refused(match, *, y=y, a=a, e=e):
        with pytest.raises(ValueError, match=match):
            CALLS[name](*map(jnp.asarray, (y, a, e)), law)

    refused("outcome: expected finite values, got 1 NaN", y=hole)
    refused("treatment: expected both arms, got only 0", a=np.zeros(N))
    refused("treatment: expected only 0 and 1, got 0.5", a=half)
    refused(r"treatment: expected shape \(24\), got \(5,\)", a=shorter)
    if name != "naive":
        refused("propensity: expected values strictly between 0 and 1", e=one)
        refused(r"propensity: expected shape \(24\), got \(25,\)", e=longer)


def test_cross_statistic_needs_two_rows_a_half(as_user):
    with pytest.raises(ValueError, match="outcome: expected at least 4 rows, got 3"):
        baselines.dr_xkte(*sample(n=3), bandwidth=1.0)
