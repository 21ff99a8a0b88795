"""One forward pass of a diffusers transformer, dense or sparse, eager or compiled: `strobe profile dit`."""
