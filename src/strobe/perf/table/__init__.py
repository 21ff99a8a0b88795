"""Cells, columns and rows of tables, which analysis makes and pages and documents show; knows no trace and no record."""
