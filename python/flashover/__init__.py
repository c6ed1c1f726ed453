"""Flashover: a compiler for PyTorch programs."""
