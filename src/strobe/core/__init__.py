"""Errors, shapes, spans, settings and device, for all other rooms; imports none of them."""
