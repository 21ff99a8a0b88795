"""The report of any profiler traces: one file a section, from a `TraceStudy` to a `Section`, or `None` with nothing to say."""
