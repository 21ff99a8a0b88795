"""Attention operators: one contract for every implementation."""
