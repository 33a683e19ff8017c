"""Influence functions against finite differences of S and against dense NumPy formulas."""

import functools

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxicml.methods.sinkhorn_effect import influence as eif
from tests.methods.sinkhorn_effect import reference as ref
from tests.methods.sinkhorn_effect.cases import same_laws, sample

TOL = 1e-12


def joint(outcome, treatment, propensity, law):
    """Union support, both laws and the signed directions of every observation, in NumPy."""
    y, t1, t0 = (np.asarray(v) for v in (outcome, law.atoms1, law.atoms0))
    w1, w0 = np.asarray(law.weights1), np.asarray(law.weights0)
    n, m1, m0 = len(y), len(t1), len(t0)
    rows1, rows0 = ref.signed_directions(np.asarray(treatment), np.asarray(propensity), w1, w0)
    z = np.vstack([y, t1, t0])
    p1 = np.concatenate([np.zeros(n), w1.mean(0), np.zeros(m0)])
    p0 = np.concatenate([np.zeros(n + m1), w0.mean(0)])
    on1 = np.hstack([rows1[:, :n], rows1[:, n:], np.zeros((n, m0))])
    on0 = np.hstack([rows0[:, :n], np.zeros((n, m1)), rows0[:, n:]])
    return z, p1, p0, on1, on0


def balanced(z, p1, p0, treatment, propensity):
    a, e = np.asarray(treatment), np.asarray(propensity)
    weights = a / e + (1 - a) / (1 - e)
    on_outcomes = np.zeros(len(z))
    on_outcomes[: len(a)] = weights / weights.sum()
    return on_outcomes / 2 + (p1 + p0) / 4


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize("zeros", [0, 2])
def test_first_order_is_the_gateaux_derivative(epsilon, zeros, x64):
    case = sample(zeros=zeros)
    z, p1, p0, on1, on0 = joint(*case)
    eif1 = eif.first_order_eif(*case, epsilon=epsilon, tol=TOL)
    base, h = ref.divergence(z, p1, p0, epsilon), 1e-5
    for i in range(0, 12, 3):
        moved = ref.divergence(z, p1 + h * on1[i], p0 + h * on0[i], epsilon)
        np.testing.assert_allclose((moved - base) / h, eif1[i], rtol=2e-3, atol=2e-4)


def test_first_order_has_the_plain_formula(x64):
    """Algorithm 1 written with loops over arms, from potentials of the NumPy reference."""
    y, a, e, law = sample(3)
    epsilon = 0.8
    t = {1: np.asarray(law.atoms1), 0: np.asarray(law.atoms0)}
    w = {1: np.asarray(law.weights1), 0: np.asarray(law.weights0)}
    p = {arm: w[arm].mean(0) for arm in (0, 1)}
    f, g = ref.cross(ref.cost(t[1], t[0]), p[1], p[0], epsilon)
    dual = {1: g, 0: f}

    def centred(arm, points):
        own = ref.symmetric(ref.cost(t[arm], t[arm]), p[arm], epsilon)
        other = ref.softmin(
            np.log(p[1 - arm]) + dual[arm] / epsilon, ref.cost(points, t[1 - arm]), epsilon
        )
        return other - ref.softmin(
            np.log(p[arm]) + own / epsilon, ref.cost(points, t[arm]), epsilon
        )

    y, a, e = np.asarray(y), np.asarray(a), np.asarray(e)
    m = {arm: w[arm] @ centred(arm, t[arm]) for arm in (0, 1)}
    expected = a / e * (centred(1, y) - m[1]) + (1 - a) / (1 - e) * (centred(0, y) - m[0])
    expected += m[1] + m[0] - (m[1] + m[0]).mean()
    ours = eif.first_order_eif(*sample(3), epsilon=epsilon, tol=TOL)
    np.testing.assert_allclose(ours, expected, atol=1e-8)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0, 10.0])
def test_kernel_is_the_second_derivative(epsilon, x64):
    """(d/dh)² S_ε(μ + hγ, μ) = γᵀ k γ, also with both arguments moved."""
    rng = np.random.default_rng(5)
    t, mu = rng.normal(size=(7, 2)), rng.dirichlet(np.full(7, 3.0))
    k = eif.hadamard_kernel(*map(jnp.array, (t, mu, t, t)), epsilon=epsilon, tol=TOL)
    gamma, delta = (v - v.mean() for v in rng.normal(size=(2, 7)))
    h = 3e-4
    one = 2 * ref.divergence(t, mu + h * gamma, mu, epsilon) / h**2
    both = 2 * ref.divergence(t, mu + h * gamma, mu + h * delta, epsilon) / h**2
    # the next term of the expansion is of order h: remove it with the mirrored step
    one = (one + 2 * ref.divergence(t, mu - h * gamma, mu, epsilon) / h**2) / 2
    both = (both + 2 * ref.divergence(t, mu - h * gamma, mu - h * delta, epsilon) / h**2) / 2
    np.testing.assert_allclose(one, gamma @ k @ gamma, rtol=2e-4)
    np.testing.assert_allclose(both, (gamma - delta) @ k @ (gamma - delta), rtol=2e-4)


def test_kernel_equals_the_deflated_solve(x64):
    rng = np.random.default_rng(6)
    t, mu = rng.normal(size=(9, 2)), rng.dirichlet(np.full(9, 2.0))
    ours = eif.hadamard_kernel(*map(jnp.array, (t, mu, t, t)), epsilon=0.7, tol=TOL)
    np.testing.assert_allclose(ours, ref.hadamard_kernel(t, mu, 0.7), atol=1e-9)


def test_kernel_off_the_atoms_is_the_limit_of_vanishing_mass(x64):
    rng = np.random.default_rng(7)
    t, q, mu = rng.normal(size=(8, 2)), rng.normal(size=(3, 2)) / 2, rng.dirichlet(np.full(8, 3.0))
    args = map(jnp.array, (t, mu, q, np.vstack([q, t])))
    ours = eif.hadamard_kernel(*args, epsilon=0.7, tol=TOL)
    charged = np.concatenate([np.full(3, 1e-9), mu])
    whole = ref.hadamard_kernel(np.vstack([q, t]), charged / charged.sum(), 0.7)
    np.testing.assert_allclose(ours, whole[:3], atol=1e-5)


def test_kernel_annihilates_the_reference_law(x64):
    rng = np.random.default_rng(8)
    t, mu = jnp.array(rng.normal(size=(9, 2))), jnp.array(rng.dirichlet(np.full(9, 2.0)))
    k = eif.hadamard_kernel(t, mu, t, t, epsilon=0.5, tol=TOL)
    np.testing.assert_allclose(k @ mu, 0, atol=1e-9)
    np.testing.assert_allclose(k, k.T, atol=1e-9)
    assert jnp.linalg.eigvalsh(k).min() > -1e-9


@pytest.mark.parametrize("reference", eif.REFERENCES)
def test_second_order_equals_the_dense_formula(reference, x64):
    """I2 = L k Lᵀ over the union support, outcomes charged with 1e-9 where they have no mass."""
    case = sample(2)
    z, p1, p0, on1, on0 = joint(*case)
    rows = on1 - on0
    mu = {
        "balanced": balanced(z, p1, p0, case[1], case[2]),
        "pooled": (p1 + p0) / 2,
        "arm1": p1,
    }[reference]
    mu = np.where(mu > 0, mu, 1e-9)
    dense = rows @ ref.hadamard_kernel(z, mu / mu.sum(), 1.3) @ rows.T
    ours = eif.second_order_eif(*case, epsilon=1.3, reference=reference, tol=TOL)
    np.testing.assert_allclose(ours, dense, atol=1e-5 * np.abs(dense).max())


def test_second_order_is_the_second_derivative_at_a_null(x64):
    """2 S(P_h)/h² → I2_ii along the direction of observation i where P₁ = P₀ exactly."""
    case = same_laws()
    z, p1, p0, on1, on0 = joint(*case)
    half = len(case[3].atoms1)
    # equal laws on equal atoms: fold the second copy of the atoms into the first
    n = len(z) - 2 * half
    fold = lambda v: (
        np.concatenate([v[..., : n + half]], axis=-1)
        + np.pad(v[..., n + half :], [(0, 0)] * (v.ndim - 1) + [(n, 0)])
    )
    z, p1, p0, on1, on0 = z[: n + half], fold(p1), fold(p0), fold(on1), fold(on0)
    eif2 = eif.second_order_eif(*case, epsilon=1.0, reference="arm1", tol=TOL)
    h = 2e-4
    for i in (0, 1, 5):
        value = 2 * ref.divergence(z, p1 + h * on1[i], p0 + h * on0[i], 1.0) / h**2
        np.testing.assert_allclose(value, eif2[i, i], rtol=1e-2)


def test_rows_sum_to_zero(x64):
    y, a, e, law = sample(4)
    np.testing.assert_allclose(eif.design(y, a, e, law).rows.sum(1), 0, atol=1e-12)


def test_first_order_vanishes_at_a_null(x64):
    np.testing.assert_allclose(
        eif.first_order_eif(*same_laws(), epsilon=1.0, tol=TOL), 0, atol=1e-9
    )


def test_regime_ratio_tends_to_one_for_close_laws(x64):
    """ρ = 2S/(Δᵀ k Δ) → 1 as P₁ → P₀, linearly."""
    y, a, e, law = same_laws()
    other = sample(11, m1=9, m0=9)[3].weights0
    pooled = jax.jit(functools.partial(eif.influence, reference="pooled", tol=TOL, max_iter=2000))
    distance = []
    for share in (0.2, 0.02):
        mixed = (1 - share) * law.weights1 + share * other
        shifted = eif.ConditionalLaw(law.atoms1, law.atoms0, mixed, law.weights0)
        fixed = eif.design(y, a, e, shifted)
        out = pooled(fixed, 1.0)
        distance.append(abs(float(out.regime) - 1))
    assert distance[1] < 0.01
    assert distance[1] < distance[0] / 2


@hypothesis.given(
    seed=st.integers(0, 2**16),
    epsilon=st.floats(0.5, 20.0),
    reference=st.sampled_from(eif.REFERENCES),
    zeros=st.sampled_from([0, 2]),
)
def test_second_order_is_symmetric_and_positive(seed, epsilon, reference, zeros):
    with jax.enable_x64(True):
        eif2 = eif.second_order_eif(
            *sample(seed, zeros=zeros), epsilon=epsilon, reference=reference
        )
        chex.assert_tree_all_finite(eif2)
        chex.assert_trees_all_close(eif2, eif2.T, atol=1e-10 * float(jnp.abs(eif2).max()))
        assert jnp.linalg.eigvalsh(eif2).min() > -1e-10 * max(1.0, float(jnp.abs(eif2).max()))


def test_shared_atoms_equal_separate_ones(x64):
    """One list of atoms with empty weights says the same as two lists."""
    y, a, e, law = sample(9)
    atoms = jnp.concatenate([law.atoms1, law.atoms0])
    w1 = jnp.pad(law.weights1, ((0, 0), (0, law.atoms0.shape[0])))
    w0 = jnp.pad(law.weights0, ((0, 0), (law.atoms1.shape[0], 0)))
    shared = eif.ConditionalLaw(atoms, atoms, w1, w0, shared=True)
    for function in (eif.first_order_eif, eif.second_order_eif):
        chex.assert_trees_all_close(
            function(y, a, e, law, epsilon=0.9), function(y, a, e, shared, epsilon=0.9), atol=1e-9
        )


def test_duplicate_outcomes_are_handled(x64):
    y, a, e, law = sample(10)
    y = y.at[1].set(y[3]).at[0].set(law.atoms1[0])
    eif2 = eif.second_order_eif(y, a, e, law, epsilon=1.0)
    chex.assert_tree_all_finite(eif2)


def test_one_dimension(x64):
    case = sample(12, d=1)
    z, p1, p0, on1, on0 = joint(*case)
    mu = balanced(z, p1, p0, case[1], case[2])
    rows = on1 - on0
    dense = rows @ ref.hadamard_kernel(z, mu, 0.8) @ rows.T
    np.testing.assert_allclose(eif.second_order_eif(*case, epsilon=0.8, tol=TOL), dense, atol=1e-7)
