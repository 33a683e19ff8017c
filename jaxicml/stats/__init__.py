"""Intervals and significance tests that several methods and the experiment drivers share.

Map:
    intervals       Wilson, Student t, bootstrap and slope intervals
    significance    Monte-Carlo and permutation p-values, quadratic-form nulls, maxima, false
                    discovery rate

Everything is a pure function of arrays (and a key), fit for `jit` and `vmap`.
"""
