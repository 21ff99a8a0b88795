"""One session on several devices, one process each: tokens and heads are divided, and the cache is not moved."""

from strobe.engine.parallel.group import DeviceGroup
from strobe.engine.parallel.layout import Degrees, degrees, legal_degrees

__all__ = ["Degrees", "DeviceGroup", "degrees", "legal_degrees"]
