"""Measurements, one module an item: settings in, rows out."""
