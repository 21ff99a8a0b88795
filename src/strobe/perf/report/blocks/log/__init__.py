"""The optimisation log: entries from recorded runs, the rule that decides on them, and their tables."""
