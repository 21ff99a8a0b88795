"""Video autoencoders."""
