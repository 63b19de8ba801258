"""Benchmarks and compile-only checks; no part of the installed package."""
