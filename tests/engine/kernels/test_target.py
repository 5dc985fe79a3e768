"""Which machines may share what is compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from vidette.errors import KernelError
from vidette.kernels.target import machine_identity, missing_features

V3 = "fpu abm avx2 bmi1 bmi2 f16c fma movbe"


def cpuinfo(tmp_path: Path, *, flags: str = V3, name: str = "A CPU", mhz: str = "2400.0") -> Path:
    lines = [f"model name\t: {name}", f"cpu MHz\t\t: {mhz}", f"flags\t\t: {flags}", ""]
    path = tmp_path / "cpuinfo"
    path.write_text("\n".join(f"processor\t: {number}\n" + "\n".join(lines) for number in range(2)))
    return path


def test_the_native_machine_is_its_processor(tmp_path: Path) -> None:
    plain = machine_identity("native", cpuinfo=cpuinfo(tmp_path))
    assert "A CPU" in plain
    assert machine_identity("native", cpuinfo=cpuinfo(tmp_path, mhz="3100.7")) == plain
    reordered = " ".join(reversed(V3.split()))
    assert machine_identity("native", cpuinfo=cpuinfo(tmp_path, flags=reordered)) == plain
    assert machine_identity("native", cpuinfo=cpuinfo(tmp_path, flags=f"{V3} avx512f")) != plain
    assert machine_identity("native", cpuinfo=cpuinfo(tmp_path, name="B CPU")) != plain


def test_other_targets_ask_for_no_processor(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    assert machine_identity("avx2", cpuinfo=absent) == machine_identity("portable", cpuinfo=absent)
    with pytest.raises(KernelError, match="cannot tell which processor this is"):
        machine_identity("native", cpuinfo=absent)


def test_what_a_processor_lacks(tmp_path: Path) -> None:
    assert missing_features("avx2", cpuinfo=cpuinfo(tmp_path)) == []
    old = cpuinfo(tmp_path, flags="fpu avx f16c")
    assert missing_features("avx2", cpuinfo=old) == ["abm", "avx2", "bmi1", "bmi2", "fma", "movbe"]
    assert missing_features("native", cpuinfo=old) == missing_features("portable", cpuinfo=old) == []
