"""The speedup of one run over another from logs and traces of any framework: one file a part, from a `SpeedupStudy`."""
