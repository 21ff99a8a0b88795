"""Sections of a run's page: each file turns records, traces and findings into one `Section`."""
