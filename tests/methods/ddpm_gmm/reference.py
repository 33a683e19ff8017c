"""DDPM's law on the line once more, in plain NumPy with dense kernel matrices."""

import numpy as np

THREE_WEIGHTS, THREE_MEANS, SIGMA2 = np.array([0.3, 0.5, 0.2]), np.array([-3.0, 0.5, 3.0]), 0.25


def theory_betas(T, c0=2.0, c1=4.0):
    rate = c1 * np.log(T) / T
    first = T**-c0
    later = rate * np.minimum(first * (1 + rate) ** np.arange(1, T), 1)
    return np.minimum(np.concatenate([[first], later]), 1 - 1e-4)


def marginals(T):
    """β, ᾱ and v of every level for the three modes."""
    betas = theory_betas(T)
    abar = np.exp(np.cumsum(np.log1p(-betas)))
    return betas, abar, abar * SIGMA2 + 1 - abar


def score(x, abar, v):
    a = np.sqrt(abar)
    logits = np.log(THREE_WEIGHTS) - (x[:, None] - a * THREE_MEANS) ** 2 / (2 * v)
    r = np.exp(logits - logits.max(1, keepdims=True))
    r /= r.sum(1, keepdims=True)
    return (a * r @ THREE_MEANS - x) / v


def density(x, abar, v):
    terms = np.exp(-((x[:, None] - np.sqrt(abar) * THREE_MEANS) ** 2) / (2 * v))
    return terms @ THREE_WEIGHTS / np.sqrt(2 * np.pi * v)


def output_density(T, grid):
    """∫ q(x) N(y; m(x), sd²) dx by the trapezoidal rule, for "component"; needs sd above the
    spacing, so small steps need fine grids."""
    betas, abar, v = marginals(T)
    h = grid[1] - grid[0]
    q = np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi)
    for t in range(T - 1, 0, -1):
        m = (grid + betas[t] * score(grid, abar[t], v[t])) / np.sqrt(1 - betas[t])
        sd = np.sqrt(betas[t] * v[t - 1] / v[t])
        kernel = np.exp(-(((grid[:, None] - m) / sd) ** 2) / 2) / (np.sqrt(2 * np.pi) * sd)
        q = h * kernel @ q
    return q, density(grid, abar[0], v[0])


def path_kl(T, variance, grid):
    """The same bound by quadrature over x and over the next state."""
    betas, abar, v = marginals(T)
    h = grid[1] - grid[0]
    p = density(grid, abar[-1], v[-1])
    total = h * np.sum(p * (np.log(p) + grid**2 / 2 + 0.5 * np.log(2 * np.pi)))
    for t in range(T - 1, 0, -1):
        a, b, alpha = np.sqrt(abar[t]), np.sqrt(abar[t - 1]), 1 - betas[t]
        w = betas[t] * v[t - 1] / v[t]
        sd2 = {
            "component": w,
            "posterior": betas[t] * (1 - abar[t - 1]) / (1 - abar[t]),
            "beta": betas[t],
        }[variance]
        p = density(grid, abar[t], v[t])
        logits = np.log(THREE_WEIGHTS) - (grid[:, None] - a * THREE_MEANS) ** 2 / (2 * v[t])
        r = np.exp(logits - logits.max(1, keepdims=True))
        r /= r.sum(1, keepdims=True)
        m = b * THREE_MEANS + np.sqrt(alpha) * v[t - 1] / v[t] * (grid[:, None] - a * THREE_MEANS)
        mean = (r * m).sum(1)
        # the next state in units of √w around the mean
        z = np.linspace(-12, 12, 241)
        y = mean[:, None] + np.sqrt(w) * z
        conditional = sum(
            r[:, k, None] * np.exp(-((y - m[:, k, None]) ** 2) / (2 * w)) for k in range(3)
        ) / np.sqrt(2 * np.pi * w)
        log_gauss = -((y - mean[:, None]) ** 2) / (2 * sd2) - 0.5 * np.log(2 * np.pi * sd2)
        safe = np.log(np.maximum(conditional, 1e-300))
        inner = np.sqrt(w) * (z[1] - z[0]) * np.sum(conditional * (safe - log_gauss), 1)
        total += h * np.sum(p * inner)
    return total
