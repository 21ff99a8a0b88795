"""Factors of a stream, changed one at a time or in products, measured cell by cell against a base preset."""
