"""The caller's own code, measured: functions in this process, and whole programs."""
