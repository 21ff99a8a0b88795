"""The bundled model `shapes`: a procedural world of moving coloured shapes, its oracle and its weights."""
