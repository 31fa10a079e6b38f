"""Shared tools of the workspace."""
