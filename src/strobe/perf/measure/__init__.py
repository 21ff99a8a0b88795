"""Measurement: span recorders, profiler capture, memory, clocks, statistics. The only room of `perf` that uses torch."""
