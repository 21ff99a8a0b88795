"""Our own runs and anybody's logs: clips, frame blocks, stages, rounds."""
