"""Calls leave nothing behind, stay on their device, and give finite numbers on every route."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fairseq_diverse.attention.mechanism import Mechanism
from fairseq_diverse.attention.relations import Relations, relate
from fairseq_diverse.attention.request import AttentionRequest, Measurement
from fairseq_diverse.models.diverse_transformer import attentions_at
from fairseq_diverse.testing.models import OF_ROBERTA, Flags, batch, dictionary, terms
from fairseq_diverse.testing.properties.common import (
    PropertyFailed,
    attending,
    attention_at,
    decode,
    everywhere,
    require,
    require_close,
    require_finite_gradients,
    short_sentences,
    trained_model,
    where_placed,
)

POSITIONS = dict.fromkeys(("max_source_positions", "max_target_positions", "max_positions"), 256)


def called_twice(flags: Flags) -> None:
    """In evaluation, a second call has the same outputs; mechanisms store nothing on themselves, nor in decoding; long
    sentences work."""
    model = trained_model({**flags, **POSITIONS}).eval()
    modules = {name: module for name, module in model.named_modules() if isinstance(module, Mechanism)}
    before = {name: _held(module) for name, module in modules.items()}
    with torch.no_grad():
        first, second = (model(**batch())[0] for _ in range(2))
        _stores_nothing(modules, before, "a call")
        require(torch.equal(first, second), "a second call in evaluation gives other outputs")
        decode(model, where_placed(flags), torch.randn(5, 3, 24))
        model.eval()
        _stores_nothing(modules, before, "a decoding step", "; keep it in context.memory")
        long, _ = model(**batch((250, 4), (249, 6)))
    require(bool(long.isfinite().all()), "an output of a long sentence is not finite")


def _stores_nothing(modules: dict[str, Mechanism], before: dict[str, dict], when: str, hint: str = "") -> None:
    for name, module in modules.items():
        changed = [key for key, held in _held(module).items() if held != before[name].get(key)]
        require(not changed, f"{name}: {when} stores {', '.join(changed)} on the module{hint}")


def _held(module: Any) -> dict[str, list[int]]:
    """The identity of each attribute and buffer, of what is in a collection, and the versions of tensors."""

    def held(value: Any) -> list[int]:
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | set) else (value,)
        return [id(value), *map(id, inside), *(one._version for one in inside if isinstance(one, Tensor))]

    return {key: held(value) for key, value in {**vars(module), **module._buffers}.items() if key != "_buffers"}


def on_the_device(flags: Flags) -> None:
    """Tensors made in a stage are on the device of the queries (tested with torch's meta device)."""
    model, component = trained_model(flags), where_placed(flags)
    padding, related = short_sentences()
    x = torch.randn(5, 2, 24)
    made = "a tensor is made without device=context.q.device"
    try:
        with torch.device("meta"):
            steps = decode(model, component, x)
    except RuntimeError as error:
        _of_another_device(error, f"in decoding, {made}")
    require(all(out.value.device.type == "cpu" for out in steps), f"in decoding, {made}")
    carried: Mapping[str, Tensor] = {}
    for attention in attentions_at(model, component)[:2]:  # the second may get what the first carries
        for maps in (True, False):
            given: dict[str, Any] = {"query_padding_mask": padding, "relations": related, "carried": carried}
            try:
                with torch.device("meta"):
                    out = attention.attend(x, x, x, padding, measurement=Measurement(weights=maps), **given)
            except RuntimeError as error:
                _of_another_device(error, made)
            require(out.value.device.type == "cpu", made)
        on_meta = Relations(*(None if one is None else one.to("meta") for one in related))
        moved, pads = x.to("meta"), padding.to("meta")
        before, carried = {name: one.to("meta") for name, one in carried.items()}, out.carry
        given = {"query_padding_mask": pads, "relations": on_meta, "carried": before}
        try:
            attention.to("meta").attend(moved, moved, moved, pads, **given)
        except Exception as error:  # else it looks at values or at the kind of device, which meta has not
            if re.search("same device|expected device|two devices", str(error)):
                _of_another_device(error, "a tensor does not move with the module: keep it by register_buffer")


def _of_another_device(error: Exception, problem: str) -> None:
    """Raise ``PropertyFailed`` if an error is about devices, else the error."""
    reason = " ".join(str(error).split())[:160]
    if "device" in reason or "meta" in reason:
        raise PropertyFailed(f"{problem}: {reason}") from error
    raise error


def attention_dropout(flags: Flags) -> None:
    """In training, --attention-dropout has an effect: two draws differ."""
    _, attend = attending({**flags, "attention_dropout": 0.5})
    x = torch.randn(5, 2, 24)
    require(not torch.allclose(attend(x).value, attend(x).value), "context.dropout has no effect")


def routes_agree(flags: Flags) -> None:
    """Outputs and gradients are the same whether or not attention maps are computed; in training, unless they are
    random: other layouts of the heads have other draws."""

    def run(request: AttentionRequest | None) -> tuple[Tensor, dict[str, Any], list[Tensor]]:
        model.zero_grad()
        output, extra = model(**batch(), attention_request=request)
        output.square().mean().backward()
        return output, extra, [torch.zeros(()) if p.grad is None else p.grad.clone() for p in model.parameters()]

    model, maps = trained_model(flags).double(), AttentionRequest(weights=everywhere(flags))
    for training in (True, False):
        model.train(training)
        explicit, extra, gradients = run(maps)
        if training and not torch.equal(run(maps)[0], explicit):
            continue
        for request in (AttentionRequest(("output",), everywhere(flags)), None):
            output, _, others = run(request)
            # fairseq's plain cross-attention computes its softmax in float32 even in a float64 model
            require_close(output, explicit, "outputs without maps, compared with those with maps")
            for other, gradient in zip(others, gradients, strict=True):
                require_close(other, gradient, "gradients without maps, compared with those with maps")
    require(len(extra["maps"]) == (2 if flags.get("arch") in OF_ROBERTA else 2 + 3 + 3), "maps are missing")
    for (component, _), weights in extra["maps"].items():
        queries, keys = (8, 8) if component == "encoder" else (7, 7) if component == "decoder" else (7, 8)
        require(tuple(weights.shape) == (4, 3, queries, keys), f"{component}: a map of {tuple(weights.shape)}")


def one_graph(flags: Flags, evaluation: bool = True) -> None:
    """torch.compile traces the attention as one graph for all lengths, with the same outputs and gradients.

    Args:
        evaluation: also trace it in evaluation mode.
    """
    component = where_placed(flags)
    attention = attention_at(trained_model(flags), component)
    traced: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        traced.append(graph)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(attention.attend, fullgraph=True, dynamic=True, backend=backend)
    for training in (True, False) if evaluation else (True,):
        attention.train(training)
        traced.clear()
        for length in (6, 9):
            sample = batch((length - 1, length - 4, length - 2), sides=("right", "right"))
            pads = sample["src_tokens"] == dictionary().pad()
            options: dict[str, Any] = {"query_padding_mask": pads, "key_padding_mask": pads}
            x = source = torch.randn(length, 3, 24)
            if component == "cross":
                source = torch.randn(length + 2, 3, 24)
                options |= {"key_padding_mask": torch.nn.functional.pad(pads, (2, 0))}
            if component == "decoder":
                options["attn_mask"] = torch.full((length, length), -torch.inf).triu(1)
            if component == "encoder":
                options["relations"] = relate(sample["source_trees"], ("dependency", "constituency"))
            results = []
            for run in (attention.attend, compiled):
                attention.zero_grad()
                torch.manual_seed(1)  # the same draws
                try:
                    out = run(x, source, source, measurement=Measurement(("output",)), **options)
                except torch._dynamo.exc.TorchDynamoException as error:
                    raise PropertyFailed(f"torch.compile: {str(error).strip().splitlines()[0]}") from None
                assert out.agreement is not None
                (out.value.square().mean() + out.agreement.sum()).backward()
                results.append((out.value, {name: p.grad for name, p in attention.named_parameters()}))
            (expected, gradients), (got, others) = results
            require_close(got, expected, "compiled outputs")
            for name, gradient in gradients.items():
                if gradient is not None:
                    require_close(others[name], gradient, f"{name}: compiled gradient")
        require(len(traced) == 1, f"{len(traced)} graphs for two lengths, not one")


def half_types(flags: Flags, dtype: torch.dtype = torch.bfloat16, need_weights: bool = False) -> None:
    """In bfloat16 or float16, outputs and gradients are finite, also for an all-padding sentence and in decoding.

    Plain fairseq gives NaN for such a sentence, forward and backward.
    """
    model = trained_model(flags).to(dtype)
    pads = torch.zeros(3, 5, dtype=torch.bool)
    pads[1] = True
    trees = batch((4, 4, 4))["source_trees"].masked_fill(pads.unsqueeze(-1), -1)
    given: dict[str, Any] = {"query_padding_mask": pads, "relations": relate(trees, ("dependency", "constituency"))}
    given["measurement"] = Measurement(terms(flags) if need_weights else ("output",), need_weights)
    carried: Mapping[str, Tensor] = {}
    for attention in attentions_at(model, where_placed(flags))[:2]:  # the second may get what the first carries
        x = torch.randn(5, 3, 24, dtype=dtype)
        out = attention.attend(x, x, x, pads, carried=carried, **given)
        assert out.agreement is not None
        loss = torch.zeros(()) if out.loss is None else out.loss.float()
        require(bool(loss.isfinite()), f"{dtype}: a loss is not finite")
        (out.value.float().sum() + out.agreement.sum() + loss).backward()
        require(out.value.dtype == dtype, f"an output of {out.value.dtype} from {dtype}")
        require(bool(out.value.isfinite().all() and out.agreement.isfinite().all()), f"{dtype}: not finite")
        require_finite_gradients(attention, f"{dtype}: a gradient is not finite")
        carried = {name: tensor.detach() for name, tensor in out.carry.items()}
    try:
        steps = decode(model, where_placed(flags), torch.randn(5, 3, 24, dtype=dtype))
    except RuntimeError as error:
        raise PropertyFailed(f"{dtype}: in decoding, {error}") from error
    for out in steps:
        require(out.value.dtype == dtype, f"in decoding, an output of {out.value.dtype} from {dtype}")
        require(bool(out.value.isfinite().all()), f"{dtype}: in decoding, not finite")


def large_logits(flags: Flags) -> None:
    """Outputs and gradients are finite where logits are in the thousands, whose exponentials are not."""
    attention, attend = attending(flags)
    for maps in (True, False):
        out = attend(100 * torch.randn(5, 2, 24), measurement=Measurement(weights=maps))
        out.value.square().mean().backward()
        require(bool(out.value.isfinite().all()), "outputs of large logits are not finite")
        require_finite_gradients(attention, "a gradient of large logits is not finite")
