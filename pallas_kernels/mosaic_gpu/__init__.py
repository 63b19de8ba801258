"""Mosaic GPU kernels for Hopper. Importable on any supported jax and without a GPU."""
