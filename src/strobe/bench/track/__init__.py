"""The same case over commits of a git repository: installed, measured in rounds, kept."""
