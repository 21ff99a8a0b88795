"""The page of an ablation: one factor at a time, the gain of each optimisation, and the setting to use."""
