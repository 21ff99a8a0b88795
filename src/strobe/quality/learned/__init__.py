"""Metrics by trained networks.

Their weights come from a folder of the user and are checked against a SHA-256; nothing is downloaded.
"""
