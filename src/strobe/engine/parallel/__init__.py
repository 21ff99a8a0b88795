"""One session on several devices, one process each: tokens and heads are divided, and the cache is not moved."""

from strobe.engine.parallel.degrees import Degrees, Legal, degrees, legal_degrees
from strobe.engine.parallel.group import DeviceGroup

__all__ = ["Degrees", "DeviceGroup", "Legal", "degrees", "legal_degrees"]
