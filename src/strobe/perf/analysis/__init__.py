"""Pure functions: records and traces in, frozen findings out. Nothing here prints, plots or needs torch."""
