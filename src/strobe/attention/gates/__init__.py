"""The gates of the implementations: cases against the reference, run on a card and recorded; pytest runs the same cases."""
