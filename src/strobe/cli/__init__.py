"""The command line: one file per verb; heavy imports stay inside the verbs so that `--help` is instant."""
