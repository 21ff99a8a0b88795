"""The page of `strobe bench attention`: speed, precision, stages and memory over the grid, and settings to choose."""
