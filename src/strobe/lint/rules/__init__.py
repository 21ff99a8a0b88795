"""The rules: pure functions from a document to the claims in it that do not hold."""
