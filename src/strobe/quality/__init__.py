"""Metrics that compare two clips, each with its definition. Imports only `core`, and needs no weights."""
