"""For which machines kernels are compiled, and which machine this is."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, get_args

from vidette.errors import KernelError

Target = Literal["native", "avx2", "portable"]
"""This very machine, any x86-64 since 2015 or so, or any machine that the compiler is for."""
TARGETS: Final[tuple[Target, ...]] = get_args(Target)

TARGET_FLAGS: Final[Mapping[Target, tuple[str, ...]]] = MappingProxyType(
    {"native": ("-march=native",), "avx2": ("-march=x86-64-v3",), "portable": ()}
)
"""What the compiler is told of the machine."""

CPUINFO: Final = Path("/proc/cpuinfo")
_IDENTITY: Final = frozenset(
    {
        *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
        *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features", "isa", "uarch"),
    }
)
"""What in /proc/cpuinfo says which instructions there are, on x86, Arm and RISC-V."""
_X86_64_V3: Final = frozenset({"abm", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})


def machine_identity(target: Target, *, cpuinfo: Path = CPUINFO) -> str:
    """Return what a machine must have in common with this one to run what is compiled here.

    Args:
        target: what is compiled for.
        cpuinfo: where the kernel describes the processors.

    Raises:
        KernelError: the processor is not described.
    """
    if target != "native":
        return platform.machine()
    fields = _read_cpu(cpuinfo)
    lines = (f"{name}: {' '.join(sorted(fields[name].split()))}" for name in sorted(fields))
    return "\n".join((platform.machine(), *lines))


def missing_features(target: Target, *, cpuinfo: Path = CPUINFO) -> list[str]:
    """Return what this processor lacks to run what is compiled for a target, by the kernel's names.

    Raises:
        KernelError: the processor is not described.
    """
    if target != "avx2":
        return []
    return sorted(_X86_64_V3 - set(_read_cpu(cpuinfo).get("flags", "").split()))


def _read_cpu(cpuinfo: Path) -> dict[str, str]:
    """Return the first processor's fields that tell what it can do."""
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError as exc:
        raise KernelError(f"cannot tell which processor this is: {exc}") from exc
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value for name, _, value in pairs if name.strip() in _IDENTITY}
