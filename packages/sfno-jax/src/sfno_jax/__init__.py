"""Spherical harmonic transforms and Spherical Fourier Neural Operators in JAX."""
