"""Plots of results, as PNG in docs/images."""
