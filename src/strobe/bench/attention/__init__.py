"""`strobe bench attention`: a grid of attention calls through every implementation and the peers, cell by cell."""
