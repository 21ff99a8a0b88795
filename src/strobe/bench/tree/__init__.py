"""Tree attention on real ranks: every strategy of one call side by side, gated, timed and taken apart on all ranks."""
