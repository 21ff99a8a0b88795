"""Comparability of two sides: facts from traces, records and users, and the facts that differ."""
