"""One session on several devices, a process each: tokens and heads are shared out, the cache stays where it is."""

from strobe.engine.parallel.degrees import Degrees, Legal, degrees, legal_degrees
from strobe.engine.parallel.group import DeviceGroup

__all__ = ["Degrees", "DeviceGroup", "Legal", "degrees", "legal_degrees"]
