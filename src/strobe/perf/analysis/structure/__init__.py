"""What device time belongs to: windows, steps, regions, modules, layers, sections, collectives."""
