"""Roof: the command line. One file per verb; heavy imports stay inside the verbs so that `--help` is instant."""
