"""The comparison methods once more in NumPy, by loops over observations and pairs."""

import itertools

import numpy as np

from tests.methods.sinkhorn_effect.cases import as_numpy


def doubly_robust_scores(case):
    y, a, e, t1, t0, w1, w0 = as_numpy(case)
    scores = []
    for i in range(len(y)):
        m1, m0 = w1[i] @ t1, w0[i] @ t0
        residual = (y[i] - m1) / e[i] if a[i] == 1 else -(y[i] - m0) / (1 - e[i])
        scores.append(m1 - m0 + residual)
    return np.array(scores)


def gauss(x, y, epsilon):
    return np.exp(-((x - y) ** 2).sum() / (2 * epsilon))


def kernel_matrix(points, epsilon):
    return np.array([[gauss(x, y, epsilon) for y in points] for x in points])


def signed_measures(case):
    """Union support [y; t1; t0], P̂₁ − P̂₀ on it, and the row of each observation less P̂₁ − P̂₀."""
    y, a, e, t1, t0, w1, w0 = as_numpy(case)
    n = len(y)
    difference = np.concatenate([np.zeros(n), w1.mean(0), -w0.mean(0)])
    rows = []
    for i in range(n):
        dirac = np.eye(n)[i]
        one = np.concatenate([a[i] / e[i] * dirac, (1 - a[i] / e[i]) * w1[i], 0 * w0[i]])
        ratio = (1 - a[i]) / (1 - e[i])
        zero = np.concatenate([ratio * dirac, 0 * w1[i], (1 - ratio) * w0[i]])
        rows.append(one - zero - difference)
    return np.vstack([y, t1, t0]), difference, np.array(rows)


def ipw_mmd(y, a, e, epsilon):
    """Weighted means of the kernel over pairs of different rows; 1 without pairs."""
    weights = {1: a / e, 0: (1 - a) / (1 - e)}

    def mean(first, second):
        u, v = weights[first], weights[second]
        total = mass = 0.0
        for i, j in itertools.permutations(range(len(y)), 2):
            total += u[i] * v[j] * gauss(y[i], y[j], epsilon)
            mass += u[i] * v[j]
        return total / mass if mass > 0 else 1.0

    return mean(1, 1) + mean(0, 0) - 2 * mean(1, 0)
