"""What a kernel costs on an architecture, found by compiling it here: no GPU is needed.

Triton brings ptxas and cuobjdump along. The compilation takes the same specialisation of the arguments
(pointer alignment, integers divisible by 16, integers equal to 1) that a run with these arguments would.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.compiler import compile as compile_source
from triton.knobs import nvidia
from triton.runtime.jit import create_function_from_signature

from baton.kernels.triton_support.launch import Launch

_WARP_SIZE = 32


@dataclass(frozen=True, slots=True)
class Resources:
    """registers: of a thread. stack_bytes: a thread's local memory; what was spilled lies there, so 0 says
    that nothing was. shared_bytes: of a block. ptx: the program, to look for instructions in."""

    registers: int
    stack_bytes: int
    shared_bytes: int
    ptx: str

    def __str__(self) -> str:
        return f"{self.registers:3d} registers {self.stack_bytes:4d} B stack {self.shared_bytes:6d} B shared"


def compile_for(launch: Launch, arch: int) -> Resources:
    """arch: 80 for sm_80, 90 for sm_90a, as `Gpu.arch` counts. Tensors may be on torch's meta device."""
    target = GPUTarget("cuda", arch, _WARP_SIZE)
    backend: Any = make_backend(target)
    kernel = launch.kernel
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, extra = bind(**launch.arguments, **launch.options)
    packed = kernel._pack_args(backend, launch.options, bound, specialization, extra)
    parsed, signature, constants, attributes = packed
    source = ASTSource(kernel, signature, constants, attributes)
    compiled = compile_source(source, target=target, options=parsed.__dict__)
    usage = _resource_usage(compiled.asm["cubin"])
    return Resources(
        registers=usage["REG"],
        stack_bytes=usage["STACK"] + usage["LOCAL"],
        shared_bytes=compiled.metadata.shared,
        ptx=compiled.asm["ptx"],
    )


def _resource_usage(cubin: bytes) -> dict[str, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        dump = subprocess.run(
            [nvidia.cuobjdump.path, "--dump-resource-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        )
    return {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL|SHARED):(\d+)", dump.stdout)}
