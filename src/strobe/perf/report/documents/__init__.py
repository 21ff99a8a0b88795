"""Documents: the frozen values behind `--json` and the Python functions, with plain keys, the unit in the key, and all rows."""
