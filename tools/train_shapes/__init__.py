"""Training of the bundled model from random weights; `make train-shapes`."""
