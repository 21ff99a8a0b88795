"""Attention over keys that are spread across ranks."""

from strobe.attention.tree.api import deadline, explain, measure_links, plan, tree_attention
from strobe.attention.tree.comm import CollectiveError
from strobe.attention.tree.placement import KVShards, Mask, Segment, legal_grid
from strobe.attention.tree.plan import Links, Rate, TreePlan

__all__ = [
    "CollectiveError",
    "KVShards",
    "Links",
    "Mask",
    "Rate",
    "Segment",
    "TreePlan",
    "deadline",
    "explain",
    "legal_grid",
    "measure_links",
    "plan",
    "tree_attention",
]
