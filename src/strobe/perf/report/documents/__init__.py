"""What `--json` prints and the Python functions return: frozen values with plain keys, the unit in the key, all rows."""
