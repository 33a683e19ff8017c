"""The Monte-Carlo studies say what the public functions say on the same data."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxicml.methods import sinkhorn_effect as ste
from jaxicml.methods.sinkhorn_effect import data, estimator, study
from tests.methods.sinkhorn_effect import cheap

N = 24
PROTOCOL = study.Protocol(n=N, num_null=99, multiples=(0.5, 1.0, 4.0))


@pytest.fixture
def cheap_terms(monkeypatch):
    """What is done with data, keys and nuisances does not depend on the terms of a fold."""
    monkeypatch.setattr(estimator, "fold_terms", cheap.fold_terms)


def by_hand(key):
    """The sample of the trial, split in halves, nuisances on the first, every public test."""
    draw_key, test_key = jax.random.split(key)
    x, a, y = ste.simulate_gaussian(draw_key, 2 * N, 1.2, "mean")
    propensity = ste.logistic_propensity(x[:N], a[:N])(x[N:])
    law = ste.kernel_law(x[:N], a[:N], y[:N], x[N:], bandwidth=1.0)
    null_key, _ = jax.random.split(test_key)
    sample, grid = (y[N:], a[N:], propensity, law), ste.epsilon_grid(y[:N], PROTOCOL.multiples)
    options = {"epsilons": grid, "num_null": 99}
    test = lambda guard: ste.sinkhorn_effect_aggregated(
        null_key, *sample, **options, regime_tol=guard
    )
    guarded, plain = test(0.1), test(None)
    return {
        "guarded": guarded.p_value,
        "plain": plain.p_value,
        "ste": plain.per_eps.p_value,
        "regime": plain.regime_ratio,
        "ste_estimate": plain.per_eps.onestep,
        "mte_agg": ste.mmd_effect_aggregated(null_key, *sample, **options).p_value,
        "ate": ste.ate_aipw(*sample).p_value,
    }


@pytest.mark.slow
def test_comparison_equals_the_public_functions(cheap_terms, x64):
    law = data.gaussian_law(1.2, "mean")
    compared = jax.jit(study.gaussian_comparison(PROTOCOL))(jax.random.key(5), law, 0.0, 1.0)
    for name, value in jax.jit(by_hand)(jax.random.key(5)).items():
        np.testing.assert_allclose(getattr(compared, name), value, rtol=1e-6, err_msg=name)


def test_equal_settings_are_one_function():
    assert study.gaussian_comparison(PROTOCOL) is study.gaussian_comparison(
        study.Protocol(n=N, num_null=99, multiples=(0.5, 1.0, 4.0))
    )


@pytest.mark.slow
def test_permuting_the_treatment_removes_the_effect(x64):
    """Estimates of a huge shift, with and without permutation, on the same data."""
    x, a, y = ste.simulate_gaussian(jax.random.key(0), 80, 4.0, "mean")
    trial = jax.jit(study.subsample_test(study.Protocol(num_null=99), 60))
    kept, permuted = (trial(jax.random.key(1), x, a, y, flag) for flag in (False, True))
    assert kept.p_value <= 0.02
    assert kept.onestep > 10
    assert abs(permuted.onestep) < kept.onestep / 2


@pytest.mark.slow
def test_flow_laws_serve_the_study(cheap_terms, x64):
    protocol = study.Protocol(n=N, num_null=99, law="flow")
    law = data.gaussian_law(1.2, "mean")
    out = jax.jit(study.gaussian_comparison(protocol))(jax.random.key(5), law, 0.0, 1.0)
    chex.assert_tree_all_finite(out)
    assert jnp.all((out.ste > 0) & (out.ste <= 1))


@pytest.mark.slow
def test_image_trial_runs_every_test_on_the_pools(x64):
    """Same key, other odds of healing: other images, valid p-values, the features' dimension."""
    trial = jax.jit(study.image_comparison(PROTOCOL))
    pools = ste.digits_pools()
    nothing, healed = (trial(jax.random.key(0), theta, *pools) for theta in (-20.0, 20.0))
    chex.assert_tree_all_finite((nothing, healed))
    for field in ("ste", "guarded", "plain", "mte", "mte_agg", "dr_xkte", "ate"):
        p_value = getattr(healed, field)
        assert jnp.all((p_value >= 0) & (p_value <= 1))
    assert not np.allclose(nothing.ste_estimate, healed.ste_estimate)
