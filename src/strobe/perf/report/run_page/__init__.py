"""One file per part of the report: each turns records, traces and findings into a `Section`."""
