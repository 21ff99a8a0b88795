"""Two sides against each other: the ledger, the speedup at each level."""
