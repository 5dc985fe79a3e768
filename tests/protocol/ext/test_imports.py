"""What a process imports: only what arrives in it."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent


def run(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", dedent(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_protocol_imports_neither_numpy_nor_torch_nor_pickle() -> None:
    run("""
        import sys
        import vidette_protocol.ext, vidette_protocol.messages.multimodal
        from array import array
        hooks = vidette_protocol.ext.ExtHooks()
        ext = hooks.enc_hook(array("q", [1, 2]))
        assert hooks.ext_hook(ext.code, memoryview(ext.data)) == array("q", [1, 2])
        ext = hooks.enc_hook(vidette_protocol.ext.ShmPointer("psm_1", (1,), "bfloat16"))
        assert hooks.ext_hook(ext.code, memoryview(ext.data)).nbytes == 2
        assert not {"numpy", "torch", "pickle", "_pickle", "multiprocessing"} & sys.modules.keys()
    """)


def test_arrays_need_no_torch() -> None:
    run("""
        import sys
        sys.modules["torch"] = None  # importing it fails
        import numpy as np
        from vidette_protocol.ext import ExtHooks, ModelData
        from vidette_protocol.errors import DecodeError
        hooks = ExtHooks()
        ext = hooks.enc_hook(np.arange(3, dtype=">f4"))
        assert hooks.ext_hook(ext.code, memoryview(ext.data)).tolist() == [0, 1, 2]
        assert hooks.dec_hook(ModelData, {"x": {"__np_dtype__": "<f4"}}) == {"x": np.dtype("<f4")}
        tensor = bytes.fromhex("0000000d 93 91 02 a5 696e743136 a3 637075 0100 0200")
        for refused in (
            lambda: hooks.ext_hook(2, memoryview(tensor)),
            lambda: hooks.dec_hook(ModelData, {"x": {"__torch_size__": [1]}}),
        ):
            try:
                refused()
            except DecodeError as error:
                assert "not installed here" in str(error), error
            else:
                raise AssertionError("decoded without torch")
    """)
