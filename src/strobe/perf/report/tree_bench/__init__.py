"""Pages of `strobe bench tree` and `strobe bench scaling`: strategies side by side, parts of calls, verdicts, scaling."""
