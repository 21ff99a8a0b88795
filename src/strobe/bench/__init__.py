"""Comparisons: a case describes the variants, the gate checks them, the runner measures them and writes records."""
