"""Tests of checkpoint sources."""
