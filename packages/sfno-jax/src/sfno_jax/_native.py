"""The C++ kernel (placeholder until the native helper lands it)."""
from __future__ import annotations
def available() -> bool: return False
def why_unavailable() -> str: return "not built"
legendre_analysis = legendre_synthesis = vector_analysis = vector_synthesis = None
