"""For the tests of the oracle: the packages they need, or a reason that says how to get them."""

import importlib
import os

import pytest

PACKAGES = ("torch", "transformers", "safetensors")


def require_oracle_packages(packages: tuple[str, ...] = PACKAGES) -> None:
    """Skips the calling module where one is absent; fails in CI, which must not pass untested."""
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            reason = (
                f"{package} is not in this Python ({error}): run scripts/test, or beside your own "
                "torch python3 -m pip install -r requirements-oracle.txt"
            )
            if os.environ.get("CI") == "true":
                pytest.fail(reason, pytrace=False)
            pytest.skip(reason, allow_module_level=True)
