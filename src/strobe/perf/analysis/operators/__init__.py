"""Device time by the operators of the host that launched it: what they were given, who called them, what they cost."""
