"""Report on any profiler traces: each file builds one `Section` of a `TraceStudy`, or `None` if there is nothing to show."""
