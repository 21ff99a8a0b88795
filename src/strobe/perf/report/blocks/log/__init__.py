"""The optimisation log: entries of recorded runs, the rule that decides on them, and the tables of both."""
