"""Ground floor: errors, shapes, spans, settings, device. Imports nothing of ours."""
