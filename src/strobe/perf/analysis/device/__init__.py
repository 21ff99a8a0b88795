"""Time of one device: owner of each moment, kernels, launches, gaps, queues, memory."""
