"""The command line: a file per verb; heavy imports stay inside the verbs so that `--help` is instant.

What a user gave wrong is a `ConfigError`, which `main` prints as one line.
"""
