"""Versioned records: one schema (`record`), one folder per run (`store`), the environment header (`environment`)."""
