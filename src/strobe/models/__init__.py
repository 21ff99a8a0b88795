"""Models: causal Wan, the tiny streaming VAE, text encoders, and the bundled model `shapes`."""
