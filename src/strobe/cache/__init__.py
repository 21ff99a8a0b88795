"""Keys and values of the latent frames that a stream still attends to: policies in plain ints, tensors at fixed addresses."""
