"""What the heads of made-up result files share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEVICE: Mapping[str, Any] = {
    "architecture": "x86-64 AVX2",
    "backend": "cpu",
    "runtime_version": "",
    "driver_version": "",
}
CONTEXT: Mapping[str, Any] = {
    "host_name": "host",
    "library_build_type": "release",
    "library_version": "v1.9.1",
    "num_cpus": 2,
    "schema_version": 3,
    "git_dirty": False,
    "torch_version": "2.13.0",
    "threads": 2,
    "seed": 42,
    "verify": "before",
    "cold_cache": False,
    "memory_source": "allocator",
}
