"""Public influence functions against finite differences of S and against dense NumPy formulas.

Both are programs of seconds: `test_terms` compares what a fold makes of them in the default tier.
"""

import functools

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxicml.methods.sinkhorn_effect import influence as eif
from tests.methods.sinkhorn_effect import cases
from tests.methods.sinkhorn_effect import reference as ref
from tests.methods.sinkhorn_effect.cases import TOL, N, as_numpy, same_laws, sample


def joint(case):
    """Union support [y; t1; t0], both laws and the signed directions of every observation."""
    y, a, e, t1, t0, w1, w0 = as_numpy(case)
    n, m1, m0 = len(y), len(t1), len(t0)
    rows1, rows0 = ref.signed_directions(a, e, w1, w0)
    p1 = np.concatenate([np.zeros(n), w1.mean(0), np.zeros(m0)])
    p0 = np.concatenate([np.zeros(n + m1), w0.mean(0)])
    on1 = np.hstack([rows1, np.zeros((n, m0))])
    on0 = np.hstack([rows0[:, :n], np.zeros((n, m1)), rows0[:, n:]])
    return np.vstack([y, t1, t0]), p1, p0, on1, on0


def reference_law(case, reference):
    """μ over the union support, from the words of its definition."""
    _, a, e, *_ = as_numpy(case)
    _, p1, p0, _, _ = joint(case)
    if reference == "arm1":
        return p1
    if reference == "pooled":
        return (p1 + p0) / 2
    weights = a / e + (1 - a) / (1 - e)
    on_outcomes = np.concatenate([weights / weights.sum(), np.zeros(len(p1) - len(a))])
    return on_outcomes / 2 + (p1 + p0) / 4


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize("zeros", [0, 2])
def test_first_order_is_the_gateaux_derivative(epsilon, zeros, x64):
    """Along the direction of every observation, which puts mass where there was none."""
    case = sample(zeros=zeros)
    z, p1, p0, on1, on0 = joint(case)
    base = ref.divergence(z, p1, p0, epsilon)

    def slope(h, i):
        return (ref.divergence(z, p1 + h * on1[i], p0 + h * on0[i], epsilon) - base) / h

    slopes = [ref.extrapolated(functools.partial(slope, i=i), 2e-6) for i in range(N)]
    ours = eif.first_order_eif(*case, epsilon=epsilon, tol=TOL)
    np.testing.assert_allclose(ours, slopes, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_first_order_has_the_plain_formula(x64):
    y, a, e, t1, t0, w1, w0 = as_numpy(sample(3))
    expected = ref.first_order(y, a, e, {1: t1, 0: t0}, {1: w1, 0: w0}, 0.8)
    ours = eif.first_order_eif(*sample(3), epsilon=0.8, tol=TOL)
    np.testing.assert_allclose(ours, expected, atol=1e-8)


def kernel(seed, epsilon):
    """Atoms, weights, and k between three points off the atoms and then the nine atoms."""
    rng = np.random.default_rng(seed)
    t, mu, q = rng.normal(size=(9, 2)), rng.dirichlet(np.full(9, 3.0)), rng.normal(size=(3, 2)) / 2
    points = np.vstack([q, t])
    arrays = map(jnp.asarray, (t, mu, points, points))
    return points, mu, np.asarray(eif.hadamard_kernel(*arrays, epsilon=epsilon, tol=TOL))


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0, 10.0])
def test_kernel_is_the_second_derivative(epsilon, x64):
    """(d/dh)² S_ε(μ + hγ, μ) = γᵀ k γ, also with both arguments moved."""
    points, mu, k = kernel(5, epsilon)
    t, k = points[3:], k[3:, 3:]
    gamma, delta = (v - v.mean() for v in np.random.default_rng(5).normal(size=(2, 9)))
    h = 1e-4
    one = 2 * ref.divergence(t, mu + h * gamma, mu, epsilon) / h**2
    both = 2 * ref.divergence(t, mu + h * gamma, mu + h * delta, epsilon) / h**2
    # the next term of the expansion is of order h: remove it with the mirrored step
    one = (one + 2 * ref.divergence(t, mu - h * gamma, mu, epsilon) / h**2) / 2
    both = (both + 2 * ref.divergence(t, mu - h * gamma, mu - h * delta, epsilon) / h**2) / 2
    np.testing.assert_allclose(one, gamma @ k @ gamma, rtol=2e-4)
    np.testing.assert_allclose(both, (gamma - delta) @ k @ (gamma - delta), rtol=2e-4)


def test_kernel_equals_the_deflated_solve(x64):
    points, mu, k = kernel(6, 0.7)
    np.testing.assert_allclose(k[3:, 3:], ref.hadamard_kernel(points[3:], mu, 0.7), atol=1e-9)


def test_kernel_off_the_atoms_is_the_limit_of_vanishing_mass(x64):
    points, mu, k = kernel(7, 0.7)
    charged = np.concatenate([np.full(3, 1e-9), mu])
    whole = ref.hadamard_kernel(points, charged / charged.sum(), 0.7)
    np.testing.assert_allclose(k[:3], whole[:3], atol=1e-5)


def test_kernel_annihilates_the_reference_law(x64):
    _, mu, k = kernel(8, 0.5)
    k = k[3:, 3:]
    np.testing.assert_allclose(k @ mu, 0, atol=1e-9)
    np.testing.assert_allclose(k, k.T, atol=1e-9)
    assert np.linalg.eigvalsh(k).min() > -1e-9


def second_order(case, epsilon, reference):
    return np.asarray(eif.second_order_eif(*case, epsilon=epsilon, reference=reference, tol=TOL))


def dense_second_order(case, epsilon, reference):
    """I2 = L k Lᵀ over the union support, outcomes charged with 1e-9 where they have no mass."""
    z, _, _, on1, on0 = joint(case)
    mu = reference_law(case, reference)
    mu = np.where(mu > 0, mu, 1e-9)
    return (on1 - on0) @ ref.hadamard_kernel(z, mu / mu.sum(), epsilon) @ (on1 - on0).T


@pytest.mark.slow
@pytest.mark.parametrize("reference", eif.REFERENCES)
def test_second_order_equals_the_dense_formula(reference, x64):
    dense = dense_second_order(sample(2), 1.3, reference)
    ours = second_order(sample(2), 1.3, reference)
    np.testing.assert_allclose(ours, dense, atol=1e-5 * np.abs(dense).max())


@pytest.mark.slow
def test_second_order_is_the_second_derivative_at_a_null(x64):
    """2 S(P_h)/h² → I2_ii along the direction of every observation where P₁ = P₀ exactly."""
    case = same_laws()
    z, p1, p0, on1, on0 = joint(case)
    # equal laws on equal atoms: fold the second copy of the atoms into the first
    fold = lambda v: np.concatenate([v[:N], v[N : N + 8] + v[N + 9 :]])
    z, p1, p0 = z[: N + 8], fold(p1), fold(p0)
    np.testing.assert_allclose(p1, p0)

    def quotient(h, i):
        return 2 * ref.divergence(z, p1 + h * fold(on1[i]), p0 + h * fold(on0[i]), 1.0) / h**2

    values = [ref.extrapolated(functools.partial(quotient, i=i), 6e-5) for i in range(N)]
    diagonal = second_order(case, 1.0, "arm1").diagonal()
    np.testing.assert_allclose(values, diagonal, rtol=2e-4)


design = jax.jit(eif.design)


@pytest.mark.slow
def test_rows_sum_to_zero(x64):
    np.testing.assert_allclose(design(*sample(4)).rows.sum(1), 0, atol=1e-12)


@pytest.mark.slow
def test_first_order_vanishes_at_a_null(x64):
    ours = eif.first_order_eif(*same_laws(), epsilon=1.0, tol=TOL)
    np.testing.assert_allclose(ours, 0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("reference", eif.REFERENCES)
@hypothesis.given(
    seed=st.integers(0, 2**16), epsilon=st.floats(0.5, 20.0), zeros=st.sampled_from([0, 2])
)
def test_second_order_is_symmetric_and_positive(reference, seed, epsilon, zeros):
    with jax.enable_x64(True):
        eif2 = second_order(sample(seed, zeros=zeros), epsilon, reference)
        chex.assert_tree_all_finite(eif2)
        largest = np.abs(eif2).max()
        np.testing.assert_allclose(eif2, eif2.T, atol=1e-10 * largest)
        assert np.linalg.eigvalsh(eif2).min() > -1e-10 * max(1.0, largest)


@pytest.mark.slow
def test_duplicate_outcomes_are_handled(x64):
    y, a, e, law = sample(10)
    y = np.array(y)
    y[1], y[0] = y[3], law.atoms1[0]
    chex.assert_tree_all_finite(second_order((jnp.asarray(y), a, e, law), 1.0, "balanced"))


pooled = jax.jit(functools.partial(eif.influence, reference="pooled", tol=TOL, max_iter=2000))


@pytest.mark.slow
def test_regime_ratio_tends_to_one_for_close_laws(x64):
    """ρ = 2S/(Δᵀ k Δ) → 1 as P₁ → P₀, linearly; here for the pooled reference."""
    *observed, law = same_laws()
    other = np.random.default_rng(11).dirichlet(np.ones(9), N)
    distance = []
    for share in (0.2, 0.02):
        mixed = (1 - share) * np.asarray(law.weights1) + share * other
        moved = cases.law(law.atoms1, law.atoms0, mixed, law.weights0)
        distance.append(abs(float(pooled(design(*observed, moved), 1.0).regime) - 1))
    assert distance[1] < 0.01
    assert distance[1] < distance[0] / 2


@pytest.mark.slow
def test_shared_atoms_equal_separate_ones(x64):
    """One list of atoms with empty weights says the same as two lists."""
    *observed, law = sample(9)
    atoms = np.vstack([law.atoms1, law.atoms0])
    w1, w0 = np.pad(law.weights1, ((0, 0), (0, 8))), np.pad(law.weights0, ((0, 0), (9, 0)))
    shared = cases.law(atoms, atoms, w1, w0, shared=True)
    # nothing else of a law enters an influence function
    one, other = design(*observed, law), design(*observed, shared)
    chex.assert_trees_all_close(one, other, atol=1e-12)
