"""The page of a history: figures over commits, and the commits that changed them."""
