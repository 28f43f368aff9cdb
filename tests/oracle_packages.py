"""For the tests of the oracle: the packages they need, or a reason that says how to get them."""

import importlib

from built_programs import give_up

PACKAGES = ("torch", "transformers", "safetensors")


def require_oracle_packages() -> None:
    """Skips the calling module where one is absent."""
    for package in PACKAGES:
        try:
            importlib.import_module(package)
        except ImportError as error:
            give_up(
                f"{package} is not in this Python ({error}): run scripts/test, or beside your own "
                "torch python3 -m pip install -r requirements-oracle.txt",
                whole_module=True,
            )
