"""What machine figures come from, in words."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def machine_name() -> str:
    """For example ``2 cores of an AMD EPYC, Linux``; no name of the host or of its user."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{cores} cores of {_processor()}, {platform.system()}"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text("utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name" and value.strip():
                return " ".join(value.split())
    return platform.processor() or platform.machine()
