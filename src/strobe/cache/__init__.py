"""Keys and values of the latent frames a stream still attends to: policies in plain ints, tensors in fixed places."""
