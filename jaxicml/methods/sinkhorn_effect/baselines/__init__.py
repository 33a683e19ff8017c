"""What the Sinkhorn treatment effect is compared with, on the same samples and nuisances.

Map:
    average     average treatment effect (AIPW) with the Wald test of all outcome components
    mmd         half the squared MMD: single width, aggregated over widths, terms of one fold
    weighted    DR-xKTE, IPW kernel test, undebiased Sinkhorn plug-in, naive two-sample test
"""

from jaxicml.methods.sinkhorn_effect.baselines.average import AteResult, ate_aipw
from jaxicml.methods.sinkhorn_effect.baselines.mmd import (
    mmd_effect_aggregated,
    mmd_fold_terms,
    mmd_treatment_effect,
)
from jaxicml.methods.sinkhorn_effect.baselines.weighted import (
    HypothesisTest,
    dr_xkte,
    ipw_kte_permutation,
    ipw_sinkhorn_plugin,
    naive_two_sample,
)

__all__ = [
    "AteResult",
    "HypothesisTest",
    "ate_aipw",
    "dr_xkte",
    "ipw_kte_permutation",
    "ipw_sinkhorn_plugin",
    "mmd_effect_aggregated",
    "mmd_fold_terms",
    "mmd_treatment_effect",
    "naive_two_sample",
]
