"""What a GPU would launch, read, write, compute and keep, counted on CUDA tensors without memory."""

import importlib
import math
import pkgutil
from argparse import Namespace
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from fairseq.optim.fp16_optimizer import FP16Optimizer
from fairseq.tasks.fairseq_task import FairseqTask
from omegaconf import OmegaConf
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from benchmarks import sides
from benchmarks.fake_cuda import fake_cuda, move
from fairseq_diverse.attention import kernels
from fairseq_diverse.attention.kernels import launching
from fairseq_diverse.attention.relations import relate
from fairseq_diverse.attention.request import Measurement

SIZES = Path(__file__).resolve().parents[1] / "configs/size"
WORDS = 32_000
TOKENS = 4096  # of a batch, on each side

aten = torch.ops.aten
SYNCS = (aten._local_scalar_dense, aten.is_nonzero, aten.equal, aten.nonzero, aten.masked_select, aten._unique2)
LARGE = 2**20  # bytes of a tensor that can make a new peak

# launches of operators that torch runs as several kernels on CUDA
LAUNCHES = {
    aten._scaled_dot_product_flash_attention_backward: 3,  # row sums of dO O, the gradients, dQ from float32
    aten._scaled_dot_product_efficient_attention_backward: 2,  # row sums of dO O, the gradients
    aten.native_layer_norm_backward: 2,  # of the input, of weight and bias
    aten.scatter_add: 2,  # the copy, the sums
    aten.masked_fill: 2,  # the copy, the numbers
    aten.embedding_dense_backward: 6,  # sorts the positions
    aten.index_put: 7,  # likewise, after a copy
    aten.index_put_: 6,
    aten._index_put_impl_: 6,
}
ROWS_ALONE = (aten.embedding, aten.index_select, aten.gather, aten.index)  # read what they return, not the whole table
WRITE_ALONE = (aten.copy_, aten.fill_, aten.zero_)
FILLED = ("zeros", "ones", "full", "new_", "rand")  # likewise, operators whose names start so
RESERVED = ("empty", "new_empty")


class Device(NamedTuple):
    """Peaks of a GPU, from its data sheet, without sparsity."""

    bandwidth: float  # bytes a second
    half: float  # FLOP/s of float16 and bfloat16 products on tensor cores
    tf32: float  # of float32 convolutions on tensor cores, which torch allows by default
    single: float  # of float32 outside tensor cores, where torch leaves float32 products by default


DEVICES = {
    # NVIDIA A100 80GB SXM, data sheet of 2021; H100 80GB SXM5, data sheet of 2023, half of what it has with sparsity
    "A100": Device(2.039e12, 312e12, 156e12, 19.5e12),
    "H100": Device(3.35e12, 989.4e12, 494.7e12, 67e12),
}


class Kernel(NamedTuple):
    """What one operator launches."""

    name: str
    phase: str
    launches: int
    bytes: int
    flops: int
    peak: str  # of ``Device``

    def seconds(self, device: Device) -> float:
        return max(self.bytes / device.bandwidth, self.flops / getattr(device, self.peak))


@dataclass
class Count:
    """What a step ran."""

    kernels: list[Kernel] = field(default_factory=list)
    syncs: list[str] = field(default_factory=list)
    kept: int = 0  # bytes from the forward pass to the backward pass, without parameters and inputs
    peak: int = 0  # most bytes at once, likewise

    def summary(self) -> dict[str, Any]:
        """Launches, bytes, FLOPs and seconds on each device by phase, bytes kept and at the peak, synchronizations."""
        phases: dict[str, Any] = {}
        for phase in dict.fromkeys(kernel.phase for kernel in self.kernels):
            of_phase = [kernel for kernel in self.kernels if kernel.phase == phase]
            phases[phase] = {name: sum(getattr(k, name) for k in of_phase) for name in ("launches", "bytes", "flops")}
            for name, device in DEVICES.items():
                phases[phase][name] = float(f"{sum(kernel.seconds(device) for kernel in of_phase):.4g}")
        return phases | {"kept": self.kept, "peak": self.peak, "syncs": len(self.syncs)}


def kernel_flops(name: str) -> dict[str, Callable[..., int]]:
    """``FLOPS`` or ``PRODUCTS`` of every module in ``attention/kernels``, joined: an operator of ours, such as
    ``em_forward``, and a function of its arguments."""
    found: dict[str, Callable[..., int]] = {}
    for module in pkgutil.iter_modules(kernels.__path__, f"{kernels.__name__}."):
        if not module.name.endswith("_triton") or find_spec("triton"):
            found |= getattr(importlib.import_module(module.name), name, {})
    return found


class Counting(TorchDispatchMode):
    """Counts what operators on CUDA tensors launch, read, write and compute.

    - An operator that computes is a launch, or as many as ``LAUNCHES`` says. Views, metadata and memory that is only
      reserved are none.
    - Its bytes are those of the tensors it reads and writes, each once, without what a stride of 0 repeats: as if
      nothing were read twice in an operator, and nothing stayed in the cache from one operator to the next.
    - An operator of ours (``kernels.launching.operator``) is as many launches as it makes Triton kernels run; each
      reads or writes every tensor that it is given once.
    - Its FLOPs are those of torch's counter for products, convolutions and fused attention, those of ``PRODUCTS`` (on
      tensor cores) or ``FLOPS`` for an operator of ours, else one an element.
    - A value that the host reads is a synchronization. The host is told that the batch has padding and that no
      gradient overflows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count, self.phase = Count(), "forward"
        self.flops, self.products = kernel_flops("FLOPS"), kernel_flops("PRODUCTS")
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def reach(self, phase: str) -> None:
        """What follows is of this phase."""
        self.phase = phase
        if phase == "backward":
            self.count.kept = self._living()

    def _living(self) -> int:
        """Bytes of what was made and is still there."""
        self.alive = {address: made for address, made in self.alive.items() if not made[0].expired()}
        return sum(size for _, size in self.alive.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operator = func.overloadpacket
        if operator is torch.ops.prim.device:
            return args[0].fake_device
        if operator in SYNCS:
            self.count.syncs.append(str(operator))
            return self.phase != "optimizer"
        with launching.launches() as seen:
            out = func(*args, **kwargs)
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        made = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        if any(x.is_cuda for x in (*given, *made)):
            crossing = {x.device.type for x in (*given[:2], *made)} if operator in (aten._to_copy, aten.copy_) else ()
            if len(crossing) > 1:
                self.count.syncs.append(f"{operator} between host and device")
            self._add(func, args, kwargs, given, made, seen)
        return out

    def _add(
        self, func: Any, args: Any, kwargs: Any, given: list[Tensor], made: list[Tensor], seen: list[launching.Launch]
    ) -> None:
        operator, known = func.overloadpacket, {_address(x) for x in given}
        new = {_address(x): x for x in made if _address(x) not in known}
        for address, x in new.items():
            self.alive[address] = StorageWeakRef(x.untyped_storage()), x.untyped_storage().nbytes()
        if any(self.alive[address][1] >= LARGE for address in new):
            self.count.peak = max(self.count.peak, self._living())
        changed = [
            x
            for number, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
            for x in tree_leaves(args[number] if number < len(args) else kwargs.get(argument.name))
            if isinstance(x, Tensor)
        ]
        if not (new or changed) or operator.__name__.startswith(RESERVED):
            return
        name, flops, peak = func._schema.name, max(x.numel() for x in (*given, *made)), "single"
        if func.namespace == "fairseq_diverse":
            moved = sum(_moved(launch.arguments) for launch in seen)
            for counts in (self.flops, self.products):
                if operator.__name__ in counts:
                    flops = counts[operator.__name__](*args, **kwargs)
            if operator.__name__ in self.products and made[0].element_size() == 2:
                peak = "half"
            self.count.kernels.append(Kernel(name, self.phase, len(seen), moved, flops, peak))
            return
        written = [x for x in made if _address(x) in new] + changed
        read, summed = given, 0
        if operator in WRITE_ALONE:
            read = given[1:]
        elif operator.__name__.startswith(FILLED):
            read = []
        elif operator in ROWS_ALONE:
            read = [*given[1:], *made]
        elif operator in (aten.scatter_add, aten.scatter_add_):
            summed = 2 * _touched(given[-1])  # what it adds to, read and written
        elif operator is aten.masked_fill:
            summed = 2 * _touched(made[0])  # the copy, read and written
        launches = LAUNCHES.get(operator, 1)
        if operator is aten.convolution_backward:
            launches = sum(args[-1])  # of the gradients that are asked for
        if operator in flop_registry:
            flops = flop_registry[operator](*args, **kwargs, out_val=made[0] if len(made) == 1 else tuple(made))
            convolution = operator in (aten.convolution, aten.convolution_backward)
            peak = "half" if made[0].element_size() == 2 else "tf32" if convolution else "single"
        moved = _moved(read) + sum(map(_touched, written)) + summed
        self.count.kernels.append(Kernel(name, self.phase, launches, moved, flops, peak))


def _address(x: Tensor) -> int:
    return x.untyped_storage()._cdata


def _moved(given: Iterable[Any]) -> int:
    """Bytes of the tensors, each once."""
    views = {(_address(x), x.storage_offset(), x.shape, x.stride()): x for x in given if isinstance(x, Tensor)}
    return sum(map(_touched, views.values()))


def _touched(x: Tensor) -> int:
    """Bytes of its elements; what a stride of 0 repeats counts once."""
    return x.element_size() * math.prod(n for n, step in zip(x.shape, x.stride(), strict=True) if step)


# ---- what is counted, and on a device timed ----


@dataclass(frozen=True)
class System:
    """A model and its criterion.

    Args:
        flags: of its mechanisms, as attributes of parsed arguments.
        terms: disagreement terms, comma-joined; empty for none.
        terms_on: their placement.
    """

    flags: dict[str, Any] = field(default_factory=dict)
    terms: str = ""
    terms_on: str = sides.EVERYWHERE


def build(size: str, flags: dict[str, Any], device: str = "meta", words: int = WORDS, **others: Any) -> Any:
    """The model of a size in ``configs/size`` with these mechanisms; on ``meta`` without memory."""
    config: Any = OmegaConf.to_container(OmegaConf.load(SIZES / f"{size}.yaml"))
    given = {name.replace("-", "_"): value for name, value in config["train"].items()}
    others |= {"share_all_embeddings": True, "max_source_positions": TOKENS, "max_target_positions": TOKENS}
    args = Namespace(**given | flags | others)
    dictionary = Dictionary()
    dictionary.pad_to_multiple_(words)
    ARCH_CONFIG_REGISTRY[args.arch](args)
    with torch.device(device):
        task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
        return ARCH_MODEL_REGISTRY[args.arch].build_model(args, task).train()


def make_batch(model: Any, length: int, tokens: int = TOKENS) -> dict[str, Any]:
    """A sample on the host with ``tokens`` on each side, padding included, and trees where the model reads them."""
    shape = sides.Size(0, 0, 0, 0, len(model.encoder.dictionary) - 4, tokens, length)
    return sides.batch(shape, tokens // length, "cpu", model)


def training(model: Any, system: System, sample: dict[str, Any], dtype: torch.dtype) -> Callable[..., None]:
    """A training step as fairseq's trainer runs it with ``--fp16``, ``--bf16`` or neither; it calls its argument with
    the name of each phase, as the phase begins."""
    criterion = sides.build_criterion(system.terms, model.encoder.dictionary, system.terms_on)
    adam = OmegaConf.structured(FairseqAdamConfig(_name="adam", lr=[1e-4], tpu=False))
    parameters = [*model.parameters()]
    if dtype == torch.float32:
        optimizer = inner = FairseqAdam(adam, parameters)
    else:
        # with fairseq's first scale, 128, gradients overflow in the first steps, which then leave the optimizer out
        scaling = {"fp16_scale_window": 128, "fp16_init_scale": 1, "fp16_scale_tolerance": 0.0}
        limits = {"threshold_loss_scale": None, "min_loss_scale": 1e-4}
        common = SimpleNamespace(bf16=dtype == torch.bfloat16, **scaling, **limits)
        optimizer = FP16Optimizer.build_optimizer(SimpleNamespace(optimizer=adam, common=common), parameters)
        inner = optimizer.fp32_optimizer
        inner.step()  # makes its state, as the first step of a training does

    def step(reach: Callable[[str], object] = lambda phase: None) -> None:
        if getattr(model, "graph_steps", None):
            FairseqTask.train_step(None, sample, model, criterion, optimizer, 0)
        else:
            loss = criterion(model, sample)[0]
            reach("backward")
            optimizer.backward(loss)
        reach("optimizer")
        optimizer.multiply_grads(1 / sample["ntokens"])
        with suppress(OverflowError):  # fairseq leaves such a step out
            optimizer.clip_grad_norm(0.0)
            optimizer.step()
        optimizer.zero_grad()

    return step


def count_training(
    size: str, system: System, length: int, dtype: torch.dtype = torch.float16, tokens: int = TOKENS
) -> dict[str, Any]:
    """The summary of a training step of the whole model, with its parameters."""
    model = build(size, system.flags)
    parameters, sample = sum(p.numel() for p in model.parameters()), make_batch(model, length, tokens)
    with fake_cuda():
        move(model, dtype)
        model.decoder._future_mask = torch.empty(length, length, dtype=dtype, device="cuda")  # of the first step
        step = training(model, system, _fake(sample), dtype)
        with Counting() as mode:
            step(mode.reach)
    return mode.count.summary() | {"parameters": parameters}


def count_generation(size: str, flags: dict[str, Any], length: int, sentences: int, beam: int = 5) -> dict[str, Any]:
    """The summary of translating a batch in float16: the encoder, and one step of the decoder, its second; without the
    beam search itself."""
    model = build(size, flags).eval()
    model.make_generation_fast_(beamable_mm_beam_size=beam, need_attn=False)
    inputs = make_batch(model, length, sentences * length)["net_input"]
    words = torch.full((sentences * beam, 2), 4)
    order = torch.arange(sentences).repeat_interleave(beam)
    with fake_cuda(), torch.no_grad():
        move(model, torch.float16)
        inputs, words, order = (_fake(x) for x in (inputs, words, order))
        inputs.pop("prev_output_tokens")
        with Counting() as mode:
            mode.reach("encoder")
            encoded = model.encoder.reorder_encoder_out(model.encoder(**inputs), order)
            state: dict[str, Any] = {}
            mode.reach("first step")
            model.decoder(words[:, :1], encoded, incremental_state=state)
            mode.reach("step")
            model.decoder(words, encoded, incremental_state=state)
    return mode.count.summary()


def count_attention(
    size: str, system: System, component: str, length: int, dtype: torch.dtype = torch.float16
) -> dict[str, Any]:
    """The summary of one attention, forward and backward, as a middle layer of the model calls it."""
    model = build(size, system.flags, words=16, encoder_layers=1, decoder_layers=1)
    layer = (model.encoder if component == "encoder" else model.decoder).layers[0]
    attention = layer.encoder_attn if component == "cross" else layer.self_attn
    sentences, cross = TOKENS // length, component == "cross"
    trees = torch.zeros(sentences, length, 5, dtype=torch.long)
    with fake_cuda():
        move(attention, dtype)
        x, encoded = (
            torch.empty(length, sentences, attention.embed_dim, dtype=dtype, device="cuda", requires_grad=True)
            for _ in range(2)
        )
        source = encoded if cross else x
        padding = torch.empty(sentences, length, dtype=torch.bool, device="cuda")
        given = {"key_padding_mask": padding, "query_padding_mask": padding}
        given["measurement"] = Measurement(tuple(filter(None, system.terms.split(","))))
        if component == "decoder":
            given["attn_mask"] = torch.empty(length, length, dtype=dtype, device="cuda")
        if model.encoder.plan.trees:
            given["relations"] = relate(_fake(trees), model.encoder.plan.trees)
        carry = attention.attend(x, source, source, **given).carry
        given["carried"] = {
            name: torch.empty_like(tensor).requires_grad_(tensor.requires_grad) for name, tensor in carry.items()
        }
        with Counting() as mode:
            out = attention.attend(x, source, source, **given)
            ends = [
                end for end in (out.value, out.agreement, *out.carry.values()) if end is not None and end.requires_grad
            ]
            edges = [get_gradient_edge(end) for end in ends]
            like = [torch.empty(end.shape, dtype=end.dtype, device="meta") for end in ends]
            del out, ends, carry  # what the next layer keeps of them is its own
            mode.reach("backward")
            gradients = [_fake(end) for end in like]
            torch.autograd.backward(edges, gradients)
    return mode.count.summary()


def _fake(value: Any) -> Any:
    """A tensor, or those of a sample, as fake CUDA tensors."""
    if isinstance(value, dict):
        return {name: _fake(of) for name, of in value.items()}
    return torch.empty(value.shape, dtype=value.dtype, device="cuda") if isinstance(value, Tensor) else value
