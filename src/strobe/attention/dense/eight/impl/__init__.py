"""Implementations of attention in eight bits."""
