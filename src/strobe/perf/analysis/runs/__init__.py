"""Analysis of our own runs and of any log: clips, frame blocks, stages, rounds."""
