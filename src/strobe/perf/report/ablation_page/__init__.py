"""The page of an ablation: one factor at a time, what each optimisation is worth, and which setting to use."""
