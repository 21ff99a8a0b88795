"""Regions that a recorder in the slot of `core/spans` sees inside a call; nothing is marked, and nothing costs, without one."""

from __future__ import annotations

from typing import Final

LOCAL: Final = "tree_local"
"""Attention of this rank's queries over keys that it holds."""
MERGE: Final = "tree_merge"
"""Partial results put together, and weighed for a sum."""
MESSAGE: Final = "tree_message:"
"""One collective, from its start to the moment its result is there: `agreement`, `gather`, `exchange` or `reduce`."""
WAIT: Final = "tree_wait:"
"""The last part of a collective that runs beside something else: from the moment this rank has nothing else to do."""
