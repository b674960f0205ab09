"""Every parameter has a right, finite gradient, also with activation checkpointing and LayerDrop."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_diverse.attention.mechanism import Mechanism
from fairseq_diverse.attention.request import AttentionRequest
from fairseq_diverse.testing.models import Flags, batch, build_model, terms
from fairseq_diverse.testing.properties.common import (
    MAPS,
    PropertyFailed,
    attending,
    attention_at,
    everywhere,
    require,
    require_close,
    require_finite_gradients,
    short_sentences,
    trained_model,
    where_placed,
)

UPDATES = 4  # in which every parameter has a gradient


def learns(flags: Flags) -> None:
    """From the initial values, every parameter of a mechanism has a gradient in one of the first updates; none is in a
    plain list."""
    model = build_model(flags)
    modules = [module for module in model.modules() if isinstance(module, Mechanism)]
    for module in modules:
        lost = [name for name, value in vars(module).items() if name[0] != "_" and _unregistered(value)]
        kept = f"{module.name}: {', '.join(lost)} keeps parameters in a list, where they are not trained and not saved"
        require(not lost, f"{kept}; use nn.ParameterList or nn.ModuleList")
    own = [(f"{module.name}: {name}", value) for module in modules for name, value in module.named_parameters()]
    still, optimizer = set(range(len(own))), torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(UPDATES):
        if not still:
            break
        optimizer.zero_grad()
        output, extra = model(**batch())
        sum(extra["losses"].values(), output.float().square().mean()).backward()
        for number, (name, parameter) in enumerate(own):
            largest = 0.0 if parameter.grad is None else float(parameter.grad.abs().max())
            require(math.isfinite(largest), f"{name}: at the initial values its gradient is not finite")
            still -= {number} if largest else set()
        optimizer.step()
    never = own[min(still)][0] if still else ""
    require(not still, f"{never} has no gradient at the initial values and in the first updates, so it never learns")


def _unregistered(value: Any) -> bool:
    """Whether parameters or modules are in a list, tuple or dictionary, where a module does not find them."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return any(isinstance(one, torch.nn.Parameter | torch.nn.Module) or _unregistered(one) for one in inside)


def gradients(flags: Flags, disagreement: bool = False) -> None:
    """Every parameter has a finite, non-zero gradient, the same where activations or maps are computed again."""
    request = AttentionRequest(terms(flags), everywhere(flags)) if disagreement else None
    plain = _gradients(flags, request)
    for parameter, gradient in plain.items():
        require(gradient is not None, f"{parameter}: no gradient")
        require(bool(gradient.isfinite().all()), f"{parameter}: its gradient is not finite")
        if not parameter.endswith("k_proj.bias"):  # softmax ignores a constant added to every key
            require(bool(gradient.abs().max() > 0), f"{parameter}: its gradient is 0")
    for option in ("checkpoint_activations", "recompute_maps"):
        flag = f"--{option.replace('_', '-')}"
        for parameter, gradient in _gradients({**flags, option: True}, request).items():
            require(gradient is not None, f"{parameter}: no gradient with {flag}")
            require_close(gradient, plain[parameter], f"{parameter}, with {flag}")


def _gradients(flags: Flags, request: AttentionRequest | None) -> dict[str, Tensor]:
    model = trained_model(flags)
    output, extra = model(**batch(), attention_request=request)
    for name, loss in extra["losses"].items():
        require(loss.requires_grad, f"loss {name}: it has no gradient")
    loss = sum(extra["losses"].values(), output.float().square().mean())
    if request is not None:
        loss = loss + extra["agreement"].sum()
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.numel()}


def gradients_in_float64(flags: Flags) -> None:
    """The gradients of an attention equal finite differences."""
    component = where_placed(flags)
    attention = attention_at(trained_model(flags), component).double()
    padding, related = short_sentences()
    x, keys = (torch.randn(5, 2, 24, dtype=torch.float64, requires_grad=True) for _ in range(2))
    parameters = [p for p in attention.parameters() if p.requires_grad]

    def attend(x: Tensor, keys: Tensor, *_: Tensor) -> Tensor:
        source = keys if component == "cross" else x
        given: dict[str, Any] = {"query_padding_mask": padding, "relations": related, "measurement": MAPS}
        return attention.eval().attend(x, source, source, padding, **given).value[:, :, ::5]

    try:
        torch.autograd.gradcheck(attend, (x, keys, *parameters), fast_mode=True)
    except GradcheckError as error:
        reason = " ".join(str(error).split())[:120]
        raise PropertyFailed(f"gradients differ from finite differences: {reason}") from None


class _Additions(TorchDispatchMode):
    """Whether an operator adds many values into places given by indices, one by one on a GPU."""

    found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket in (torch.ops.aten.index_put, torch.ops.aten.index_put_):
            self.found |= args[3] if len(args) > 3 else kwargs.get("accumulate", False)
        return func(*args, **kwargs)


def fast_gradients(flags: Flags) -> None:
    """No table with a gradient is read as ``table[index]``: a GPU adds such gradients one by one, which is slow."""
    _, attend = attending(flags)
    with _Additions() as mode:
        attend(torch.randn(5, 2, 24)).value.sum().backward()
    require(not mode.found, "x[index] is differentiated, slow on a GPU: expand x and use gather, or use F.embedding")


def layerdrop(flags: Flags) -> None:
    """Training runs with any subset of the layers."""
    model = trained_model({**flags, "encoder_layerdrop": 0.6, "decoder_layerdrop": 0.6})
    for seed in range(8):
        torch.manual_seed(seed)
        output, extra = model(**batch(), attention_request=AttentionRequest(terms(flags), everywhere(flags)))
        (output.float().mean() + extra["agreement"].sum()).backward()
        require(bool(output.isfinite().all()), "an output is not finite")
        lowest = torch.tensor([-2.0 if term == "difference" else 0.0 for term in terms(flags)])
        within = (extra["agreement"] >= lowest) & (extra["agreement"] <= 1)
        require(bool(within.all()), "an agreement is outside [0, 1], or [-2, 0] for difference")
    require_finite_gradients(model, "a gradient is not finite")
