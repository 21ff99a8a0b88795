"""How partial results meet: one file for what travels."""
