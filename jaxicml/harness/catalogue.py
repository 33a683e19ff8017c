"""The nineteen methods in the order of the README: module name and subject."""

__all__ = ["METHODS"]

METHODS = {
    "sinkhorn_effect": "Sinkhorn treatment effects",
    "adaeraser": "object removal by adaptive attention suppression (AdaEraser)",
    "sae_steering": "emotion steering of language-model speech synthesis by sparse autoencoders",
    "squant": "weight compression into seeds of shift registers (S-Quant)",
    "bit_llm": "from fMRI to language (BIT-LLM)",
    "recover": "finding unauthorised fine-tuning data (RECOVER)",
    "think_touch": "low-cost full fine-tuning (Think-Touch)",
    "recap": "a self-correcting interface agent on a closed synthetic benchmark (ReCAP)",
    "v2v_ccm": "token pruning for cooperative driving (V2V-CCM)",
    "consistent_submodular": "consistent dynamic submodular maximisation",
    "atlas": "Atlas memory",
    "pencil": "link prediction (PENCIL)",
    "physicsformer": "weather prediction (PhysicsFormer)",
    "fuse": "unlearnable examples (FUSE)",
    "online_matching": "online matching by coarsening",
    "quantum_latent": "quantum latent variables",
    "cen": "autofocus (CEN)",
    "ddpm_gmm": "DDPM on Gaussian mixtures",
    "atr": "long-tail fine-tuning (ATR)",
}
