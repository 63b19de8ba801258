"""An independent implementation of the formats, layouts and container, for tests: standard library and NumPy only.

It imports nothing that it tests and computes with integers, so no value depends on floating-point hardware. It is
written from the specification for plainness, not for speed.
"""
