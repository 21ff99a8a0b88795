"""Two sides against each other: the ledger, what is comparable, the speedup at each level."""
