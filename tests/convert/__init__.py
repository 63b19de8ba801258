"""Tests of conversion: exact bytes, streaming, journals, verification, export, comparison, reports."""
