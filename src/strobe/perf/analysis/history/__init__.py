"""Figures over commits: series, their steps, and what the machine did meanwhile."""
