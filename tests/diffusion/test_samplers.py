import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxicml.diffusion import samplers, schedules
from tests.diffusion import gaussian
from tests.diffusion.gaussian import MU, S2

KINDS = ("eps", "x0", "v", "score")
STRIDED = np.array([24, 17, 11, 4])
START = np.array([[0.3, -1.2, 2.0], [0.1, 0.9, -2.5]])


OPTIONS = ("prediction", "variance", "last", "trajectory", "target")


@functools.partial(jax.jit, static_argnames=("method", *OPTIONS))
def run(method, x, made, timesteps=None, *, target=(MU, S2), **options):
    """A sampler with the exact denoiser of a Gaussian; `made` is a schedule or noise levels."""
    sample = getattr(samplers, f"sample_{method}")
    kind = options.get("prediction", "x0" if method in ("euler", "heun") else "eps")
    if method in ("euler", "heun"):
        return sample(gaussian.edm_denoiser(kind, *target), x, made, **options)
    net = gaussian.denoiser(made, kind, *target)
    first = (options.pop("key"),) if method == "ddpm" else ()
    return sample(*first, net, x, made, timesteps, **options)


def noise(key, steps, shape):
    return [np.asarray(jax.random.normal(k, shape)) for k in jax.random.split(key, steps)]


def ddpm_by_hand(schedule, timesteps, variance, sigma2, x, z, last):
    # Ho et al. 2020, algorithm 2, with the noise prediction
    _, a, b = gaussian.levels(schedule, timesteps)
    for i in range(len(b) - 1 - (last == "stop")):
        alpha, abar, abar_next = (a[i] / a[i + 1]) ** 2, a[i] ** 2, a[i + 1] ** 2
        v, v_next = abar * sigma2 + 1 - abar, abar_next * sigma2 + 1 - abar_next
        sd2 = {
            "beta": 1 - alpha,
            "upper": (1 - alpha) / alpha,
            "posterior": (1 - alpha) * (1 - abar_next) / (1 - abar),
            "component": (1 - alpha) * v_next / v,
        }[variance]
        if last == "mean" and i == len(b) - 2:
            sd2 = 0
        eps = gaussian.output(x, a[i], b[i], "eps")
        x = (x - (1 - alpha) / b[i] * eps) / np.sqrt(alpha) + np.sqrt(sd2) * z[i]
    return x


@pytest.mark.parametrize(
    ("variance", "last", "prediction", "timesteps"),
    [
        ("beta", "mean", "eps", STRIDED),
        ("upper", "stop", "x0", STRIDED),
        ("posterior", "noise", "v", STRIDED),
        ("component", "noise", "score", STRIDED),
        ("component", "mean", "eps", None),
    ],
)
def test_ddpm_step_by_step(variance, last, prediction, timesteps, x64):
    made, key = schedules.theory(25), jax.random.key(3)
    options = {"variance": variance, "last": last}
    ours = run(
        *("ddpm", jnp.asarray(START), made, timesteps),
        **(options | {"key": key, "sigma2": S2, "prediction": prediction}),
    )
    z = noise(key, 25, START.shape)
    theirs = ddpm_by_hand(made, timesteps, sigma2=S2, x=START, z=z, **options)
    np.testing.assert_allclose(ours.x, theirs, rtol=1e-9)


def ddim_by_hand(schedule, timesteps, eta, x, z):
    # Song et al. 2021, equations 12 and 16
    _, a, b = gaussian.levels(schedule, timesteps)
    for i in range(len(b) - 1):
        abar, abar_next = a[i] ** 2, a[i + 1] ** 2
        s = eta * np.sqrt((1 - abar_next) / (1 - abar)) * np.sqrt(1 - abar / abar_next)
        eps = gaussian.output(x, a[i], b[i], "eps")
        x0 = (x - b[i] * eps) / a[i]
        x = a[i + 1] * x0 + np.sqrt(max(1 - abar_next - s**2, 0)) * eps + s * z[i]
    return x


@pytest.mark.parametrize(
    ("eta", "final", "prediction", "timesteps"),
    [
        (None, 1.0, "v", STRIDED),
        (0.6, "first", "eps", STRIDED),
        (1.0, "first", "eps", STRIDED),
        (1.0, 1.0, "x0", None),
    ],
)
def test_ddim_step_by_step(eta, final, prediction, timesteps, x64):
    made, key = schedules.cosine(25, final_abar=final), jax.random.key(5)
    noisy = {} if eta is None else {"eta": eta, "key": key}
    ours = run("ddim", jnp.asarray(START), made, timesteps, prediction=prediction, **noisy)
    theirs = ddim_by_hand(made, timesteps, eta or 0, START, noise(key, 25, START.shape))
    np.testing.assert_allclose(ours.x, theirs, rtol=1e-9)


def dpmpp_by_hand(schedule, timesteps, x):
    # Lu et al. 2022, algorithm 2; first and last step of first order
    _, a, b = gaussian.levels(schedule, timesteps)
    with np.errstate(divide="ignore"):
        lam = np.log(a) - np.log(b)
    before = None
    for i in range(len(b) - 1):
        x0 = gaussian.output(x, a[i], b[i], "x0")
        h = lam[i + 1] - lam[i]
        D = x0
        if 0 < i < len(b) - 2:
            r = (lam[i] - lam[i - 1]) / h
            D = (1 + 1 / (2 * r)) * x0 - 1 / (2 * r) * before
        x = b[i + 1] / b[i] * x - a[i + 1] * (np.exp(-h) - 1) * D
        before = x0
    return x


@pytest.mark.parametrize("final", [1.0, "first"])
@pytest.mark.parametrize("timesteps", [None, STRIDED, np.array([20])])
def test_dpmpp_step_by_step(timesteps, final, x64):
    made = schedules.cosine(25, final_abar=final)
    ours = run("dpmpp_2m", jnp.asarray(START), made, timesteps)
    assert ours.trajectory is None
    np.testing.assert_allclose(ours.x, dpmpp_by_hand(made, timesteps, START), rtol=1e-9)


def edm_by_hand(sigmas, x, heun):
    # Karras et al. 2022, algorithm 1
    derivative = lambda x, s: (x - gaussian.output(x, 1.0, s, "x0")) / s
    for s, s_next in itertools.pairwise(sigmas):
        d = derivative(x, s)
        new = x + (s_next - s) * d
        if heun and s_next > 0:
            new = x + (s_next - s) * (d / 2 + derivative(new, s_next) / 2)
        x = new
    return x


@pytest.mark.parametrize("prediction", ["eps", "x0", "score"])
@pytest.mark.parametrize("method", ["euler", "heun"])
def test_edm_step_by_step(method, prediction, x64):
    sigmas = schedules.karras(7)
    ours = run(method, jnp.asarray(80 * START), sigmas, prediction=prediction)
    theirs = edm_by_hand(np.asarray(sigmas), 80 * START, method == "heun")
    np.testing.assert_allclose(ours.x, theirs, rtol=1e-9)


@pytest.mark.parametrize(
    ("method", "calls"), [("ddpm", 4), ("ddim", 4), ("dpmpp_2m", 4), ("euler", 4), ("heun", 7)]
)
def test_calls_are_counted_by_the_carry(method, calls):
    edm = method in ("euler", "heun")
    made = schedules.karras(4) if edm else schedules.theory(25)
    key = {"key": jax.random.key(0)} if method == "ddpm" else {}
    x = jnp.asarray(START, jnp.float32)
    assert run(method, x, made, None if edm else STRIDED, carry=0, **key).carry == calls


def order(method, exact, make):
    """The order of convergence seen when the number of steps doubles."""
    made = [make(steps) for steps in (64, 128)]
    errors = [abs(float(run(method, jnp.asarray(0.7), m).x) - exact(m)) for m in made]
    return np.log2(errors[0] / errors[1])


@pytest.mark.parametrize(("method", "expected"), [("ddim", 1), ("dpmpp_2m", 2)])
def test_order_on_an_equidistant_log_snr_grid(method, expected, x64):
    def exact(made):
        _, a, b = gaussian.levels(made)
        return gaussian.flow(0.7, a[0], b[0], a[-1], b[-1])

    found = order(method, exact, gaussian.uniform_in_log_snr)
    assert found == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize(("method", "expected"), [("euler", 1), ("heun", 2)])
def test_order_on_noise_levels(method, expected, x64):
    exact = lambda made: gaussian.flow(0.7, 1.0, made[0], 1.0, made[-1])
    found = order(method, exact, lambda steps: jnp.geomspace(10.0, 0.1, steps + 1))
    assert found == pytest.approx(expected, abs=0.1)


def test_ddim_is_euler_on_rescaled_data(x64):
    made = schedules.cosine(12)
    _, a, b = gaussian.levels(made)
    theirs = run("euler", jnp.asarray(START / a[0]), jnp.asarray(b / a), trajectory=True)
    ours = run("ddim", jnp.asarray(START), made, trajectory=True)
    np.testing.assert_allclose(
        ours.trajectory / a[:, None, None], theirs.trajectory, rtol=1e-9, atol=1e-9
    )


def output_variance(schedule, sigma2, variance):
    # V' = (α v'²/v²) V + sd² from V = 1, down to index 0
    betas = np.asarray(schedule.betas, np.float64)
    abar = np.cumprod(1 - betas)
    v = abar * sigma2 + 1 - abar
    V = 1.0
    for t in range(len(betas) - 1, 0, -1):
        sd2 = {
            "beta": betas[t],
            "upper": betas[t] / (1 - betas[t]),
            "posterior": betas[t] * (1 - abar[t - 1]) / (1 - abar[t]),
            "component": betas[t] * v[t - 1] / v[t],
        }[variance]
        V = (1 - betas[t]) * (v[t - 1] / v[t]) ** 2 * V + sd2
    return V, v[0]


@pytest.mark.parametrize("variance", ["beta", "upper", "posterior", "component"])
def test_law_of_one_gaussian(variance):
    made, draws = schedules.theory(25), 100_000
    run = jax.jit(
        lambda key, x: (
            samplers.sample_ddpm(
                *(key, gaussian.denoiser(made, mu=0.0), x, made),
                variance=variance,
                sigma2=S2,
                last="stop",
            ).x
        )
    )
    start_key, key = jax.random.split(jax.random.key(7))
    x = np.asarray(run(key, jax.random.normal(start_key, (draws,))), np.float64)
    expected, target = output_variance(made, S2, variance)
    low, high = scipy.stats.chi2.ppf([5e-5, 1 - 5e-5], draws - 1)
    assert low < (draws - 1) * x.var(ddof=1) / expected < high
    assert scipy.stats.kstest(x / np.sqrt(expected), "norm").pvalue > 1e-4
    # the interval is narrow enough to tell the rules apart
    if variance != "component":
        assert not low < (draws - 1) * x.var(ddof=1) / target < high


def test_posterior_variance_is_exact_on_a_point_mass():
    made, draws, point = schedules.theory(25), 100_000, 2.0
    run = jax.jit(
        lambda key, x: (
            samplers.sample_ddpm(
                *(key, lambda x, t, carry: (jnp.full_like(x, point), carry), x, made),
                variance="posterior",
                prediction="x0",
                last="stop",
            ).x
        )
    )
    start_key, key = jax.random.split(jax.random.key(8))
    x = np.asarray(run(key, jax.random.normal(start_key, (draws,))), np.float64)
    abar = 1 - float(made.betas[0])
    law = scipy.stats.norm(np.sqrt(abar) * point, np.sqrt(1 - abar))
    assert scipy.stats.kstest(x, law.cdf).pvalue > 1e-4


def test_single_precision_follows_double():
    ends = []
    for dtype, wide in ((jnp.float32, False), (jnp.float64, True)):
        with jax.enable_x64(wide):
            ends.append(np.asarray(run("ddim", jnp.asarray(START, dtype), schedules.theory(200)).x))
    np.testing.assert_allclose(*ends, rtol=2e-5)


@pytest.mark.parametrize("method", ["ddpm", "ddim", "dpmpp_2m", "euler", "heun"])
def test_one_scan_whatever_the_number_of_steps(method):
    def program(steps):
        def run(x, key):
            made = schedules.linear(steps)
            if method in ("euler", "heun"):
                sample = getattr(samplers, f"sample_{method}")
                return sample(gaussian.edm_denoiser(), x, schedules.karras(steps)).x
            net = gaussian.denoiser(made)
            if method == "ddpm":
                return samplers.sample_ddpm(key, net, x, made).x
            if method == "ddim":
                return samplers.sample_ddim(net, x, made, eta=0.5, key=key).x
            return samplers.sample_dpmpp_2m(net, x, made).x

        return jax.make_jaxpr(run)(jnp.zeros(3), jax.random.key(0)).jaxpr

    few, many = gaussian.count(program(5)), gaussian.count(program(500))
    assert few == many
    assert few[1] == 1


def test_trajectory_and_early_stop():
    made, x = schedules.linear(6), jnp.asarray(START, jnp.float32)
    options = {"key": jax.random.key(2), "trajectory": True}
    whole, early = run("ddpm", x, made, **options), run("ddpm", x, made, last="stop", **options)
    assert whole.trajectory.shape == (7, *START.shape)
    np.testing.assert_array_equal(whole.trajectory[0], x)
    np.testing.assert_array_equal(whole.trajectory[-1], whole.x)
    np.testing.assert_allclose(whole.trajectory[:-1], early.trajectory, rtol=1e-6)
    np.testing.assert_array_equal(early.x, early.trajectory[-1])


def test_hook_blends_and_writes_into_the_carry():
    # keeps the known half of the data: its noisy version at every level, itself at the end
    made = schedules.scaled_linear(20, final_abar="first")
    steps = made.timesteps(5, steps_offset=1)
    known, mask, eps = jnp.array([1.0, -1.0]), jnp.array([1.0, 0.0]), jnp.array([0.5, -0.5])

    def hook(x, info, carry):
        noisy = jnp.where(info.last, known, info.next_a * known + info.next_b * eps)
        seen = jnp.stack([info.t.astype(x.dtype), info.a, info.b, info.next_a, info.next_b])
        return jnp.where(mask == 1, noisy, x), carry.at[info.index].set(seen)

    ours = samplers.sample_ddim(
        lambda x, t, carry: (gaussian.denoiser(made)(x, t, None)[0], carry),
        *(jnp.zeros(2), made, steps),
        hook=hook,
        carry=jnp.zeros((5, 5)),
        trajectory=True,
    )
    t, a, b = gaussian.levels(made, np.asarray(steps))
    np.testing.assert_allclose(ours.carry, np.c_[t, a[:-1], b[:-1], a[1:], b[1:]], rtol=1e-5)
    np.testing.assert_allclose(ours.trajectory[1:-1, 0], (a * 1.0 + b * 0.5)[1:-1], rtol=1e-5)
    assert ours.x[0] == known[0]
    free = samplers.sample_ddim(gaussian.denoiser(made), jnp.zeros(2), made, steps)
    np.testing.assert_allclose(ours.x[1], free.x[1], rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "prediction"),
    [("ddpm", "eps"), ("ddpm", "v"), ("ddim", "v"), ("ddim", "score"), ("dpmpp_2m", "x0")],
)
def test_zero_snr_start_is_finite(method, prediction):
    made = schedules.zero_snr(schedules.scaled_linear(20))
    steps = made.timesteps(5, "trailing")
    assert steps[0] == 19
    options = {"prediction": prediction}
    if method == "ddpm":
        options["key"] = jax.random.key(0)
    end = lambda x: run(method, x, made, steps, **options).x
    x = jnp.asarray(START, jnp.float32)
    out, back = jax.vjp(end, x)
    chex.assert_tree_all_finite((out, back(jnp.ones_like(x))))


def test_zero_snr_first_step_of_ddim():
    # a = 0, b = 1 and x = ε: one step leads to a' x̂_0 + b' x
    made = schedules.zero_snr(schedules.scaled_linear(20))
    steps = jnp.array([19, 9])
    ours = run("ddim", jnp.array([0.4]), made, steps, prediction="v", trajectory=True)
    expected = made.signal[9] * MU + made.noise[9] * 0.4
    np.testing.assert_allclose(ours.trajectory[1], expected, rtol=1e-6)


@pytest.mark.parametrize("method", ["ddim", "dpmpp_2m", "euler", "heun"])
def test_last_step_to_no_noise_is_the_prediction(method):
    found = lambda x, info, carry: (x, info.x0)
    x, made = jnp.asarray(START, jnp.float32), schedules.cosine(6)
    sample = getattr(samplers, f"sample_{method}")
    edm = method in ("euler", "heun")
    args = (gaussian.edm_denoiser(), x, schedules.karras(6)) if edm else (None, x, made)
    net = args[0] or gaussian.denoiser(made)
    keep = lambda x, t, carry: (net(x, t, None)[0], carry)
    out = sample(keep, *args[1:], hook=found, carry=jnp.zeros_like(x))
    np.testing.assert_array_equal(out.x, out.carry)


def test_half_precision_states():
    made, x = schedules.cosine(10), jnp.asarray(START, jnp.bfloat16)
    half, single = (
        run("ddim", x.astype(dtype), made, prediction="x0").x
        for dtype in (jnp.bfloat16, jnp.float32)
    )
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(half.astype(jnp.float32), single, atol=0.05)


def test_eta_may_be_swept():
    made, x, key = schedules.cosine(25), jnp.asarray(START, jnp.float32), jax.random.key(1)
    ddim = lambda eta: run("ddim", x, made, STRIDED, eta=eta, key=key).x
    etas = jnp.array([0.0, 0.5, 1.0])
    swept, slopes = jax.vmap(lambda eta: jax.jvp(ddim, (eta,), (jnp.ones(()),)))(etas)
    np.testing.assert_allclose(swept, np.stack([ddim(eta) for eta in etas]), rtol=1e-5)
    np.testing.assert_allclose(swept[0], run("ddim", x, made, STRIDED).x, rtol=1e-5)
    # the last step has no noise left: 0/0 in a careless slope at η = 1
    chex.assert_tree_all_finite(slopes)


def test_component_variance_may_be_swept():
    made, x, key = schedules.theory(25), jnp.asarray(START, jnp.float32), jax.random.key(1)
    ddpm = lambda variance, sigma2=0.0: (
        run("ddpm", x, made, STRIDED, key=key, variance=variance, sigma2=sigma2).x
    )
    ends = jax.vmap(lambda sigma2: ddpm("component", sigma2))(jnp.array([0.0, 1.0]))
    np.testing.assert_allclose(ends, np.stack([ddpm("posterior"), ddpm("beta")]), rtol=1e-4)


def test_grids_and_schedules_may_be_swept():
    x = jnp.asarray(START, jnp.float32)
    made = [schedules.theory(25), schedules.cosine(25)]
    steps = [STRIDED, STRIDED - 2]
    stacked = jax.tree.map(lambda *tables: jnp.stack(tables), *made)
    both = jax.vmap(lambda schedule, steps: run("dpmpp_2m", x, schedule, steps).x)(
        stacked, jnp.asarray(steps)
    )
    alone = [run("dpmpp_2m", x, *case).x for case in zip(made, steps, strict=True)]
    np.testing.assert_allclose(both, np.stack(alone), rtol=1e-4)


MADE = schedules.linear(5)
NET = gaussian.denoiser(MADE)
X = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda x: samplers.sample_ddpm(jax.random.key(0), NET, x, MADE, variance="tiny"),
            "variance: expected one of .*'posterior'.*, got 'tiny'",
        ),
        (
            lambda x: samplers.sample_ddpm(jax.random.key(0), NET, x, MADE, last="never"),
            r"last: expected one of \['mean', 'noise', 'stop'\], got 'never'",
        ),
        (
            lambda x: samplers.sample_ddpm(
                *(jax.random.key(0), NET, x, MADE, jnp.array([3])), last="stop"
            ),
            "timesteps, for last='stop': expected at least 2 rows, got 1",
        ),
        (
            lambda x: samplers.sample_ddpm(
                *(jax.random.key(0), NET, x, schedules.zero_snr(MADE)), variance="upper"
            ),
            "betas, under the variance 'upper': expected a number below 1",
        ),
        (
            lambda x: samplers.sample_ddim(NET, x, MADE, prediction="noise"),
            "prediction: expected one of .*'eps'.*, got 'noise'",
        ),
        (lambda x: samplers.sample_ddim(NET, x, MADE, eta=0.5), "key: expected a value where eta"),
        (lambda x: samplers.sample_ddim(NET, x, MADE, eta=2.0), r"eta: expected values in \[0"),
        (
            lambda x: samplers.sample_ddim(NET, x, MADE, jnp.array([1, 2])),
            "timesteps: expected descending values",
        ),
        (
            lambda x: samplers.sample_ddim(NET, x.astype(int), MADE),
            "dtype of x: expected one of .*'float32'.*, got 'int32'",
        ),
        (
            lambda x: samplers.sample_ddim(lambda x, t, carry: (x[:1], carry), x, MADE),
            r"out: expected shape \(2\), got \(1,\)",
        ),
        (
            lambda x: samplers.sample_euler(NET, x, jnp.array([1.0])),
            "sigmas: expected at least 2 rows, got 1",
        ),
        (
            lambda x: samplers.sample_heun(NET, x, jnp.array([0.0, 1.0])),
            "sigmas: expected descending values",
        ),
        (
            lambda x: samplers.sample_euler(NET, x, jnp.array([1.0, -1.0])),
            r"sigmas: expected values in \[0.0, inf\]",
        ),
        (
            lambda x: samplers.sample_heun(NET, x, jnp.array([1.0, 0.0]), prediction="v"),
            r"prediction: expected one of \['eps', 'x0', 'score'\], got 'v'",
        ),
    ],
)
def test_bad_input(call, match, as_user):
    with pytest.raises(ValueError, match=match):
        call(jnp.asarray(X))
