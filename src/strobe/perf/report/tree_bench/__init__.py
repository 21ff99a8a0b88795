"""The pages of `strobe bench tree` and `strobe bench scaling`: strategies side by side, calls taken apart, verdicts, scaling."""
