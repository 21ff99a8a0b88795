"""Benchmark of tree attention on real ranks: every strategy of one call, gated, timed, and profiled on all ranks."""
