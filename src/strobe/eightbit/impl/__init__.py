"""How rows become eight bits: the reference, and Triton."""
