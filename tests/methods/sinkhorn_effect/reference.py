"""The formulas of the paper once more in NumPy: loops to convergence, dense solves.

Nothing of the library is used. The Hessian kernel is built from the operator A = ξ μ and the
deflated matrix D = I − A² + 1 μᵀ, not from its symmetric scaling.
"""

import numpy as np
from scipy.special import logsumexp


def cost(x, y):
    """½‖x − y‖²."""
    return ((x[:, None, :] - y[None, :, :]) ** 2).sum(-1) / 2


def log(w):
    with np.errstate(divide="ignore"):
        return np.log(w)


def softmin(exponent, c, epsilon):
    return -epsilon * logsumexp(exponent[None, :] - c / epsilon, axis=1)


def cross(c, a, b, epsilon, tol=1e-13, limit=200_000):
    """Alternating updates to convergence; potentials at every atom."""
    g = np.zeros(len(b))
    for _ in range(limit):
        f = softmin(log(b) + g / epsilon, c, epsilon)
        g_next = softmin(log(a) + f / epsilon, c.T, epsilon)
        if np.abs(g_next - g).max() < tol * epsilon:
            break
        g = g_next
    return f, g


def symmetric(c, a, epsilon, tol=1e-14, limit=10_000):
    f = np.zeros(len(a))
    for _ in range(limit):
        f_next = (f + softmin(log(a) + f / epsilon, c, epsilon)) / 2
        if np.abs(f_next - f).max() < tol * epsilon:
            break
        f = f_next
    return f


def divergence(t, p, q, epsilon):
    """S_ε of two weight vectors on the same atoms, from primal-dual values."""
    x, y, p, q = t[p != 0], t[q != 0], p[p != 0], q[q != 0]
    f, g = cross(cost(x, y), p, q, epsilon)
    f1, f0 = symmetric(cost(x, x), p, epsilon), symmetric(cost(y, y), q, epsilon)
    return p @ f + q @ g - p @ f1 - q @ f0


def signed_directions(treatment, propensity, weights1, weights0):
    """Arm-1 and arm-0 parts of the rows of L over [outcomes; atoms1] and [outcomes; atoms0]."""
    r1, r0 = treatment / propensity, (1 - treatment) / (1 - propensity)
    rows1 = np.hstack([np.diag(r1), (1 - r1)[:, None] * weights1 - weights1.mean(0)])
    rows0 = np.hstack([np.diag(r0), (1 - r0)[:, None] * weights0 - weights0.mean(0)])
    return rows1, rows0


def extrapolated(quotient, h):
    """The limit at zero of a quotient with a power series in h, from two steps on one side."""
    return 2 * quotient(h / 2) - quotient(h)


def first_order(y, a, e, t, w, epsilon):
    """I1 by Algorithm 1, written with loops over arms: atoms `t[arm]` and rows `w[arm]`."""
    p = {arm: w[arm].mean(0) for arm in (0, 1)}
    f, g = cross(cost(t[1], t[0]), p[1], p[0], epsilon)
    dual = {1: g, 0: f}

    def centred(arm, points):
        own = symmetric(cost(t[arm], t[arm]), p[arm], epsilon)
        other = softmin(log(p[1 - arm]) + dual[arm] / epsilon, cost(points, t[1 - arm]), epsilon)
        return other - softmin(log(p[arm]) + own / epsilon, cost(points, t[arm]), epsilon)

    m = {arm: w[arm] @ centred(arm, t[arm]) for arm in (0, 1)}
    scores = a / e * (centred(1, y) - m[1]) + (1 - a) / (1 - e) * (centred(0, y) - m[0])
    return scores + m[1] + m[0] - (m[1] + m[0]).mean()


def hadamard_kernel(t, mu, epsilon):
    """k on the atoms: ε D⁻¹ (ξ − 1) with D = I − A² + 1 μᵀ."""
    f = symmetric(cost(t, t), mu, epsilon)
    xi = np.exp((f[:, None] + f[None, :] - cost(t, t)) / epsilon)
    a = xi * mu[None, :]
    deflated = np.eye(len(mu)) - a @ a + mu[None, :]
    return epsilon * np.linalg.solve(deflated, xi - 1)
