"""The page of `strobe profile dit`, in seven sections: settings, stages, attention, kernels, sections, speedups, notes."""
