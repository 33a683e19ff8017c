import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxicml.diffusion import schedules

MADE = {
    "linear": lambda T: schedules.linear(T),
    "scaled_linear": lambda T: schedules.scaled_linear(T, final_abar="first"),
    "cosine": lambda T: schedules.cosine(T),
    "theory": lambda T: schedules.theory(T),
}
BETAS = {
    "linear": lambda T: np.linspace(1e-4, 0.02, T),
    "scaled_linear": lambda T: np.linspace(8.5e-4**0.5, 0.012**0.5, T) ** 2,
    "cosine": lambda T: cosine_betas(T),
    "theory": lambda T: theory_betas(T),
}


def cosine_betas(T, s=0.008):
    # Nichol & Dhariwal 2021, eq. 17, in long double
    t = np.arange(T + 1, dtype=np.longdouble) / T
    f = np.cos((t + np.longdouble(s)) / (1 + np.longdouble(s)) * (np.pi / np.longdouble(2))) ** 2
    return np.minimum(1 - f[1:] / f[:-1], 0.999)


def theory_betas(T, c0=2, c1=4):
    # Li & Yan 2024: one step after the other
    rate = c1 * np.log(T) / T
    betas = [T**-c0]
    for t in range(1, T):
        betas.append(rate * min(T**-c0 * (1 + rate) ** t, 1))
    return np.array(betas)


@pytest.mark.parametrize("T", [10, 1000])
@pytest.mark.parametrize("name", MADE)
def test_tables_against_long_double_products(name, T, x64):
    made = MADE[name](T)
    betas = BETAS[name](T).astype(np.longdouble)
    abar = np.cumprod(1 - betas)
    np.testing.assert_allclose(made.betas, betas.astype(float), rtol=1e-11)
    np.testing.assert_allclose(made.abar, abar.astype(float), rtol=1e-11)
    np.testing.assert_allclose(made.log_abar, np.log(abar).astype(float), rtol=1e-11)
    np.testing.assert_allclose(made.signal, np.sqrt(abar).astype(float), rtol=1e-11)
    np.testing.assert_allclose(made.noise, np.sqrt(1 - abar).astype(float), rtol=1e-11)


@pytest.mark.parametrize("T", [10, 1000])
@pytest.mark.parametrize("name", MADE)
def test_float32_tables_keep_their_digits(name, T):
    with jax.enable_x64(True):
        exact = jax.tree.map(np.asarray, MADE[name](T))
    chex.assert_trees_all_close(jax.tree.map(np.asarray, MADE[name](T)), exact, rtol=1.2e-7)


def test_theory_check_values(x64):
    made = schedules.theory(50, c0=2.0, c1=4.0)
    expected = [4e-4, 1.6436e-4, 1.90578e-3, 0.312962]
    np.testing.assert_allclose(made.betas[jnp.array([0, 1, 10, 49])], expected, rtol=2e-5)
    np.testing.assert_allclose(made.abar[-1], 1.17665e-4, rtol=1e-5)


def test_theory_limits(as_user):
    schedules.theory(9)
    with pytest.raises(ValueError, match=r"c1 · log\(T\) / T: expected a number below 1, got 1.0"):
        schedules.theory(8)
    with pytest.raises(ValueError, match="T: expected a whole number of at least 2, got 1"):
        schedules.theory(1)
    long = schedules.theory(100_000)
    assert np.isfinite(long.log_abar).all()
    assert (np.diff(long.log_abar) < 0).all()
    # the plateau β = c1 log T / T
    np.testing.assert_allclose(long.betas[-1], 4 * np.log(1e5) / 1e5, rtol=1e-6)
    clipped = schedules.theory(2, c0=1e-9, c1=2.8)
    assert clipped.betas[0] == np.float32(1 - 1e-4)


def test_final_level():
    assert schedules.linear(10).final_abar == 1
    stable = schedules.scaled_linear(final_abar="first")
    assert stable.final_log_abar == stable.log_abar[0]
    half_way = schedules.linear(10, final_abar=0.99995)
    np.testing.assert_allclose(half_way.final_abar, 0.99995, rtol=1e-7)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        # T // num = 25 and 4 steps; T = 10 and 4 steps: stride 2 leaves the top out
        ((100, 4, "leading", 0), [75, 50, 25, 0]),
        ((100, 4, "leading", 1), [76, 51, 26, 1]),
        ((10, 4, "leading", 0), [6, 4, 2, 0]),
        ((100, 4, "trailing", 0), [99, 74, 49, 24]),
        # 10, 7.5, 5, 2.5, rounded to even, minus one
        ((10, 4, "trailing", 0), [9, 7, 4, 1]),
        ((100, 4, "linspace", 0), [99, 66, 33, 0]),
        # 9, 6.75, 4.5, 2.25, 0, rounded to even
        ((10, 5, "linspace", 0), [9, 7, 4, 2, 0]),
        ((10, 10, "trailing", 0), list(range(9, -1, -1))),
        ((10, 1, "linspace", 0), [0]),
    ],
)
def test_timesteps_by_hand(arguments, expected):
    T, num, spacing, offset = arguments
    assert schedules.linear(T).timesteps(num, spacing, offset).tolist() == expected


def test_stable_diffusion_grid():
    steps = schedules.scaled_linear().timesteps(50, "leading", steps_offset=1)
    assert steps[0] == 981
    assert steps[jnp.array([-6, -11, -21, -31])].tolist() == [101, 201, 401, 601]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((11,), "num: expected a whole number of at least 1 and at most 10, got 11"),
        ((5, "middle"), "spacing: expected one of .*'leading'.*, got 'middle'"),
        ((5, "leading", 2), r"steps_offset \(leading\): .* at most 1, got 2"),
        ((5, "trailing", 1), r"steps_offset \(trailing\): .* at most 0, got 1"),
    ],
)
def test_bad_timesteps(arguments, match, as_user):
    with pytest.raises(ValueError, match=match):
        schedules.linear(10).timesteps(*arguments)


@hypothesis.given(
    st.sampled_from(["linear", "cosine", "theory"]),
    st.sampled_from(["leading", "trailing", "linspace"]),
    st.integers(2, 30),
)
def test_any_grid_is_descending_and_inside(name, spacing, num):
    made = MADE[name](30)
    steps = np.asarray(made.timesteps(num, spacing))
    assert steps.shape == (num,)
    assert (np.diff(steps) < 0).all()
    assert 0 <= steps[-1] < steps[0] <= 29


def test_grid_betas_multiply_to_the_whole(x64):
    made = schedules.cosine(40, final_abar="first")
    for steps in (None, jnp.array([37, 20, 3])):
        out = schedules.grid(made, steps)
        product = np.prod(1 - np.asarray(out.betas)) * made.final_abar
        np.testing.assert_allclose(product, made.abar[39 if steps is None else 37], rtol=1e-11)
    np.testing.assert_allclose(out.signal**2 + out.noise**2, 1, rtol=1e-14)
    np.testing.assert_allclose(out.log_abar[:-1], made.log_abar[jnp.array([37, 20, 3])])


@pytest.mark.parametrize("name", ["linear", "scaled_linear"])
def test_zero_snr_against_lin(name, x64):
    made = MADE[name](1000)
    ours = schedules.zero_snr(made)
    # Lin et al. 2023, algorithm 1
    root = np.sqrt(np.cumprod(1 - BETAS[name](1000)))
    first, last = root[0], root[-1]
    root = (root - last) * first / (first - last)
    alphas = np.append(root[0] ** 2, root[1:] ** 2 / root[:-1] ** 2)
    np.testing.assert_allclose(ours.betas, 1 - alphas, rtol=1e-9)
    np.testing.assert_allclose(ours.signal, root, rtol=1e-10)
    assert ours.abar[-1] == 0
    assert ours.noise[-1] == 1
    assert ours.log_abar[-1] == -np.inf
    np.testing.assert_allclose(ours.final_abar, made.final_abar, rtol=1e-15)


def test_zero_snr_has_no_nan_and_needs_known_tables(as_user):
    ours = schedules.zero_snr(schedules.linear(20))
    for kind in ("beta", "posterior", "component"):
        chex.assert_tree_all_finite(schedules.reverse_variance(ours, kind, 0.3))
    assert not np.isnan(schedules.reverse_variance(ours, "upper")).any()
    assert not any(np.isnan(leaf).any() for leaf in schedules.grid(ours))
    inside = jax.jit(lambda: schedules.zero_snr(schedules.linear(20)))()
    chex.assert_trees_all_equal(inside, ours)
    with pytest.raises(ValueError, match="schedule: expected known values, got a tracer"):
        jax.jit(schedules.zero_snr)(schedules.linear(20))


def test_karras_against_the_formula(x64):
    ours = schedules.karras(18)
    i = np.arange(18)
    # Karras et al. 2022, eq. 5
    formula = (80 ** (1 / 7) + i / 17 * (0.002 ** (1 / 7) - 80 ** (1 / 7))) ** 7
    np.testing.assert_allclose(ours, np.append(formula, 0), rtol=1e-12)
    assert schedules.karras(1).tolist() == pytest.approx([80, 0])


def variance_by_hand(betas, kind, sigma2):
    alphas = 1 - betas
    abar = np.cumprod(alphas)
    before = np.append(1.0, abar[:-1])
    v, v_before = abar * sigma2 + 1 - abar, before * sigma2 + 1 - before
    return {
        "beta": 1 - alphas,
        "upper": (1 - alphas) / alphas,
        "posterior": (1 - alphas) * (1 - before) / (1 - abar),
        "component": (1 - alphas) * v_before / v,
    }[kind]


@pytest.mark.parametrize("kind", ["beta", "upper", "posterior", "component"])
def test_reverse_variance_against_products(kind, x64):
    betas = BETAS["theory"](60)
    expected = variance_by_hand(betas.astype(np.longdouble), kind, np.longdouble(0.25))
    made = schedules.theory(60)
    np.testing.assert_allclose(
        schedules.reverse_variance(made, kind, 0.25), expected.astype(float), rtol=1e-11
    )
    with jax.enable_x64(False):
        single = schedules.reverse_variance(schedules.theory(60), kind, 0.25)
    np.testing.assert_allclose(single, expected.astype(float), rtol=1e-6)


def test_component_variance_joins_posterior_and_beta():
    made = schedules.cosine(30)
    of = lambda kind, sigma2=0.0: schedules.reverse_variance(made, kind, sigma2)
    np.testing.assert_array_equal(of("component", 0.0), of("posterior"))
    np.testing.assert_allclose(of("component", 1.0), of("beta"), rtol=1e-6)
    swept = jax.vmap(lambda s: of("component", s))(jnp.array([0.0, 1.0]))
    np.testing.assert_allclose(swept, [of("posterior"), of("beta")], rtol=1e-6)


@pytest.mark.parametrize(("sigma2", "T"), [(0.25, 50), (0.25, 200), (4.0, 50)])
def test_component_variance_is_the_conditional_one(sigma2, T, x64):
    # joint Gaussian of (x_t', x_t): variance of the first given the second, by linear algebra
    made = schedules.theory(T)
    abar = np.append(1.0, np.cumprod(1 - BETAS["theory"](T)))
    v = abar * sigma2 + 1 - abar
    covariance = np.sqrt(1 - BETAS["theory"](T)) * v[:-1]
    np.testing.assert_allclose(
        schedules.reverse_variance(made, "component", sigma2),
        v[:-1] - covariance**2 / v[1:],
        rtol=1e-8,
    )


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: schedules.linear(1), "T: expected a whole number of at least 2, got 1"),
        (lambda: schedules.linear(5, end=1.5), "end: expected values strictly between 0 and 1"),
        (lambda: schedules.scaled_linear(5, start=-0.1), "start: expected values strictly"),
        (lambda: schedules.cosine(5, max_beta=1.0), "max_beta: expected values strictly"),
        (lambda: schedules.cosine(5, s=-1.0), r"s: expected values in \[0.0, 1.0\], got -1.0"),
        (lambda: schedules.theory(50, c0=0.0), "c0: expected a finite number above 0, got 0.0"),
        (lambda: schedules.theory(50, c1=-1.0), "c1: expected a finite number above 0, got -1.0"),
        (lambda: schedules.from_betas(np.ones((2, 2))), r"betas: expected shape \(any\)"),
        (lambda: schedules.from_betas(np.ones(1)), "betas: expected at least 2 rows, got 1"),
        (lambda: schedules.from_betas(np.array([0.1, np.nan])), "betas: expected a finite number"),
        (lambda: schedules.from_betas(np.array([1.0, 0.1])), "betas before the last: expected"),
        (lambda: schedules.linear(5, final_abar=0.5), r"final_abar: expected values in \[0.9999"),
        (lambda: schedules.karras(0), "num: expected a whole number of at least 1, got 0"),
        (lambda: schedules.karras(3, 2.0, 1.0), "sigma_max - sigma_min: expected a finite"),
        (lambda: schedules.grid(schedules.linear(5), jnp.array([5])), "timesteps: expected values"),
        (lambda: schedules.grid(schedules.linear(5), jnp.array([1, 3])), "timesteps: .*descending"),
        (
            lambda: schedules.reverse_variance(schedules.linear(5), "wide"),
            "kind: expected one of .*'component'.*, got 'wide'",
        ),
        (
            lambda: schedules.reverse_variance(schedules.linear(5), "component", -1.0),
            r"sigma2: expected values in \[0.0, inf\], got -1.0",
        ),
    ],
)
def test_bad_input(make, match, as_user):
    with pytest.raises(ValueError, match=match):
        make()
