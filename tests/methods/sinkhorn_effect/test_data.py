"""Simulators against their definition, pools against scikit-learn, readers on hand-made files."""

import functools
import pickle
import sys

import chex
import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.datasets
import sklearn.decomposition
import sklearn.linear_model
import sklearn.preprocessing

from jaxicml.methods.sinkhorn_effect import data
from jaxicml.methods.sinkhorn_effect.exact import gaussian_sinkhorn_divergence

N = 40_000
SIGMA = np.array(data.DEFAULT_SIGMA)
COV = np.diag([1.0, -1.0])
"""u vᵀ + v uᵀ for the default Σ, whose eigenvectors are (1, ±1)/√2."""


def gaussian(kind, theta, seed=0, sigma=None, **options):
    sample = data.sample_gaussian(
        jax.random.key(seed), N, data.gaussian_law(theta, kind, sigma), **options
    )
    return jax.tree.map(np.asarray, sample)


def within(samples, expected, deviations=5):
    """The mean of the rows lies within so many standard errors of what is expected."""
    error = samples.std(0, ddof=1) / np.sqrt(len(samples))
    np.testing.assert_array_less(np.abs(samples.mean(0) - expected), deviations * error + 1e-12)


def products(y):
    """y yᵀ of each row: its mean is the second moment."""
    return y[:, :, None] * y[:, None, :]


@pytest.mark.parametrize("kind", data.KINDS)
def test_covariates_and_untreated_outcomes(kind, x64):
    x, a, y = gaussian(kind, 0.8)
    assert x.shape == (N, 3)
    within(x, np.zeros(3))
    within(products(x), np.eye(3))
    within(y[a == 0], np.zeros(2))
    within(products(y[a == 0]), np.eye(2) if kind == "bimodal" else SIGMA)
    assert set(np.unique(a)) == {0, 1}


@pytest.mark.parametrize(
    ("kind", "theta", "mean", "second"),
    [
        ("mean", 0.9, [0.9, 0.9], SIGMA + 0.81),
        ("cov", 1.2, [0, 0], SIGMA + 1.2 * COV),
        ("cov", -0.7, [0, 0], SIGMA - 0.7 * COV),
        ("bimodal", 1.5, [0, 0], np.eye(2) + 2.25),
    ],
)
def test_treated_outcomes(kind, theta, mean, second, x64):
    _, a, y = gaussian(kind, theta)
    within(y[a == 1], np.array(mean))
    within(products(y[a == 1]), second)


def test_modes_of_the_bimodal_outcome(x64):
    _, a, y = gaussian("bimodal", 4.0)
    treated = y[a == 1]
    upper = treated.sum(1) > 0
    within(upper.astype(float), 0.5)
    for part, centre in ((upper, 4.0), (~upper, -4.0)):
        within(treated[part], np.full(2, centre))
        within(products(treated[part] - centre), np.eye(2))


@pytest.mark.parametrize("overlap", [1.0, 0.5, 0.0])
def test_propensity(overlap, x64):
    x, a, _ = gaussian("mean", 1.0, overlap=overlap)
    fit = sklearn.linear_model.LogisticRegression(C=np.inf).fit(x, a)
    # the information of N observations allows errors of about 0.015
    np.testing.assert_allclose(fit.coef_[0], np.full(3, overlap), atol=0.06)
    np.testing.assert_allclose(fit.intercept_, 0, atol=0.06)


def test_without_confounding_the_outcome_ignores_covariates_given_treatment(x64):
    x, a, y = gaussian("mean", 1.0)
    for arm in (0, 1):
        residual = y[a == arm] - y[a == arm].mean(0)
        centred = x[a == arm] - x[a == arm].mean(0)
        within(residual[:, :, None] * centred[:, None, :], np.zeros((2, 3)))


exact_divergence = jax.jit(functools.partial(gaussian_sinkhorn_divergence, epsilon=1.3))


@pytest.mark.parametrize("confounding", [1.0, 2.0])
def test_confounding_leaves_the_effect_exactly(confounding, x64):
    """Weighted by the true propensity, both counterfactual laws have their stated moments."""
    theta = 1.6
    x, a, y = gaussian("mean", theta, confounding=confounding, overlap=0.5)
    e = 1 / (1 + np.exp(-0.5 * x.sum(1)))
    second = SIGMA + confounding**2
    for arm, chance in ((1, e), (0, 1 - e)):
        weight = ((a == arm) / chance)[:, None]
        within(weight * (y - arm * theta), np.zeros(2))
        within(weight[..., None] * products(y - arm * theta), second)
    # the difference of raw means is not the effect
    assert (y[a == 1].mean(0) - y[a == 0].mean(0) > theta + 0.3 * confounding).all()
    exact = exact_divergence(np.full(2, theta), second, np.zeros(2), second)
    np.testing.assert_allclose(exact, theta**2, rtol=1e-12)


def test_confounding_enters_along_the_mean_covariate(x64):
    x, _, y = gaussian("mean", 0.0, confounding=2.0)
    plain = gaussian("mean", 0.0).y
    added = 2 * x.sum(1, keepdims=True) / np.sqrt(3)
    np.testing.assert_allclose(y - plain, np.broadcast_to(added, y.shape), atol=1e-12)


@pytest.mark.slow
def test_sigma_of_another_size(x64):
    sigma = np.diag([1.0, 2.0, 4.0])
    _, a, y = gaussian("cov", 1.5, sigma=jnp.array(sigma))
    within(products(y[a == 0]), sigma)
    swap = np.zeros((3, 3))
    swap[0, 2] = swap[2, 0] = 1.5
    within(products(y[a == 1]), sigma + swap)
    _, a, y = gaussian("bimodal", 1.0, sigma=jnp.array(sigma))
    within(products(y[a == 1]), np.eye(3) + 1)


def test_laws_are_arrays_so_that_one_program_serves_all_kinds(x64):
    chex.clear_trace_counter()
    one = jax.jit(chex.assert_max_traces(lambda key, law: data.sample_gaussian(key, N, law), n=1))
    for kind in data.KINDS:
        one.trace(jax.random.key(3), data.gaussian_law(0.7, kind))
        sample = data.simulate_gaussian(jax.random.key(3), N, 0.7, kind)
        for ours, mine in zip(sample, gaussian(kind, 0.7, seed=3), strict=True):
            np.testing.assert_array_equal(ours, mine)


@pytest.mark.slow
def test_strength_may_be_traced_and_mapped(x64):
    simulate = lambda theta: data.simulate_gaussian(jax.random.key(0), N, theta, "cov")
    thetas = np.array([0.0, 1.4, 1.5])
    mapped = jax.tree.map(np.asarray, jax.jit(jax.vmap(simulate))(thetas))
    for i, theta in enumerate((0.0, 1.4)):
        chex.assert_trees_all_close(jax.tree.map(lambda v, i=i: v[i], mapped), simulate(theta))
    # not positive definite: known only inside the program
    treated = mapped.a[2] == 1
    assert np.isnan(mapped.y[2][treated]).any()


@pytest.mark.parametrize("wide", [False, True])
def test_floats_have_the_default_type(wide):
    simulate = lambda: data.simulate_gaussian(jax.random.key(0), N, 0.9, "mean", confounding=1.0)
    with jax.enable_x64(wide):
        sample = jax.eval_shape(simulate)
        assert {leaf.dtype for leaf in sample} == {jnp.dtype(float if wide else "float32")}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 0}, "n: expected a whole number of at least 1, got 0"),
        ({"n": 2.5}, r"n: expected a whole number of at least 1, got 2\.5"),
        ({"kind": "median"}, r"kind: expected one of \['mean', 'cov', 'bimodal'\], got 'median'"),
        ({"theta": np.nan}, "theta: expected finite values"),
        ({"theta": np.ones(2)}, r"theta: expected shape \(\), got \(2,\)"),
        ({"kind": "cov", "theta": 1.47}, r"\|theta\|: expected a number below 1\.47, got 1\.47"),
        ({"kind": "cov", "theta": -2.0}, r"\|theta\|: expected a number below 1\.47, got 2\.0"),
        ({"confounding": np.inf}, "confounding: expected finite values"),
        ({"overlap": np.nan}, "overlap: expected finite values"),
        ({"sigma": np.ones(2)}, r"sigma: expected shape \(2, 2\), got \(2,\)"),
        ({"sigma": np.array([[1.0, 2.0], [2.0, 1.0]])}, "sigma: expected a positive definite"),
        ({"sigma": np.eye(1), "kind": "cov"}, "sigma: expected at least 2 rows, got 1"),
    ],
)
def test_gaussian_bad_input(change, message, as_user):
    args = {"n": 5, "theta": 0.5, "kind": "mean"} | change
    with pytest.raises(ValueError, match=message):
        data.simulate_gaussian(jax.random.key(0), **args)


def test_the_largest_strength_still_works(x64):
    assert np.isfinite(gaussian("cov", 1.469).y).all()


HEALTHY = jnp.array([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
SICK = jnp.array([[1.0, 0.0], [1.0, 1.0]])


def images(theta, seed=0, **options):
    sample = data.simulate_image_trial(jax.random.key(seed), N, theta, HEALTHY, SICK, **options)
    return jax.tree.map(np.asarray, sample)


def expit(t):
    return 1 / (1 + np.exp(-t))


@pytest.mark.slow
@pytest.mark.parametrize("theta", [-20.0, 0.4, 20.0])
def test_share_of_sick_images(theta):
    x, a, y = images(theta)
    assert x.shape == (N, 5)
    total = x.sum(1)
    sick = expit(0.5 * total)
    chance = np.where(a == 1, sick * (1 - expit(theta + 0.01 * total)), sick)
    within(y[:, 0] - chance, 0.0)
    for arm in (0, 1):
        within((y[:, 0] - chance)[a == arm], 0.0)
    within(a - expit(0.5 * total), 0.0)


@pytest.mark.slow
def test_images_are_drawn_evenly_from_their_pool():
    _, _, y = images(0.0)
    for label, size in ((0, 3), (1, 2)):
        shown = y[y[:, 0] == label, 1]
        for image in range(size):
            within((shown == image).astype(float), 1 / size)


@pytest.mark.slow
def test_slopes_and_intercepts_of_sickness_and_treatment():
    slopes = np.array([1.0, -0.5, 0.0, 0.2, 0.0], "float32")
    options = {"pi1": jnp.asarray(slopes), "gamma1": jnp.asarray(-slopes)}
    x, a, y = images(-30.0, pi0=0.3, gamma0=-0.2, **options)
    for target, intercept, slope in ((y[:, 0], 0.3, slopes), (a, -0.2, -slopes)):
        fit = sklearn.linear_model.LogisticRegression(C=np.inf).fit(x, target)
        np.testing.assert_allclose(fit.intercept_, intercept, atol=0.06)
        np.testing.assert_allclose(fit.coef_[0], slope, atol=0.06)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 0}, "n: expected a whole number of at least 1"),
        ({"p": 0}, "p: expected a whole number of at least 1"),
        ({"theta": np.nan}, "theta: expected finite values"),
        ({"pool0": np.ones(3)}, r"pool0: expected shape \(any, any\), got \(3,\)"),
        ({"pool1": np.ones((3, 4))}, r"pool1: expected shape \(any, 2\), got \(3, 4\)"),
        ({"pool1": np.ones((0, 2))}, "pool1: expected at least 1 rows, got 0"),
        ({"pool0": np.full((3, 2), np.nan)}, "pool0: expected finite values"),
        ({"pi1": np.ones(3)}, r"pi1: expected shape \(5\), got \(3,\)"),
        ({"gamma1": np.inf}, "gamma1: expected finite values"),
    ],
)
def test_images_bad_input(change, message, as_user):
    args = {"n": 5, "theta": 0.0, "pool0": HEALTHY, "pool1": SICK} | change
    args = {k: jnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in args.items()}
    with pytest.raises(ValueError, match=message):
        data.simulate_image_trial(jax.random.key(0), **args)


def by_sklearn(table, count):
    standard = sklearn.preprocessing.StandardScaler().fit_transform(table)
    return sklearn.decomposition.PCA(count, svd_solver="full").fit_transform(standard)


def same_up_to_sign(ours, theirs):
    signs = np.sign((ours * theirs).sum(0))
    np.testing.assert_allclose(ours, theirs * signs, atol=1e-8)


def test_digits_are_threes_and_eights_in_their_principal_components():
    pool0, pool1 = data.digits_pools()
    assert (pool0.shape, pool1.shape) == ((183, 10), (174, 10))
    table, labels = sklearn.datasets.load_digits(return_X_y=True)
    chosen = np.isin(labels, (3, 8))
    theirs = by_sklearn(table[chosen], 10)
    ours = np.empty_like(theirs)
    ours[labels[chosen] == 3], ours[labels[chosen] == 8] = pool0, pool1
    same_up_to_sign(ours, theirs)


@pytest.mark.parametrize("shape", [(40, 6), (5, 9)])
def test_principal_components_equal_those_of_sklearn(shape):
    table = np.random.default_rng(0).normal(size=shape) * np.arange(1, shape[1] + 1)
    ours = data.principal_components(np.hstack([table, np.full((shape[0], 1), 3.0)]), 3)
    same_up_to_sign(ours, by_sklearn(table, 3))
    np.testing.assert_allclose(data.principal_components(table[:, ::-1], 3), ours, atol=1e-8)


@pytest.mark.parametrize(
    ("table", "count", "message"),
    [
        (np.ones(3), 1, r"table: expected shape \(any, any\)"),
        (np.ones((0, 3)), 1, "table: expected at least 1 rows"),
        (np.array([[0.0, np.nan], [1, 2]]), 1, "table: expected finite values"),
        (np.eye(3), 4, "num_components: expected a whole number of at least 1 and at most 3"),
        (np.ones((3, 2)), 1, "num_components: expected a whole number of at least 1 and at most 0"),
    ],
)
def test_principal_components_bad_input(table, count, message, as_user):
    with pytest.raises(ValueError, match=message):
        data.principal_components(table, count)


rng = np.random.default_rng(7)
PATCHES = rng.integers(0, 256, (20, 96, 96, 3), dtype=np.uint8)
LABELS = np.arange(20, dtype=np.uint8) % 3 % 2


def pcam(folder, patches=PATCHES, labels=LABELS, split="test", keys=("x", "y")):
    """The published pair of files, small."""
    labels = np.asarray(labels).reshape(-1, 1, 1, 1)
    for letter, key, content in zip("xy", keys, (patches, labels), strict=True):
        with h5py.File(folder / f"camelyonpatch_level_2_split_{split}_{letter}.h5", "w") as file:
            file[key] = content
    return folder


load = functools.partial(data.load_pcam, split="test", num_components=4)


@pytest.mark.parametrize("batch_size", [512, 7])
def test_pcam_patches_become_components_of_block_means(batch_size, tmp_path):
    pool0, pool1 = load(pcam(tmp_path), batch_size=batch_size)
    means = np.array(
        [
            [
                [image[8 * i : 8 * i + 8, 8 * j : 8 * j + 8, c].mean() for c in range(3)]
                for i in range(12)
                for j in range(12)
            ]
            for image in PATCHES
        ]
    ).reshape(20, -1)
    theirs = by_sklearn(means, 4)
    same_up_to_sign(
        np.vstack([pool0, pool1]), np.vstack([theirs[LABELS == 0], theirs[LABELS == 1]])
    )
    assert (len(pool0), len(pool1)) == ((LABELS == 0).sum(), (LABELS == 1).sum())


def test_pcam_with_an_embedding_of_ones_own_and_fewer_images(tmp_path):
    seen = []

    def embed(batch):
        seen.append(batch.shape)
        return jnp.asarray(batch.astype(float).reshape(len(batch), -1)[:, ::997])

    pool0, pool1 = load(pcam(tmp_path), embed=embed, max_images=12, batch_size=5)
    assert seen == [(5, 96, 96, 3), (5, 96, 96, 3), (2, 96, 96, 3)]
    theirs = by_sklearn(PATCHES[:12].reshape(12, -1)[:, ::997].astype(float), 4)
    chosen = LABELS[:12]
    same_up_to_sign(
        np.vstack([pool0, pool1]), np.vstack([theirs[chosen == 0], theirs[chosen == 1]])
    )


def embeddings(folder, table, labels):
    np.save(folder / "resnet.npy", table)
    np.save(folder / "resnet_labels.npy", labels)
    return folder / "resnet.npy"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pcam_embeddings(dtype, tmp_path):
    table = rng.normal(size=(30, 8)).astype(dtype)
    labels = np.arange(30) % 2
    pool0, pool1 = load(embeddings(tmp_path, table, labels))
    theirs = by_sklearn(table.astype(float), 4)
    same_up_to_sign(np.vstack([pool0, pool1]), np.vstack([theirs[::2], theirs[1::2]]))
    assert len(load(tmp_path / "resnet.npy", max_images=10)[0]) == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": ("images", "y")}, "key: expected one of images, got 'x'"),
        (
            {"patches": PATCHES[..., 0]},
            r"x: expected shape \(any, any, any, 3\), got \(20, 96, 96\)",
        ),
        ({"patches": PATCHES.astype(float)}, "x: expected uint8 pixels, got float64"),
        ({"labels": LABELS[:3]}, r"y: expected shape \(20, 1, 1, 1\), got \(3, 1, 1, 1\)"),
        ({"labels": np.arange(20)}, "labels: expected only 0 and 1"),
        ({"labels": np.zeros(20)}, "labels: expected both arms"),
    ],
)
def test_pcam_bad_files(change, message, tmp_path, as_user):
    with pytest.raises(ValueError, match=message):
        load(pcam(tmp_path, **change))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "dev"}, "split: expected one of"),
        ({"max_images": 0}, "max_images: expected a whole number of at least 2, got 0"),
        ({"batch_size": 0}, "batch_size: expected a whole number of at least 1"),
        ({"num_components": 999}, "num_components: expected a whole number .* at most 20"),
        (
            {"embed": lambda batch: np.ones(len(batch))},
            r"embed\(images\): expected shape \(20, any",
        ),
    ],
)
def test_pcam_options(options, message, tmp_path, as_user):
    with pytest.raises(ValueError, match=message):
        load(pcam(tmp_path), **options)


def test_pcam_missing_or_other_files(tmp_path, as_user):
    with pytest.raises(FileNotFoundError, match=r"camelyonpatch_level_2_split_valid_x\.h5"):
        data.load_pcam(tmp_path, split="valid")
    pcam(tmp_path)
    (tmp_path / "camelyonpatch_level_2_split_test_y.h5").write_bytes(b"no HDF5 at all")
    with pytest.raises(ValueError, match=r"_test_y\.h5: expected an HDF5 file"):
        load(tmp_path)


@pytest.mark.parametrize("trick", ["external link", "soft link", "external storage", "virtual"])
def test_pcam_data_must_lie_in_the_file(trick, tmp_path, as_user):
    other = pcam(tmp_path, split="train") / "camelyonpatch_level_2_split_train_x.h5"
    raw = tmp_path / "raw"
    raw.write_bytes(PATCHES.tobytes())
    pcam(tmp_path)
    with h5py.File(tmp_path / "camelyonpatch_level_2_split_test_x.h5", "w") as file:
        if trick == "external link":
            file["x"] = h5py.ExternalLink(str(other), "x")
        elif trick == "soft link":
            file["x"] = h5py.SoftLink("/elsewhere")
        elif trick == "external storage":
            stored = [(str(raw), 0, PATCHES.nbytes)]
            file.create_dataset("x", PATCHES.shape, PATCHES.dtype, external=stored)
        else:
            layout = h5py.VirtualLayout(PATCHES.shape, PATCHES.dtype)
            layout[:] = h5py.VirtualSource(str(other), "x", PATCHES.shape, PATCHES.dtype)
            file.create_virtual_dataset("x", layout)
    with pytest.raises(ValueError, match="x: expected a data set within the file"):
        load(tmp_path)


def test_pcam_without_h5py(tmp_path, monkeypatch):
    pcam(tmp_path)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r'h5py is not installed: pip install "jaxicml\[data\]"'):
        load(tmp_path)


@pytest.mark.parametrize(
    ("table", "labels", "message"),
    [
        (np.ones(4), np.ones(4), r"embeddings: expected shape \(any, any\), got \(4,\)"),
        (np.ones((4, 2), int), np.ones(4), "embeddings: expected floating point numbers, got int"),
        (np.ones((4, 2)), np.ones(3), r"labels: expected shape \(4\), got \(3,\)"),
        (np.full((4, 2), np.nan), np.arange(4) % 2, "table: expected finite values"),
        (np.array([[print, print]], object), np.ones(1), r"resnet\.npy: expected an array in .npy"),
    ],
)
def test_pcam_bad_embeddings(table, labels, message, tmp_path, as_user):
    with pytest.raises(ValueError, match=message):
        load(embeddings(tmp_path, table, labels))


class Bomb:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", pickle.dumps(Bomb())])
def test_pcam_embeddings_that_are_no_arrays(content, tmp_path, as_user, capsys):
    path = embeddings(tmp_path, np.ones((4, 2)), np.arange(4) % 2)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"resnet\.npy: expected an array in \.npy format"):
        load(path)
    assert capsys.readouterr().out == ""


def test_pcam_sizes_are_bounded_before_reading(tmp_path, as_user):
    shape = (1 << 22, 512)
    with (tmp_path / "resnet.npy").open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 4 * shape[0] * shape[1])  # sparse: takes no room
    np.save(tmp_path / "resnet_labels.npy", np.zeros(shape[0], np.uint8))
    with pytest.raises(ValueError, match=r"embeddings: expected at most 4 GiB .*, got 16 GiB"):
        load(tmp_path / "resnet.npy")
