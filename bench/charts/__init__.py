"""Plots of results, as PNG in docs/images, and tables of results, as Markdown in docs."""
