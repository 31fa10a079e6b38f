"""Data sets: shallow water on the fly, gridded files, normalisation, windows."""
