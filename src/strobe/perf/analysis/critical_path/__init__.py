"""The longest chain of host, queue and device work in a trace, and how long it would be if a part of it were free."""
