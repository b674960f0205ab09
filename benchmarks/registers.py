"""The registers that every Triton kernel takes on an A100 (sm_80) and an H100 (sm_90): compiled, no GPU needed.

    python -m benchmarks.registers > results/gpu-registers.md

Fails if a kernel keeps more than 16 bytes of a thread in local memory (four spilled registers), or takes more than 128
registers a thread at its number of warps. The tiles of interacting heads were chosen by time, on an H200.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fairseq_diverse.attention.kernels.agreement_triton import agreement_backward, agreement_forward
from fairseq_diverse.attention.kernels.interacting import GPU_HEAD_WIDTH
from fairseq_diverse.attention.kernels.interacting_triton import interacting_backward, interacting_forward
from fairseq_diverse.attention.kernels.launching import OPTIONS, Launch, launches
from fairseq_diverse.attention.kernels.maps_triton import maps_backward, maps_forward
from fairseq_diverse.attention.kernels.routing import GPU_CAPSULES, GPU_HEADS
from fairseq_diverse.attention.kernels.routing_em_triton import em_backward, em_forward
from fairseq_diverse.attention.kernels.routing_simple_triton import simple_backward, simple_forward

GPUS = {"A100": 80, "H100": 90}
SIZES = {"base": (8, 512), "big": (16, 1024), "largest": (GPU_HEADS, GPU_CAPSULES)}  # heads, capsules
TYPES = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32", "bool": "*i1", "int64": "*i64"}
TOKENS, LENGTH = 4096, 32
LIMITS = {"interacting": (255, 512)}  # registers, bytes spilled; others:
MOST, SPILLED = 128, 16
TITLE = f"""# Registers of the Triton kernels

Written by `python -m benchmarks.registers` with Triton {triton.__version__}: compiled for each GPU, not run. {TOKENS:,}
tokens, three iterations of routing, heads of 64 channels; `largest` is the largest size that the kernels take, of
interacting heads 128 channels, or 32 in float32 (torch does the wider ones). Interacting heads have a mask for each
query and dropout: `sum` in sentences of 512 tokens at Base and `largest`, `concat` in sentences of 32 at Big. Maps
(evolving and talking heads) have 3 x 3 taps at Base and Big, 5 x 5 for 16 heads at `largest`, and 1. A kernel that
spills more than {SPILLED} bytes a thread, or takes more than {MOST} registers, fails `make test`. Interacting heads may
take more: their tiles were chosen by time, [on an H200](gpu.md#measured-on-an-h200), where large ones were faster.

| kernel | size | numbers | programs | warps | A100: registers, bytes spilled | H100: registers, bytes spilled |
| --- | --- | --- | --- | --- | --- | --- |"""


def routing_launches(heads: int, capsules: int, dtype: torch.dtype) -> list[Launch]:
    """What one layer with each kind of routing launches, forward and backward."""
    with torch.device("meta"), launches() as seen:
        votes, betas = torch.empty(TOKENS, heads, capsules, dtype=dtype), (torch.empty(capsules),) * 2
        out, normals = em_forward(votes, *betas, 3)
        em_backward(votes, *betas, normals, out, 3)
        out, normals = simple_forward(votes, 3)
        simple_backward(votes, normals, out, 3)
    return seen


def agreement_launches(heads: int, dtype: torch.dtype) -> list[Launch]:
    """What all terms of agreement of one attention launch, forward and backward."""
    with torch.device("meta"), launches() as seen:
        batch, places = TOKENS // LENGTH, [0, 1, 2]
        values = torch.empty(batch, LENGTH, heads, 64, dtype=dtype).transpose(1, 2)
        weights, valid = torch.empty(batch, heads, LENGTH, LENGTH), torch.empty(batch, LENGTH, dtype=torch.bool)
        out, shares, means = agreement_forward(values, values, weights, valid, valid, places)
        agreement_backward(out, shares, values, values, means, valid, valid, heads, places, torch.float32)
    return seen


def interacting_launches(size: str, heads: int, dtype: torch.dtype) -> list[Launch]:
    """What one attention of interacting heads launches, forward and backward, where the kernels take it."""
    width = GPU_HEAD_WIDTH[dtype] if size == "largest" else 64
    if width > GPU_HEAD_WIDTH[dtype]:
        return []
    length, summed = (LENGTH, False) if size == "big" else (512, True)
    with torch.device("meta"), launches() as seen:
        q = torch.empty(TOKENS // length, length, heads, width, dtype=dtype).transpose(1, 2)
        allowed, seed = torch.empty(len(q), 1, length, length, dtype=torch.bool), torch.empty(1, dtype=torch.int64)
        given = q, q, q, allowed, seed, summed, 1.0, 0.1
        out, normals = interacting_forward(*given)
        interacting_backward(*given, normals, out)
    return seen


def maps_launches(size: str, heads: int, dtype: torch.dtype) -> list[Launch]:
    """What convolutions of the maps of one attention launch, forward and backward: evolving and talking heads."""
    with torch.device("meta"), launches() as seen:
        for taps in (5 if size == "largest" else 3), 1:
            channels = heads if taps == 1 else min(heads, 16)
            maps = torch.empty(TOKENS // LENGTH, channels, LENGTH, LENGTH, dtype=dtype)
            weight, bias, cells = torch.empty(channels, channels, taps, taps), None, None
            if taps > 1:
                bias, cells = torch.empty(channels), torch.empty(len(maps), 1, LENGTH, LENGTH, dtype=torch.bool)
            out, positive = maps_forward(maps, weight, bias, cells, taps // 2, taps // 2, 0.1)
            maps_backward(out, maps, weight, cells, positive, taps // 2, taps // 2, 0.1)
    return seen


def used(launch: Launch, capability: int) -> tuple[int, int]:
    """Registers of a thread, and bytes that it keeps in local memory."""
    signature, constants, aligned = {}, {}, {}
    for i, (parameter, value) in enumerate(zip(launch.kernel.params, launch.arguments, strict=True)):
        if parameter.is_constexpr or value is None:
            signature[parameter.name], constants[parameter.name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = TYPES[str(value.dtype).removeprefix("torch.")]
            aligned[(i,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[parameter.name] = "fp32"
        else:
            signature[parameter.name] = "i32"
            if value % 16 == 0 and not parameter.do_not_specialize:
                aligned[(i,)] = [["tt.divisibility", 16]]
    compiled = triton.compile(
        ASTSource(launch.kernel, signature, constants, aligned),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": launch.warps, **OPTIONS, **launch.options},
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        Path(f.name).write_bytes(compiled.asm["cubin"])
        program = Path(triton.__file__).with_name("backends") / "nvidia/bin/cuobjdump"
        said = subprocess.run([program, "-res-usage", f.name], capture_output=True, text=True, check=True).stdout
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", said)}
    return found["REG"], found["STACK"] + found["LOCAL"]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.registers", description=__doc__.split("\n")[0])
    types = ("float16", "bfloat16", "float32")
    parser.add_argument("--types", nargs="+", choices=types, default=types, help="of votes, values and heads")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=[*SIZES])
    arguments = parser.parse_args(argv)
    print(TITLE)
    failed = []
    for dtype in arguments.types:
        for size in arguments.sizes:
            heads, capsules = SIZES[size]
            seen = routing_launches(heads, capsules, getattr(torch, dtype))
            seen += interacting_launches(size, heads, getattr(torch, dtype))
            seen += maps_launches(size, heads, getattr(torch, dtype))
            if size == "base":  # the others give the same kernels
                seen += agreement_launches(heads, getattr(torch, dtype))
            for launch in seen:
                name = launch.kernel.__name__.removeprefix("_")
                found = {gpu: used(launch, capability) for gpu, capability in GPUS.items()}
                numbers = " | ".join(f"{registers}, {spilled}" for registers, spilled in found.values())
                print(f"| {name} | {size} | {dtype} | {launch.programs:,} | {launch.warps} | {numbers} |", flush=True)
                for gpu, (registers, spilled) in found.items():
                    most, most_spilled = LIMITS.get(name.split("_")[0], (MOST, SPILLED))
                    if registers > most or spilled > most_spilled:
                        failed.append(
                            f"{name} at {size}, {dtype}, {gpu}: {registers} registers, {spilled} bytes spilled"
                        )
    if failed:
        sys.exit("\n".join(["too many registers:", *failed]))


if __name__ == "__main__":
    main()
