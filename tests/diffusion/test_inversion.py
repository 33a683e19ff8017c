import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxicml.diffusion import inversion, samplers, schedules
from tests.diffusion import gaussian
from tests.diffusion.gaussian import MU

X = np.array([0.3, -1.2, 2.0])
OPTIONS = ("upto", "eval_at", "fixed_point", "average", "prediction")


def stable():
    return schedules.scaled_linear(final_abar="first")


@functools.partial(jax.jit, static_argnames=OPTIONS)
def invert(x, made, steps, target=(0.0, 1.0), **options):
    net = gaussian.denoiser(made, options.get("prediction", "eps"), *target)
    return inversion.ddim_invert(net, x, made, steps, **options)


@jax.jit
def sample(x, made, steps, target):
    return samplers.sample_ddim(gaussian.denoiser(made, "eps", *target), x, made, steps).x


@pytest.mark.parametrize(
    ("s2", "up_source", "up_target", "down"),
    [
        (1e-4, 31.754840, 11.892352, 0.0303396),
        (0.05, 3.966306, 4.242091, 0.2026299),
        (1.0, 0.973614, 1.026271, 0.973614),
    ],
)
def test_factors_of_a_gaussian_chain(s2, up_source, up_target, down, x64):
    # products of κ(t→t') = (a a' s² + b b')/(a² s² + b²) and of a'/a + (b' − a' b/a) b'/v'
    made, target = stable(), (0.0, s2)
    steps, one = made.timesteps(50, steps_offset=1), jnp.ones(1)
    source = invert(one, made, steps, target, eval_at="source")
    np.testing.assert_allclose(source.x, up_source, rtol=1e-6)
    np.testing.assert_allclose(invert(one, made, steps, target).x, up_target, rtol=1e-6)
    np.testing.assert_allclose(sample(one, made, steps, target), down, rtol=1e-6)


@pytest.mark.parametrize(("eval_at", "factor"), [("source", 3.622304), ("target", 3.899988)])
def test_part_of_the_grid(eval_at, factor, x64):
    made = stable()
    steps, options = made.timesteps(50, steps_offset=1), {"eval_at": eval_at, "upto": 30}
    part = invert(jnp.ones(1), made, steps, (0.0, 0.05), **options)
    np.testing.assert_allclose(part.x, factor, rtol=1e-6)
    assert part.trajectory.shape == (31, 1)
    whole = invert(jnp.ones(1), made, steps, (0.0, 0.05), eval_at=eval_at)
    np.testing.assert_allclose(part.trajectory, whole.trajectory[:31], rtol=1e-12)


def by_hand(schedule, steps, x, refinements, average, eval_at="target", kind="eps"):
    t, a, b = (table[::-1] for table in gaussian.levels(schedule, steps))
    signal, noise = np.asarray(schedule.signal), np.asarray(schedule.noise)
    path = [x]
    for i in range(len(t)):
        z = path[-1]
        up = lambda eps, z=z, i=i: a[i + 1] * (z - b[i] * eps) / a[i] + b[i + 1] * eps
        eps_at = lambda z, t: gaussian.output(z, signal[t], noise[t], "eps")
        below = t[i - 1] if i else 0
        guesses = [eps_at(z, t[i] if eval_at == "target" else below)]
        for _ in range(refinements):
            guesses.append(eps_at(up(guesses[-1]), t[i]))
        path.append(up(np.mean(guesses[-average:], axis=0)))
    return np.stack(path)


@pytest.mark.parametrize(
    ("refinements", "average", "eval_at"), [(0, 1, "source"), (3, 1, "target"), (4, 2, "source")]
)
def test_step_by_step(refinements, average, eval_at, x64):
    made, steps = schedules.cosine(40, final_abar="first"), np.array([33, 20, 12, 3])
    options = {"fixed_point": refinements, "average": average, "eval_at": eval_at}
    ours = invert(jnp.asarray(X), made, steps, (MU, 0.25), **options)
    theirs = by_hand(made, steps, X, refinements, average, eval_at)
    np.testing.assert_allclose(ours.trajectory, theirs, rtol=1e-9)
    np.testing.assert_array_equal(ours.trajectory[-1], ours.x)


@pytest.mark.parametrize("prediction", ["x0", "v", "score"])
def test_every_prediction_inverts_alike(prediction, x64):
    made, steps = schedules.cosine(40), np.array([33, 20, 12, 3])
    options = {"fixed_point": 2, "prediction": prediction}
    ours = invert(jnp.asarray(X), made, steps, (MU, 0.25), **options)
    np.testing.assert_allclose(ours.trajectory, by_hand(made, steps, X, 2, 1), rtol=1e-9)


def test_refined_inversion_is_undone_by_sampling(x64):
    made, target = stable(), (MU, 0.25)
    steps = made.timesteps(50, steps_offset=1)
    errors = []
    for n in (0, 2, 60):
        noisy = invert(jnp.asarray(X), made, steps, target, fixed_point=n).x
        errors.append(np.abs(sample(noisy, made, steps, target) - X).max())
    assert errors[0] > 5 * errors[1] > 1e-6
    assert errors[2] < 1e-12


def test_calls_are_counted_by_the_carry():
    made, x = schedules.cosine(40), jnp.asarray(X, jnp.float32)
    steps = np.array([33, 20, 12, 3])
    assert invert(x, made, steps, carry=0, fixed_point=3).carry == 16
    assert invert(x, made, steps, carry=0, upto=2).carry == 2


def test_one_program_whatever_the_number_of_steps():
    def program(steps):
        run = lambda x: inversion.ddim_invert(
            gaussian.denoiser(schedules.linear(steps)), x, schedules.linear(steps), fixed_point=3
        )
        return gaussian.count(jax.make_jaxpr(run)(jnp.zeros(2)).jaxpr)

    few, many = program(5), program(500)
    assert few == many
    assert few[1] == 2  # the levels, and the refinements inside


def test_inversion_keeps_half_precision():
    made, x = schedules.cosine(40), jnp.asarray(X, jnp.bfloat16)
    out = invert(x, made, np.array([33, 3]), fixed_point=1, average=1)
    assert out.x.dtype == out.trajectory.dtype == jnp.bfloat16


# guidance: the embedding is the mean of the Gaussian that the network believes in


def network(made):
    return lambda x, t, mean: (gaussian.output(x, made.signal[t], made.noise[t], "eps", mean), None)


@functools.partial(jax.jit, static_argnames=("iterations", "rate"))
def fit(path, made, steps, condition, embedding, weight, iterations, rate):
    return inversion.null_text_optimisation(
        *(network(made), path, made, steps),
        condition=condition,
        embedding=embedding,
        weight=weight,
        optimiser=optax.adam(rate),
        iterations=iterations,
    )


def test_null_text_brings_guided_sampling_back(x64):
    made, steps = schedules.cosine(40), jnp.array([33, 20, 12, 3])
    condition, empty, weight = jnp.ones(3), jnp.full(3, -0.5), 4.0
    path = inversion.ddim_invert(
        lambda x, t, carry: (network(made)(x, t, condition)[0], carry), jnp.asarray(X), made, steps
    ).trajectory
    fitted = fit(path, made, steps, condition, empty, weight, 600, 0.02)
    np.testing.assert_allclose(fitted.x, X, atol=1e-4)
    assert fitted.losses.max() < 1e-8

    # replayed through the sampler, step by step, the embeddings give the same end
    def guided(x, t, index):
        plain = network(made)(x, t, fitted.embeddings[index])[0]
        return plain + weight * (network(made)(x, t, condition)[0] - plain), index + 1

    replay = samplers.sample_ddim(guided, path[-1], made, steps, carry=0)
    np.testing.assert_allclose(replay.x, fitted.x, rtol=1e-9)

    # without fitting, guidance leaves the path
    unfitted = fit(path, made, steps, condition, empty, weight, 1, 0.0)
    assert np.abs(unfitted.x - X).max() > 0.1
    np.testing.assert_array_equal(unfitted.embeddings, np.full((4, 3), -0.5))


def test_null_text_first_step_is_the_minimum(x64):
    # the landing point is affine in the embedding m: least squares by hand
    made, steps = schedules.cosine(40), np.array([20])
    condition, weight = 1.0, 4.0
    path = jnp.asarray(np.stack([X, [0.5, -0.7, 1.4]]))
    _, a, b = gaussian.levels(made, steps)
    land = lambda m: (lambda eps: a[1] * (path[1] - b[0] * eps) / a[0] + b[1] * eps)(
        (1 - weight) * gaussian.output(path[1], a[0], b[0], "eps", m)
        + weight * gaussian.output(path[1], a[0], b[0], "eps", condition)
    )
    slope = land(1.0) - land(0.0)
    best = slope @ (path[0] - land(0.0)) / (slope @ slope)
    found = fit(path, made, steps, jnp.asarray(condition), jnp.asarray(0.0), weight, 400, 0.05)
    np.testing.assert_allclose(found.embeddings, [best], atol=1e-4)
    np.testing.assert_allclose(found.losses, [np.mean((land(best) - path[0]) ** 2)], rtol=1e-4)


MADE = schedules.linear(5)
NET = gaussian.denoiser(MADE)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"eval_at": "middle"}, r"eval_at: expected one of \['target', 'source'\], got 'middle'"),
        ({"fixed_point": -1}, "fixed_point: expected a whole number of at least 0, got -1"),
        ({"fixed_point": 2, "average": 3}, "average: .* at most 2, got 3"),
        ({"upto": 6}, "upto: .* at least 1 and at most 5, got 6"),
        ({"timesteps": jnp.array([1, 2])}, "timesteps: expected descending values"),
        ({"prediction": "noise"}, "prediction: expected one of"),
    ],
)
def test_bad_inversion(options, match, as_user):
    with pytest.raises(ValueError, match=match):
        inversion.ddim_invert(NET, jnp.zeros(2), MADE, **options)


def test_bad_path(as_user):
    with pytest.raises(ValueError, match=r"trajectory: expected shape \(6, 2\), got \(5, 2\)"):
        inversion.null_text_optimisation(
            NET, jnp.zeros((5, 2)), MADE, condition=None, embedding=jnp.zeros(1)
        )
