"""The optimisation log: every recorded run as an entry, kept or dropped by a stated rule."""
