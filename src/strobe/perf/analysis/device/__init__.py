"""What a device did: who owns each moment, kernels, launches, gaps, memory."""
