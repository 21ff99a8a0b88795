"""One forward pass of a diffusers transformer, dense against sparse, compiled or not: what `strobe profile dit` measures."""
