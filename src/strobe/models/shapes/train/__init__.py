"""Training of the bundled model in three stages: autoencoder, teacher, few-step student."""
