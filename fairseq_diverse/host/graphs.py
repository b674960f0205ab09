"""``--graph-steps``: forward and backward of a training step as one CUDA graph for each shape of a batch.

A GPU then waits for the host once a step, not at every operator.
"""

import logging
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.optim.amp_optimizer import AMPOptimizer
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten_with_path, tree_leaves, tree_map

from fairseq_diverse.support.errors import UserError

logger = logging.getLogger(__name__)

FLAG = "--graph-steps"
EAGER = 3  # steps of a shape before it is captured, in which kernels are compiled and chosen
SHAPES = 64  # graphs at most: each takes memory
VARYING = "ntokens"  # a number of a batch that is not its shape's
# what these criterions compute does not depend on values on the device
CRITERIONS = ("cross_entropy", "label_smoothed_cross_entropy", "label_smoothed_cross_entropy_with_disagreement")
IN_PYTHON = {  # flags that decide something in every step, by what
    "encoder_layerdrop": "layers are drawn in Python",
    "decoder_layerdrop": "layers are drawn in Python",
    "quant_noise_pq": "weights are drawn in Python",
    "quant_noise_scalar": "weights are drawn in Python",
    "checkpoint_activations": "recomputation saves random states",
    "recompute_maps": "recomputation saves random states",
    "quantization_config_path": "layers are replaced",
    "report_accuracy": "the host counts correct words",
}


def check_graph_steps(args: Any) -> None:
    """Raise ``UserError`` where another flag does not work with --graph-steps."""
    if not getattr(args, "graph_steps", False):
        return
    if getattr(args, "compile_layers", False):
        raise UserError(f"{FLAG}: does not work with --compile-layers; leave one of them out")
    if getattr(args, "ddp_backend", "") == "fully_sharded":
        raise UserError(f"{FLAG}: does not work with --ddp-backend fully_sharded; use legacy_ddp")


def train_step(eager: Any, self: Any, *args: Any, **named: Any) -> Any:
    """As ``FairseqTask.train_step``, which is captured for models with --graph-steps."""
    model = named["model"] if "model" in named else args[1]
    steps = getattr(model, "graph_steps", None)
    return eager(self, *args, **named) if steps is None else steps(eager, self, *args, **named)


class CudaGraphs:
    """Graphs on a stream of their own, with one memory for all of them."""

    def __init__(self) -> None:
        self.stream: Any = None
        self.pool: Any = None

    def eagerly(self, run: Callable[[], Any]) -> Any:
        """``run`` on the stream on which it is captured later."""
        self.stream = self.stream or torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = run()
        torch.cuda.current_stream().wait_stream(self.stream)
        return result

    def capture(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """The graph's ``replay``, and what ``run`` returns, which replaying fills."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"
        ):  # others pin the memory of batches meanwhile
            result = run()
        self.pool = self.pool or graph.pool()
        return graph.replay, result


class Padded(TorchFunctionMode):
    """Batches have padding: ``if tokens.eq(padding).any()`` is not answered by the device."""

    equal: Any = None
    any_equal: Any = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__bool__ and args[0] is self.any_equal:
            return True
        result = func(*args, **(kwargs or {}))
        if func is Tensor.eq and not args[0].is_floating_point():
            self.equal = result
        elif func is Tensor.any and args[0] is self.equal:
            self.any_equal = result
        return result


def capture(graphs: Any, run: Callable[[], Any], without: str) -> tuple[Callable[[], None], Any]:
    """``graphs.capture``; a model that waits for the device is one line, which ends in ``without``."""
    try:
        with Padded():
            return graphs.capture(run)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        message = str(error).strip().partition("\n")[0]
        raise UserError(f"{FLAG}: this model cannot be captured ({message}); {without}") from error


class GraphSteps:
    """The captured steps of one model.

    A replayed step adds to gradients that stay where they are. What it returns is copied: the next one overwrites it.
    A batch of a new shape, an empty one and the first ``EAGER`` of each shape run as without --graph-steps; so does one
    that fairseq runs again to find where a number is not finite, and each new shape after ``SHAPES`` or where the
    memory does not suffice.
    """

    def __init__(self, args: Any, graphs: Any = None) -> None:
        self.args, self.graphs = args, graphs
        self.steps, self.seen = dict[Any, Any](), dict[Any, int]()
        self.grads: dict[Tensor, Tensor] = {}
        self.scale: Tensor | None = None
        self.started, self.most = False, SHAPES

    def __deepcopy__(self, memo: Any) -> "GraphSteps":  # of a model that --store-ema copies
        return GraphSteps(self.args)

    def __call__(
        self,
        eager: Any,
        task: Any,
        sample: Any,
        model: Any,
        criterion: Any,
        optimizer: Any,
        update_num: int,
        **more: Any,
    ) -> Any:
        if not self.started:
            self.started, reason = True, why_not(model, self.args) if self.graphs is None else ""
            self.graphs = self.graphs if reason or self.graphs else CudaGraphs()
            says = (
                f"not used: {reason}" if reason else "each shape is captured once; --num-batch-buckets N makes them few"
            )
            logger.info(f"{FLAG}: {says}")
        ignored = more.pop("ignore_grad", False)
        usual = self.graphs is None or ignored or more or model.encoder._forward_hooks
        key = None if usual else shape_of(sample)
        if key is None:
            return eager(task, sample, model, criterion, optimizer, update_num, ignore_grad=ignored, **more)
        self.seen[key] = self.seen.get(key, 0) + 1
        if self.seen[key] > EAGER and key not in self.steps and len(self.steps) < self.most:
            try:
                self.steps[key] = self._captured(eager, task, sample, model, criterion, optimizer, update_num)
            except torch.OutOfMemoryError:
                self.most = len(self.steps)
                logger.info(f"{FLAG}: the GPU's memory suffices for {self.most} shapes; others are not captured")
        if key not in self.steps:
            run = lambda: eager(task, sample, model, criterion, optimizer, update_num)  # noqa: E731
            return self.graphs.eagerly(run)
        model.train()
        model.set_num_updates(update_num)
        return self._replayed(self.steps[key], sample, optimizer)

    def _captured(
        self, eager: Any, task: Any, sample: Any, model: Any, criterion: Any, optimizer: Any, update_num: int
    ) -> tuple[Callable[[], None], Any, Any, list[Tensor], list[Tensor]]:
        """The replay, its batch, what it returns, the parameters that get gradients, and what it reads besides."""
        device = next(model.parameters()).device
        static = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, sample)
        static[VARYING] = torch.zeros((), dtype=torch.long, device=device)
        if getattr(optimizer, "scaler", None) is not None and not isinstance(optimizer, AMPOptimizer):
            self.scale = torch.ones((), device=device) if self.scale is None else self.scale
            scale = self.scale
            optimizer = SimpleNamespace(backward=lambda loss: (loss * scale).backward())
        before = {parameter: parameter.grad for parameter in model.parameters()}
        for parameter in before:
            if parameter.requires_grad:
                if parameter not in self.grads:  # all shapes share them
                    self.grads[parameter] = torch.zeros_like(parameter)
                parameter.grad = self.grads[parameter]
        changed = list[Tensor]()
        hooks = [p.register_post_accumulate_grad_hook(changed.append) for p in before if p.requires_grad]
        run = lambda: eager(task, static, model, criterion, optimizer, update_num)  # noqa: E731
        try:
            replay, result = capture(self.graphs, run, "train it without the flag")
        finally:
            for hook in hooks:
                hook.remove()
            for parameter, grad in before.items():
                parameter.grad = grad
        result = tree_map(lambda x: x.detach() if isinstance(x, Tensor) and x.requires_grad else x, result)
        return replay, static, result, changed, kept_by(model)

    def _replayed(self, step: Any, sample: Any, optimizer: Any) -> Any:
        replay, static, result, parameters, _ = step
        copy(static, sample)
        if self.scale is not None:
            self.scale.fill_(optimizer.scaler.loss_scale)
        new = [parameter for parameter in parameters if parameter.grad is None]
        if new:
            torch._foreach_zero_([self.grads[parameter] for parameter in new])
        for parameter in parameters:
            grad = self.grads[parameter]
            if parameter.grad is not None and parameter.grad is not grad:  # of a step before that ran eagerly
                grad.copy_(parameter.grad)
            parameter.grad = grad
        replay()
        if hasattr(optimizer, "_needs_sync"):
            optimizer._needs_sync = True

        def current(value: Any) -> Any:
            if value is static[VARYING]:
                return sample[VARYING]
            return value.clone() if isinstance(value, Tensor) else value

        return tree_map(current, result)


def refused(model: Any, args: Any, flags: Collection[str]) -> str:
    """Where the model is, or the flag, with which nothing can be captured; empty if there is none."""
    device = next(model.parameters()).device
    if device.type != "cuda" or torch.version.hip is not None:
        return f"the model is on {device.type}, not on an NVIDIA GPU"
    if device.index not in (None, current := torch.cuda.current_device()):
        return f"the model is on GPU {device.index}, torch's current one is {current}"
    refusing = [flag for flag in IN_PYTHON if flag in flags and getattr(args, flag, None)]
    return f"--{refusing[0].replace('_', '-')}: {IN_PYTHON[refusing[0]]}" if refusing else ""


def why_not(model: Any, args: Any) -> str:
    """Why steps of a training cannot be captured; empty if they can."""
    if reason := refused(model, args, IN_PYTHON):
        return reason
    if (name := getattr(args, "criterion", "")) not in CRITERIONS:
        return f"--criterion {name} may wait for the GPU; {', '.join(CRITERIONS)} do not"
    if model.encoder.plan.trees:
        return "the task reads which heads are redundant in every step"
    if hasattr(model, "module") and (backend := getattr(args, "ddp_backend", "")) not in ("legacy_ddp", "no_c10d"):
        return f"--ddp-backend {backend} communicates in the backward pass; use legacy_ddp"
    return ""


def shape_of(sample: Any) -> Any:
    """What batches of one graph have in common: names, shapes and types of tensors, other values; None if these are not
    numbers."""
    if not isinstance(sample, dict) or not isinstance(sample.get(VARYING), int):
        return None
    parts = []
    for path, value in tree_flatten_with_path(sample | {VARYING: None})[0]:
        if not isinstance(value, Tensor | int | float | None):
            return None
        parts.append((str(path), (value.shape, value.dtype) if isinstance(value, Tensor) else value))
    return tuple(parts)


def copy(static: Any, sample: Any) -> None:
    """The values of a batch into another of its shape."""
    static[VARYING].fill_(sample[VARYING])
    for old, new in zip(tree_leaves(static | {VARYING: 0}), tree_leaves(sample | {VARYING: 0}), strict=True):
        if isinstance(new, Tensor):
            old.copy_(new)


def kept_by(model: Any) -> list[Tensor]:
    """The tensors of modules that are no parameters. Graphs read them where they are; fairseq replaces its mask of
    later words and its table of positions when a longer batch comes.
    """
    modules = [(*m._buffers.values(), *vars(m).values()) for m in model.modules()]
    return [x for values in modules for x in values if isinstance(x, Tensor)]
