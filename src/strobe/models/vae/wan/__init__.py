"""The Wan2.1 video autoencoder."""
