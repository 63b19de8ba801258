"""Suites of the GPU kernels."""
