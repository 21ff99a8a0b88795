"""Cases: each turns presets, operators or a log's configurations into variants that the runner can measure."""
