"""Whether two sides may be compared: what their traces, records and users say of them, and what differs."""
