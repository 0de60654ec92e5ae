"""Figures, one module an item: a tidy table in, a figure out."""
