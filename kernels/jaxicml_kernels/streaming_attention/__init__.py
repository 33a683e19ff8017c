r"""Attention with an additive key bias, streamed over keys.

    out_i = Σ_j softmax_j(s q_i·k_j + b_j) v_j,   lse_i = log Σ_j exp(s q_i·k_j + b_j)

The B × K matrix of logits never exists: blocks of keys update a running maximum, a running sum
and the unnormalised output. With keys and values the means of a Gaussian mixture of K components
this is its posterior mean and log-density, at any K.

References:
    Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018, arXiv:1805.02867.
    Rabe, Staats, "Self-attention does not need O(n²) memory", 2021, arXiv:2112.05682.
    Dao, Fu, Ermon, Rudra, Ré, "FlashAttention: fast and memory-efficient exact attention with
    IO-awareness", 2022, arXiv:2205.14135.
"""

from jaxicml_kernels.streaming_attention.api import (
    streaming_attention,
    streaming_attention_with_lse,
)

__all__ = ["streaming_attention", "streaming_attention_with_lse"]
