"""Structure of device time: windows, steps, regions, modules, layers, sections, collectives."""
