"""Device time by the host operators that launched it: their inputs, callers and costs."""
