"""Report on the speedup of one run over another from logs and traces of any framework: one file per section."""
