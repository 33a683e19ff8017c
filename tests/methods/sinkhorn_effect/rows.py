"""Public entries of the Sinkhorn treatment effect."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxicml.methods import sinkhorn_effect as ste
from tests.contract import Bad, Row, edited, entry

NAME = "methods.sinkhorn_effect."
with_nan = entry((0, 0), np.nan)
one_arm = edited(np.ones_like)
scaled = lambda factor: edited(lambda values: factor * values)
all_but_one = edited(lambda a: a[1:])
first_column = edited(lambda a: a[:, :1])
other_columns = edited(lambda a: a[:, 1:])
vector = edited(lambda a: a[:, 0])
matrix = edited(lambda a: a[:, None])


def negative(row):
    return edited(lambda weights: weights.__setitem__(row, -weights[row]))


def covariates_and_arms(rng):
    return rng.normal(size=(12, 2)), rng.permutation(np.arange(12) % 2)


def training_and_evaluation(rng):
    x, a = covariates_and_arms(rng)
    return x, a, rng.normal(size=(12, 2)), rng.normal(size=(5, 2))


def weights(rng, m):
    return rng.dirichlet(np.ones(m), size=4)


def untrained_flow(dtype, seed):
    key = jax.random.key(seed)
    return ste.ConditionalRealNVP(2, 2, width=4, num_layers=2, dtype=dtype, key=key)


def flow_law(x, a, y, x_eval):
    flows = (untrained_flow(x.dtype, seed) for seed in (0, 1))
    return ste.flow_law(*flows, x, a, y, x_eval)


def flow_sample_law(key, x):
    flow = untrained_flow(x.dtype, 0)
    return ste.flow_sample_law(key, flow, flow, x, num_samples=3)


BAD_ARMS = (
    Bad("NaN in x", {0: with_nan}, r"x: expected finite values, got 1 NaN or infinite \(rows 0\)"),
    Bad("third arm", {1: scaled(2)}, "a: expected only 0 and 1, got 2"),
    Bad("empty arm", {1: one_arm}, "a: expected both arms, got only 1"),
    Bad("length", {1: all_but_one}, r"a: expected shape \(12\), got \(11,\)"),
)
BAD_SAMPLE = (
    *BAD_ARMS,
    Bad("NaN in y", {2: with_nan}, "y: expected finite values"),
    Bad("vector y", {2: vector}, r"y: expected shape \(12, any\), got \(12,\)"),
)
BAD_TRAINING = (
    *BAD_SAMPLE,
    Bad("width", {3: first_column}, r"x_eval: expected shape \(any, 2\), got \(5, 1\)"),
    Bad("NaN in x_eval", {3: with_nan}, "x_eval: expected finite values"),
)

NUISANCE_ROWS = [
    Row(
        NAME + "logistic_propensity",
        lambda x, a: ste.logistic_propensity(x, a)(x),
        covariates_and_arms,
        vmap=(0, 1),
        grad=(0,),
        bad=BAD_ARMS,
        also=(NAME + "LogisticPropensity",),
    ),
    Row(
        NAME + "mlp_propensity",
        lambda key, x, a: ste.mlp_propensity(key, x, a, width=4, steps=5)(x),
        covariates_and_arms,
        random=True,
        vmap=(0, 1),
        bad=BAD_ARMS,
        also=(NAME + "NetworkPropensity",),
    ),
    Row(
        NAME + "clip_propensity",
        ste.clip_propensity,
        lambda rng: (rng.uniform(size=9), np.array(rng.uniform(0.01, 0.3))),
        vmap=(0, 1),
        grad=(0,),
        bad=(
            Bad("above 1", {0: edited(lambda e: e + 1)}, r"propensity: expected values in \[0"),
            Bad("eta", {1: 0.5}, "eta: expected a number below 0.5, got 0.5"),
        ),
    ),
    Row(
        NAME + "conditional_law",
        ste.conditional_law,
        lambda rng: (
            rng.normal(size=(3, 2)),
            rng.normal(size=(5, 2)),
            weights(rng, 3),
            weights(rng, 5),
        ),
        vmap=(0, 1, 2, 3),
        grad=(0, 1, 2, 3),
        bad=(
            Bad("sum", {2: scaled(1.01)}, "weights1: expected rows that sum to 1, got a sum"),
            Bad("negative", {3: negative(1)}, "weights0: expected non-negative"),
            Bad("NaN", {2: with_nan}, "weights1: expected finite values"),
            Bad("NaN atom", {1: with_nan}, "atoms0: expected finite values"),
            Bad("rows", {3: all_but_one}, r"weights0: expected shape \(4, 5\), got \(3, 5\)"),
            Bad("dimension", {1: first_column}, r"atoms0: expected shape \(any, 2\)"),
        ),
        also=(NAME + "ConditionalLaw",),
    ),
    Row(
        NAME + "kernel_law",
        lambda x, a, y, x_eval, h: ste.kernel_law(x, a, y, x_eval, bandwidth=h),
        lambda rng: (*training_and_evaluation(rng), np.array(rng.uniform(0.5, 1))),
        vmap=(0, 1, 2, 3, 4),
        grad=(0, 2, 3, 4),
        bad=(
            *BAD_TRAINING,
            Bad("bandwidth", {4: 0.0}, "bandwidth: expected a finite number above"),
        ),
    ),
    Row(
        NAME + "select_bandwidth",
        lambda x, a, y: ste.select_bandwidth(x, a, y, jnp.array([0.3, 1.0], x.dtype)),
        lambda rng: training_and_evaluation(rng)[:3],
        vmap=(0, 1, 2),
        bad=(
            *BAD_SAMPLE,
            Bad(
                "one row", {1: np.eye(12, dtype=int)[0]}, "a == 1: expected at least 2 rows, got 1"
            ),
        ),
    ),
    Row(
        NAME + "fit_flow",
        lambda key, x, y: ste.fit_flow(key, x, y, steps=3, width=4, num_layers=2)[1:3],
        lambda rng: (rng.normal(size=(12, 2)), rng.normal(size=(12, 2))),
        random=True,
        vmap=(0, 1),
        slow=True,
        bad=(
            Bad("NaN in x", {0: with_nan}, "x: expected finite values"),
            Bad("NaN in y", {1: with_nan}, "y: expected finite values"),
            Bad("rows", {1: all_but_one}, r"y: expected shape \(12, any\), got \(11, 2\)"),
        ),
    ),
    Row(
        NAME + "flow_law",
        flow_law,
        training_and_evaluation,
        vmap=(0, 1, 2, 3),
        grad=(2,),
        bad=BAD_TRAINING,
    ),
    Row(
        NAME + "flow_sample_law",
        flow_sample_law,
        lambda rng: (rng.normal(size=(4, 2)),),
        random=True,
        vmap=(0,),
        bad=(Bad("NaN in x", {0: with_nan}, "x_eval: expected finite values"),),
        also=(NAME + "ConditionalRealNVP",),
    ),
]


def evaluation_sample(rng, n=16, m1=7, m0=6):
    """Outcome, treatment, propensity, atoms of both arms, their weights."""
    treatment = np.arange(n) % 2.0
    return (
        rng.normal(size=(n, 2)) + treatment[:, None],
        treatment,
        rng.uniform(0.3, 0.7, n),
        rng.normal(size=(m1, 2)) + 1,
        rng.normal(size=(m0, 2)),
        rng.dirichlet(np.full(m1, 5.0), size=n),
        rng.dirichlet(np.full(m0, 5.0), size=n),
    )


def with_numbers(*numbers):
    """An evaluation sample and then the given numbers."""
    return lambda rng: (*evaluation_sample(rng), *map(np.array, numbers))


def measures(rng):
    """Points and weights of two measures."""
    weights = (rng.dirichlet(np.full(m, 5.0)) for m in (9, 7))
    return rng.normal(size=(9, 2)), rng.normal(size=(7, 2)), *weights, np.array(1.0)


def treatment_effect(key, y, a, e, t1, t0, w1, w0, epsilon, alpha):
    law = ste.ConditionalLaw(t1, t0, w1, w0)
    return ste.sinkhorn_treatment_effect(
        key, y, a, e, law, epsilon=epsilon, alpha=alpha, num_null=99
    )


def aggregated(key, y, a, e, t1, t0, w1, w0, epsilons, alpha, beta):
    law = ste.ConditionalLaw(t1, t0, w1, w0)
    options = {"epsilons": epsilons, "alpha": alpha, "beta": beta}
    return ste.sinkhorn_effect_aggregated(key, y, a, e, law, num_null=99, **options)


def cross_fit(key, x, a, y, epsilons, alpha):
    return ste.cross_fit(
        key,
        x,
        a,
        y,
        propensity_fn=lambda key, x, a: ste.logistic_propensity(x, a, l2=0.1),
        law_fn=lambda key, x, a, y, x_eval: ste.kernel_law(x, a, y, x_eval, bandwidth=1.5),
        epsilons=epsilons,
        alpha=alpha,
        num_null=99,
    )


def trial(rng):
    """Covariates, treatment, outcome, a grid and a level."""
    x, a = rng.normal(size=(16, 2)), rng.permutation(np.arange(16) % 2.0)
    return x, a, rng.normal(size=(16, 2)) + a[:, None], np.array([1.0, 3.0]), np.array(0.1)


def eif(function):
    """First- or second-order influence function of plain arrays."""
    call = lambda y, a, e, t1, t0, w1, w0, epsilon: function(
        y, a, e, ste.ConditionalLaw(t1, t0, w1, w0), epsilon=epsilon
    )
    return call


def simulated(kind):
    return lambda key, theta: ste.simulate_gaussian(key, 20, theta, kind)


def report(y, a, x):
    return ste.estimate(treatment=a, outcome=y, covariates=x, num_null=99)


BAD_EVALUATION = (
    Bad("third arm", {1: scaled(2)}, "treatment: expected only 0 and 1, got 2"),
    Bad("empty arm", {1: one_arm}, r"treatment: expected both arms, got only 1 \(one arm is empty"),
    Bad("arm lengths", {1: all_but_one}, r"treatment: expected shape \(16\), got \(15,\)"),
    Bad("NaN", {0: with_nan}, r"outcome: expected finite values, got 1 NaN or infinite \(rows 0\)"),
    Bad("inf", {0: entry(3, np.inf)}, r"outcome: expected finite .* \(rows 3\)"),
    Bad("vector", {0: vector}, r"outcome: expected shape \(any, any\), got \(16,\)"),
    Bad("e = 1", {2: entry(0, 1)}, "propensity: expected values strictly between 0"),
    Bad("e = 0", {2: entry(0, 0)}, "propensity: expected values strictly between 0"),
    Bad("e NaN", {2: entry(0, np.nan)}, "propensity: expected values strictly"),
    Bad("e shape", {2: matrix}, r"propensity: expected shape \(16\), got \(16, 1\)"),
    Bad("atoms", {3: first_column}, r"law.atoms1: expected shape \(any, 2\), got \(7, 1\)"),
    Bad("NaN atom", {4: with_nan}, "law.atoms0: expected finite values, got 1 NaN"),
    Bad("sum", {5: scaled(1.001)}, "law.weights1: expected rows that sum to 1, got a sum of"),
    Bad("negative", {6: negative(2)}, r"law.weights0: .*non-negative.*rows 2"),
    Bad("NaN weight", {5: with_nan}, "law.weights1: expected"),
    Bad("columns", {6: other_columns}, r"law.weights0: expected shape \(16, 6\), got \(16, 5"),
    Bad("rows", {5: all_but_one}, r"law.weights1: expected shape \(16, 7\), got \(15, 7\)"),
)


def bad_numbers(name, position):
    return tuple(
        Bad(f"{name} = {value}", {position: np.array(value)}, f"{name}: expected a finite number")
        for value in (0.0, -1.0, np.nan, np.inf)
    )


def bad_levels(name, position):
    return tuple(
        Bad(f"{name} = {value}", {position: np.array(value)}, f"{name}: expected values strictly")
        for value in (0.0, 1.0, -0.1, np.nan)
    )


def bad_grids(position):
    grid = lambda *values: {position: np.array(values)}
    return (
        Bad("empty grid", grid(), "epsilons: expected at least one value, got none"),
        Bad("duplicate", grid(1.0, 2.0, 1.0), "epsilons: expected distinct values, got 1 twice"),
        Bad("zero in grid", grid(0.0, 1.0), "epsilons: expected a finite number above 0"),
        Bad("NaN in grid", grid(np.nan, 1.0), "epsilons: expected a finite number above 0"),
        Bad("one number", {position: np.array(1.0)}, r"epsilons: expected shape \(any\), got \(\)"),
    )


ESTIMATOR_ROWS = [
    Row(
        NAME + "sinkhorn_treatment_effect",
        treatment_effect,
        with_numbers(1.5, 0.1),
        random=True,
        vmap=tuple(range(9)),
        grad=(3, 4, 5, 6),
        slow=True,
        bad=(*BAD_EVALUATION, *bad_numbers("epsilon", 7), *bad_levels("alpha", 8)),
        also=(NAME + "EffectResult",),
    ),
    Row(
        NAME + "sinkhorn_effect_aggregated",
        aggregated,
        with_numbers([1.0, 3.0], 0.1, 0.2),
        random=True,
        vmap=tuple(range(10)),
        grad=(3, 4, 5, 6),
        slow=True,
        bad=(
            *BAD_EVALUATION,
            *bad_grids(7),
            *bad_levels("alpha", 8),
            *bad_levels("beta", 9),
        ),
        also=(NAME + "AggResult",),
    ),
    Row(
        NAME + "cross_fit",
        cross_fit,
        trial,
        random=True,
        vmap=(0, 1, 2, 3, 4),
        slow=True,
        bad=(
            Bad("NaN in x", {0: with_nan}, "x: expected finite values"),
            Bad("vector x", {0: vector}, r"x: expected shape \(any, any\), got \(16,\)"),
            Bad("rows", {0: all_but_one}, "x: expected equal numbers of rows, got x has 15"),
            Bad("third arm", {1: scaled(2)}, "treatment: expected only 0 and 1, got 2"),
            Bad("no arm", {1: one_arm}, "treatment: expected both arms, got only 1"),
            Bad("one treated", {1: np.eye(16)[0]}, r"treatment \(in .* fold\): expected both arms"),
            Bad("NaN in y", {2: with_nan}, "outcome: expected finite values"),
            *bad_grids(3),
            *bad_levels("alpha", 4),
        ),
    ),
    Row(
        NAME + "epsilon_grid",
        ste.epsilon_grid,
        lambda rng: (rng.normal(size=(8, 2)),),
        vmap=(0,),
        grad=(0,),
    ),
    Row(
        NAME + "median_cost",
        ste.median_cost,
        lambda rng: (rng.normal(size=(8, 2)),),
        vmap=(0,),
        grad=(0,),
    ),
]

PIECE_ROWS = [
    Row(
        NAME + "sinkhorn_divergence",
        lambda x, y, a, b, epsilon: ste.sinkhorn_divergence(x, y, a, b, epsilon=epsilon),
        measures,
        vmap=(0, 1, 2, 3, 4),
        grad=(0, 1, 2, 3),
        bad=(
            Bad("NaN", {0: with_nan}, "x: expected finite values, got 1 NaN"),
            Bad("dimension", {1: first_column}, r"y: expected shape \(any, 2\), got \(7, 1"),
            Bad("length", {2: all_but_one}, r"a: expected shape \(9\), got \(8,\)"),
            Bad("sum", {2: scaled(0.99)}, "a: expected rows that sum to 1, got a sum of"),
            Bad("negative", {3: negative(0)}, "b: expected non-negative"),
            *bad_numbers("epsilon", 4),
        ),
        also=(NAME + "SinkhornPotentials",),
    ),
    Row(
        NAME + "hadamard_kernel",
        lambda t, mu, q, epsilon: ste.hadamard_kernel(t, mu, q, t, epsilon=epsilon),
        lambda rng: (
            rng.normal(size=(8, 2)),
            rng.dirichlet(np.full(8, 5.0)),
            rng.normal(size=(3, 2)) / 2,
            np.array(1.5),
        ),
        vmap=(0, 1, 2, 3),
        bad=(
            Bad("NaN", {0: with_nan}, "atoms: expected finite values"),
            Bad("weights", {1: all_but_one}, r"mu: expected shape \(8\), got \(7,\)"),
            Bad("sum", {1: scaled(2)}, "mu: expected rows that sum to 1, got a sum of 2"),
            Bad("query", {2: first_column}, r"query_a: expected shape \(any, 2\), got \(3, 1"),
            Bad("NaN query", {2: with_nan}, "query_a: expected finite values"),
            *bad_numbers("epsilon", 3),
        ),
    ),
    Row(
        NAME + "first_order_eif",
        eif(ste.first_order_eif),
        with_numbers(1.5),
        vmap=tuple(range(8)),
        bad=(*BAD_EVALUATION, *bad_numbers("epsilon", 7)),
    ),
    Row(
        NAME + "second_order_eif",
        eif(ste.second_order_eif),
        with_numbers(1.5),
        vmap=tuple(range(8)),
        bad=(*BAD_EVALUATION, *bad_numbers("epsilon", 7)),
    ),
]

DATA_ROWS = [
    *(
        Row(
            NAME + "simulate_gaussian",
            simulated(kind),
            lambda rng: (np.array(rng.uniform(0.2, 1)),),
            random=True,
            vmap=(0,),
            bad=(Bad("NaN", {0: np.nan}, "theta: expected finite values"),),
            also=(NAME + "Sample",),
        )
        for kind in ("mean", "cov", "bimodal")
    ),
    Row(
        NAME + "simulate_image_trial",
        lambda key, theta, *pools: ste.simulate_image_trial(key, 20, theta, *pools),
        lambda rng: (np.array(rng.normal()), rng.normal(size=(5, 3)), rng.normal(size=(6, 3))),
        random=True,
        vmap=(0, 1, 2),
        bad=(
            Bad("NaN", {1: with_nan}, "pool0: expected finite values"),
            Bad("width", {2: other_columns}, r"pool1: expected shape \(any, 3\)"),
            Bad("empty", {1: np.ones((0, 3))}, "pool0: expected at least 1 rows, got 0"),
        ),
    ),
    Row(
        NAME + "digits_pools",
        ste.digits_pools,
        lambda rng: (4,),
        host=True,
        bad=(Bad("none", {0: 0}, "num_components: expected a whole number of at least 1"),),
    ),
    Row(
        NAME + "load_pcam",
        lambda path, split: ste.load_pcam(path, split=split),
        lambda rng: ("nowhere", "test"),
        host=True,
        bad=(Bad("split", {1: "dev"}, "split: expected one of .*, got 'dev'"),),
    ),
    Row(
        NAME + "gaussian_sinkhorn_divergence",
        lambda *laws: ste.gaussian_sinkhorn_divergence(*laws, epsilon=1.5),
        lambda rng: (
            rng.normal(size=2),
            np.diag(rng.uniform(1, 2, 2)),
            rng.normal(size=2),
            np.diag(rng.uniform(1, 2, 2)),
        ),
        vmap=(0, 1, 2, 3),
        grad=(0, 1, 2, 3),
        bad=(
            Bad("NaN", {0: entry(0, np.nan)}, "mean1: expected finite values"),
            Bad("shape", {1: np.ones((2, 3))}, r"cov1: expected shape \(2, 2\), got \(2, 3\)"),
            Bad("indefinite", {3: np.diag([1.0, -1.0])}, "cov0: expected a positive"),
        ),
    ),
    Row(
        NAME + "bimodal_curve",
        lambda thetas: ste.bimodal_curve(thetas, epsilon=1.0, num_points=60),
        lambda rng: (rng.uniform(0, 2, 2),),
        vmap=(0,),
        slow=True,
        bad=(
            Bad("NaN", {0: np.array([np.nan])}, "thetas: expected finite values"),
            Bad("none", {0: np.ones(0)}, "thetas: expected at least 1 rows, got 0"),
            Bad("number", {0: np.array(1.0)}, r"thetas: expected shape \(any\), got \(\)"),
        ),
    ),
    Row(
        NAME + "estimate",
        report,
        lambda rng: (rng.normal(size=40), np.arange(40) % 2, rng.normal(size=40)),
        host=True,
        bad=(
            Bad("third arm", {1: np.arange(40) % 3}, "treatment.*expected only 0 and 1, got 2"),
            Bad("NaN", {2: np.full(40, np.nan)}, "covariate.*missing"),
            Bad("lengths", {0: np.ones(39)}, "expected equal numbers of rows"),
        ),
        also=(NAME + "EffectReport",),
    ),
]

ROWS = [*ESTIMATOR_ROWS, *PIECE_ROWS, *NUISANCE_ROWS, *DATA_ROWS]
