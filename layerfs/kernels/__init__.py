"""Kernels: the hot loops, compiled where possible, each with a twin in Python, and the rows they exchange."""
