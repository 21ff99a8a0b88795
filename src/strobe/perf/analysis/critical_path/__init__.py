"""Critical path: the longest chain of host, queue and device work in a trace, and its length if a part took no time."""
