r"""Conditional normalising flow of the outcome given covariates, and the laws it induces.

Real-valued non-volume-preserving flow: standardised outcome y and covariates x, coupling layers

    y ← k ⊙ y + (1 − k) ⊙ (y ⊙ e^s + t),     (s, t) = MLP(k ⊙ y, x),  s bounded by tanh

with masks k that alternate between the even and the odd coordinates; log p(y | x) is the standard
normal log density of the result plus Σ s. With a single outcome nothing can be kept: the network
then sees x alone and the law is Gaussian with mean and scale that vary with x.

A law on the training outcomes t_1..t_m is an importance sample. They are draws from the mixture
q(t) = mean_k p̂(t | A_k, X_k) over the training rows, hence

    Ŵ_a[i, j] ∝ p̂(t_j | a, x_i) / q(t_j),

normalised over j. The bare table p̂(t_j | a, x_i) would aim at p̂ q instead of p̂, too narrow and
drawn towards where outcomes are common.

References:
    L. Dinh, J. Sohl-Dickstein, S. Bengio, "Density estimation using Real NVP", 2017,
    arXiv 1605.08803.
    C. Winkler, D. Worrall, E. Hoogeboom, M. Welling, "Learning likelihoods with conditional
    normalizing flows", 2019, arXiv 1912.00042.
"""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Shaped

from jaxicml import checks
from jaxicml.methods.sinkhorn_effect.laws import ConditionalLaw, check_sample
from jaxicml.methods.sinkhorn_effect.networks import (
    MLP,
    Standardiser,
    check_training,
    fit_by_validation,
    split_weights,
)
from jaxicml.types import Key, Scalar

__all__ = ["ConditionalRealNVP", "FlowFit", "fit_flow", "flow_law", "flow_sample_law"]

LOG_SCALE_BOUND = 1.0
"""Each layer stretches a coordinate by at most e, or squeezes it by as much."""


class ConditionalRealNVP(eqx.Module):
    """A conditional flow between outcomes and standard normal noise, both of dimension d.

    Attributes:
        conditioners: one network per coupling layer, stacked along the first dimension.
        standardise_x: mean and scale of the covariates.
        standardise_y: mean and scale of the outcomes.
    """

    conditioners: MLP
    standardise_x: Standardiser
    standardise_y: Standardiser

    def __init__(
        self,
        num_covariates: int,
        num_outcomes: int,
        *,
        width: int = 64,
        depth: int = 2,
        num_layers: int = 6,
        dtype=None,
        key: Key,
    ):
        """The identity, whatever the covariates; `fit_flow` trains and standardises it."""
        sizes = {"num_covariates": num_covariates, "num_outcomes": num_outcomes}
        sizes |= {"width": width, "depth": depth, "num_layers": num_layers}
        for name, value in sizes.items():
            checks.check_integer(name, value, low=1)
        checks.check_key("key", key)
        dtype = jnp.result_type(float) if dtype is None else dtype
        layer_sizes = (num_outcomes + num_covariates, *[width] * depth, 2 * num_outcomes)
        make = lambda layer_key: MLP(layer_sizes, key=layer_key, dtype=dtype)
        self.conditioners = jax.vmap(make)(jax.random.split(key, num_layers))
        self.standardise_x = Standardiser.unit(num_covariates, dtype)
        self.standardise_y = Standardiser.unit(num_outcomes, dtype)

    @property
    def masks(self) -> Float[Array, "layers d"]:
        """Coordinates that each layer keeps; none when there is only one."""
        layers, d = self.conditioners.biases[0].shape[0], self.standardise_y.mean.shape[0]
        parity = (np.arange(layers)[:, None] + np.arange(d)) % 2
        return jnp.asarray(parity * (d > 1), self.standardise_y.mean.dtype)

    def forward(
        self, y: Float[Array, "*batch d"], x: Float[Array, "*batchx p"]
    ) -> tuple[Float[Array, "*out d"], Float[Array, "*out"]]:
        """Returns noise z(y, x) and log |det ∂z/∂y|; leading dimensions broadcast."""
        y, x = self._broadcast("y", y, x)
        return _to_noise(self, y, x)

    def inverse(
        self, z: Float[Array, "*batch d"], x: Float[Array, "*batchx p"]
    ) -> Float[Array, "*out d"]:
        """Returns the outcome whose noise is z; leading dimensions broadcast."""
        z, x = self._broadcast("z", z, x)
        return _from_noise(self, z, x)

    def log_prob(
        self, y: Float[Array, "*batch d"], x: Float[Array, "*batchx p"]
    ) -> Float[Array, "*out"]:
        """Returns the log density of outcomes at covariates; leading dimensions broadcast."""
        z, log_det = self.forward(y, x)
        return log_det - (z**2 + jnp.log(jnp.asarray(2 * jnp.pi, z.dtype))).sum(-1) / 2

    def sample(self, key: Key, x: Float[Array, "*batch p"]) -> Float[Array, "*batch d"]:
        """Returns one outcome for each covariate."""
        checks.check_key("key", key)
        checks.check_array("x", x)
        checks.check_shape("x", x, (*x.shape[:-1], *self.standardise_x.mean.shape))
        mean = self.standardise_y.mean
        noise = jax.random.normal(key, (*x.shape[:-1], mean.shape[0]), mean.dtype)
        return self.inverse(noise, x)

    def _broadcast(self, name: str, y: Array, x: Array) -> tuple[Array, Array]:
        """Outcomes and covariates with equal leading dimensions."""
        for given, value, like in ((name, y, self.standardise_y), ("x", x, self.standardise_x)):
            checks.check_floats(given, value, finite=False)
            checks.check_shape(given, value, (*value.shape[:-1], *like.mean.shape))
        checks.check_broadcast(**{name: y[..., 0], "x": x[..., 0]})
        batch = jnp.broadcast_shapes(y.shape[:-1], x.shape[:-1])
        return (
            jnp.broadcast_to(y, (*batch, y.shape[-1])),
            jnp.broadcast_to(x, (*batch, x.shape[-1])),
        )


class FlowFit(NamedTuple):
    """A trained flow and how training went, in nats per outcome."""

    flow: ConditionalRealNVP
    """The parameters that did best on the held-out rows."""
    train_nll: Float[Array, " steps"]
    """Mean negative log density of the training part at each step."""
    validation_nll: Float[Array, " steps"]
    """Mean negative log density of the held-out part at each step."""
    step: Int[Array, ""]
    """The step whose parameters were kept."""


def fit_flow(
    key: Key,
    x: Float[Array, "n p"],
    y: Float[Array, "n d"],
    *,
    mask: Shaped[Array, " n"] | None = None,
    steps: int = 500,
    learning_rate: Scalar = 1e-3,
    validation: Scalar = 0.2,
    width: int = 64,
    num_layers: int = 6,
) -> FlowFit:
    """Trains a conditional flow by maximum likelihood, stopping early on held-out rows.

    All rows in every step (Adam), one scan over the steps. Rows outside `mask` have no influence,
    so that each arm of a trial is fitted at the shape of the whole sample and fits can be mapped
    over replications. Cost: n width² num_layers a step; the backward pass keeps
    n × width × num_layers activations.

    Args:
        key: random key of the initial weights and of the split.
        x: covariates, standardised inside.
        y: outcomes, standardised inside.
        mask: rows that count (anything but 0); all by default.
        steps: updates.
        learning_rate: step size of Adam.
        validation: share of the rows that is held out.
        width: units in the hidden layers of the conditioners.
        num_layers: coupling layers.

    Returns:
        The flow and its losses.

    Raises:
        ValueError: shapes that disagree, values that are not finite, a mask with fewer
            than two rows, sizes below one or a held-out share outside (0, 1).

    >>> x = jnp.linspace(-1, 1, 50)[:, None]
    >>> fit = fit_flow(jax.random.key(0), x, 3 * x, steps=20, width=8, num_layers=2)
    >>> bool(fit.validation_nll[fit.step] < fit.validation_nll[0])
    True
    """
    checks.check_key("key", key)
    checks.check_floats("x", x, (None, None))
    checks.check_floats("y", y, (x.shape[0], None))
    if mask is None:
        mask = jnp.ones(x.shape[0], bool)
    checks.check_array("mask", mask, (x.shape[0],))
    mask = mask != 0
    if not checks.is_traced(mask):
        checks.check_min_rows("rows in mask", np.flatnonzero(np.asarray(mask)), 2)
    sizes = {"steps": steps, "width": width, "num_layers": num_layers}
    check_training(sizes, learning_rate, validation)
    learning_rate = jnp.asarray(learning_rate, y.dtype)
    return _fit_flow(key, x, y, mask, learning_rate, validation, steps, width, num_layers)


def flow_law(
    flow1: ConditionalRealNVP,
    flow0: ConditionalRealNVP,
    x_train: Float[Array, "m p"],
    a_train: Shaped[Array, " m"],
    y_train: Float[Array, "m d"],
    x_eval: Float[Array, "n p"],
    *,
    reweight: bool = True,
    batch_size: int = 16,
) -> ConditionalLaw:
    """Both flows' densities on all training outcomes, as laws on these shared atoms.

    Cost: 2 n m densities, and 2 m² more when reweighting; `batch_size` rows of m outcomes, each
    with the hidden units of one layer, are in memory at a time, besides tables of n × m and m × m.

    Args:
        flow1: flow of the treated arm.
        flow0: flow of the control arm.
        x_train: covariates of the training rows.
        a_train: their treatments, 0 or 1.
        y_train: their outcomes, which become the atoms of both laws.
        x_eval: covariates at which the laws are wanted.
        reweight: divide by the density that the atoms were drawn from. False gives the bare
            density table, normalised: biased towards where outcomes are common.
        batch_size: rows of the table that are computed at once.

    Returns:
        A law on shared atoms.

    Raises:
        ValueError: shapes that disagree, values that are not finite, treatments other than 0 and
            1, an empty arm or a batch size below one.

    >>> x, a = jnp.linspace(-1, 1, 40)[:, None], jnp.arange(40) % 2
    >>> flow = fit_flow(jax.random.key(0), x, x, steps=2, width=4, num_layers=2).flow
    >>> law = flow_law(flow, flow, x, a, x, x[:3])
    >>> print(law.weights1.shape, law.weights1.sum(1))
    (3, 40) [1. 1. 1.]
    """
    _check_flows(flow1, flow0)
    check_sample(x_train, a_train, y_train)
    checks.check_floats("x_eval", x_eval, (None, x_train.shape[1]))
    checks.check_choice("reweight", reweight, (True, False))
    checks.check_integer("batch_size", batch_size, low=1)
    weights1, weights0 = _outcome_weights(
        flow1, flow0, x_train, a_train, y_train, x_eval, reweight, batch_size
    )
    return ConditionalLaw(y_train, y_train, weights1, weights0, shared=True)


def flow_sample_law(
    key: Key,
    flow1: ConditionalRealNVP,
    flow0: ConditionalRealNVP,
    x_eval: Float[Array, "n p"],
    *,
    num_samples: int = 256,
) -> ConditionalLaw:
    """Samples of both flows at every covariate: row i is uniform on its own M samples.

    All rows and both arms share the same noise, so that differences between them are not noise.
    There are n M atoms an arm and the weights are n × n M (mostly zeros): meant for small n, and
    for checking `flow_law`, whose atoms do not grow with M.

    Args:
        key: random key of the noise.
        flow1: flow of the treated arm.
        flow0: flow of the control arm.
        x_eval: covariates at which the laws are wanted.
        num_samples: M, samples per covariate.

    Returns:
        A law with separate atoms for each arm, those of the first covariate first.

    Raises:
        ValueError: covariates that are no finite matrix or a number of samples below one.

    >>> x = jnp.linspace(-1, 1, 40)[:, None]
    >>> flow = fit_flow(jax.random.key(0), x, x, steps=2, width=4, num_layers=2).flow
    >>> law = flow_sample_law(jax.random.key(1), flow, flow, x[:3], num_samples=5)
    >>> print(law.atoms1.shape, law.weights1.shape)
    (15, 1) (3, 15)
    """
    checks.check_key("key", key)
    _check_flows(flow1, flow0)
    checks.check_floats("x_eval", x_eval, (None, None))
    checks.check_integer("num_samples", num_samples, low=1)
    d = flow1.standardise_y.mean.shape[0]
    noise = jax.random.normal(key, (num_samples, d), x_eval.dtype)
    atoms1, atoms0 = (
        flow.inverse(noise[None], x_eval[:, None]).reshape(-1, d) for flow in (flow1, flow0)
    )
    own = jnp.eye(x_eval.shape[0], dtype=x_eval.dtype) / num_samples
    weights = jnp.repeat(own, num_samples, axis=1)
    return ConditionalLaw(atoms1, atoms0, weights, weights)


def _check_flows(flow1, flow0) -> None:
    for name, flow in (("flow1", flow1), ("flow0", flow0)):
        checks.check_instance(name, flow, ConditionalRealNVP)


@jax.jit
def _to_noise(flow: ConditionalRealNVP, y: Array, x: Array) -> tuple[Array, Array]:
    x = flow.standardise_x(x)

    def layer(carry, inputs):
        (y, log_det), (conditioner, mask) = carry, inputs
        log_scale, shift = _coupling(conditioner, mask, y, x)
        y = mask * y + (1 - mask) * (y * jnp.exp(log_scale) + shift)
        return (y, log_det + log_scale.sum(-1)), None

    log_det = jnp.full(y.shape[:-1], -jnp.log(flow.standardise_y.scale).sum(), y.dtype)
    start = (flow.standardise_y(y), log_det)
    return jax.lax.scan(layer, start, (flow.conditioners, flow.masks))[0]


@jax.jit
def _from_noise(flow: ConditionalRealNVP, z: Array, x: Array) -> Array:
    x = flow.standardise_x(x)

    def layer(y, inputs):
        conditioner, mask = inputs
        # a layer does not change what it keeps: (s, t) are those of the way forward
        log_scale, shift = _coupling(conditioner, mask, y, x)
        return mask * y + (1 - mask) * ((y - shift) * jnp.exp(-log_scale)), None

    y, _ = jax.lax.scan(layer, z, (flow.conditioners, flow.masks), reverse=True)
    return flow.standardise_y.undo(y)


def _coupling(conditioner: MLP, mask: Array, y: Array, x: Array) -> tuple[Array, Array]:
    """Log scale (zero where the mask keeps) and shift of one layer."""
    raw = conditioner(jnp.concatenate([mask * y, x], axis=-1))
    log_scale, shift = jnp.split(raw, 2, axis=-1)
    return (1 - mask) * LOG_SCALE_BOUND * jnp.tanh(log_scale), shift


@partial(jax.jit, static_argnames=("steps", "width", "num_layers"))
def _fit_flow(key, x, y, mask, learning_rate, validation, steps, width, num_layers) -> FlowFit:
    init_key, split_key = jax.random.split(key)
    weights = mask.astype(y.dtype) / mask.sum().astype(y.dtype)
    # rows outside the mask may be far away: no overflow of theirs may reach a sum
    x, y = (jnp.where(mask[:, None], value, 0) for value in (x, y))
    standardise_x, standardise_y = Standardiser.of(x, weights), Standardiser.of(y, weights)
    x = jnp.where(mask[:, None], x, standardise_x.mean)
    y = jnp.where(mask[:, None], y, standardise_y.mean)
    sizes = {"width": width, "num_layers": num_layers, "dtype": y.dtype}
    flow = ConditionalRealNVP(x.shape[1], y.shape[1], **sizes, key=init_key)
    standardisers = lambda flow: (flow.standardise_x, flow.standardise_y)
    flow = eqx.tree_at(standardisers, flow, (standardise_x, standardise_y))
    inside, outside = split_weights(split_key, mask, validation, y.dtype)

    def losses(conditioners):
        nll = -eqx.tree_at(lambda f: f.conditioners, flow, conditioners).log_prob(y, x)
        return inside @ nll, outside @ nll

    fit = fit_by_validation(flow.conditioners, losses, optax.adam(learning_rate), steps=steps)
    best = eqx.tree_at(lambda f: f.conditioners, flow, fit.parameters)
    return FlowFit(best, fit.training, fit.validation, fit.step)


@partial(jax.jit, static_argnames=("reweight", "batch_size"))
def _outcome_weights(flow1, flow0, x_train, a_train, y_train, x_eval, reweight, batch_size):
    """Rows of both laws on the training outcomes."""

    def table(flow, x):
        row = lambda x_i: flow.log_prob(y_train, x_i)
        return jax.lax.map(row, x, batch_size=min(batch_size, x.shape[0]))

    log_proposal = jnp.zeros(y_train.shape[0], y_train.dtype)
    if reweight:
        treated = (a_train == 1)[:, None]
        drawn_from = jnp.where(treated, table(flow1, x_train), table(flow0, x_train))
        log_proposal = jax.nn.logsumexp(drawn_from, axis=0)
    return tuple(
        jax.nn.softmax(table(flow, x_eval) - log_proposal, axis=1) for flow in (flow1, flow0)
    )
