"""The package as a whole: its public names, and what importing it costs and changes."""

import subprocess
import sys

import sfno_jax


def test_every_public_name_exists():
    assert set(sfno_jax.__all__) == set(sfno_jax._HOME)
    for name in sfno_jax.__all__:
        assert getattr(sfno_jax, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(sfno_jax, "SphericalTransform")


def test_import_is_quick_and_changes_no_jax_configuration():
    """Processor seconds of the import beyond those of jax itself stay under 2, and jax's configuration is untouched."""
    code = """
import time
import jax
before = dict(jax.config.values)
start = time.process_time()
import sfno_jax
sfno_jax.RealSHT(8, 16)
assert time.process_time() - start < 2, time.process_time() - start
import sfno_jax.models, sfno_jax.physics, sfno_jax.training, sfno_jax.parallel
assert dict(jax.config.values) == before
import sys
assert "matplotlib" not in sys.modules and "xarray" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)
