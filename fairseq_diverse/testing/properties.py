"""Properties of every mechanism on every component; each function takes flags and raises ``PropertyFailed``."""

import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError
from torch.nn.functional import pad as pad_tokens
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_diverse.attention.mechanism import Mechanism
from fairseq_diverse.attention.registry import MECHANISMS, attribute_name
from fairseq_diverse.attention.relations import PADDING, Relations, relate
from fairseq_diverse.attention.request import AttentionRequest, Measurement
from fairseq_diverse.checkpoints.loading import not_finite
from fairseq_diverse.host.programs import parser
from fairseq_diverse.models.diverse_transformer import attentions_at
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.testing import models
from fairseq_diverse.testing.comparing import EVERYWHERE as EVERYWHERE
from fairseq_diverse.testing.comparing import (
    PropertyFailed,
    architecture,
    attending,
    attention_at,
    decode,
    defined_at,
    everywhere,
    require,
    require_close,
    require_finite_gradients,
    short_sentences,
    told,
    trained_model,
    where_placed,
)
from fairseq_diverse.testing.models import Flags, at, batch, build_model, dictionary, examples, placed, terms

LONGER = 40  # words of a target that is longer than blocks and windows
SIDES = (("left", "right"), ("right", "right"), ("left", "left"))  # where source and target are padded
MAPS = Measurement(weights=True)


# --- what a mechanism declares is so; off, neutral and from a checkpoint it is what it should be ---


def declared(name: str) -> None:
    """Mechanisms, settings and parameters named in the class exist; its flags are not fairseq's."""
    mechanism = MECHANISMS[name]
    for attribute in ("refuses", "works_with", "gates"):
        for mentioned in getattr(mechanism, attribute):
            require(mentioned in MECHANISMS or mentioned == "*", f"{attribute}: {mentioned!r} is not a mechanism")
    known = models.settings_attributes()
    for flags in (*mechanism.examples, mechanism.neutral or {}):
        for flag in flags:
            problem = f"examples or neutral: {flag!r} is not a setting"
            require(flag in known, f"{problem}; write it with _, as in parsed arguments")
    for flags in (*examples(name), *([mechanism.neutral] if mechanism.neutral else [])):
        on = name in placed(at(dict(flags), defined_at(name)[0])) and flags.get(attribute_name(name, "on")) == "{on}"
        require(on, f'examples or neutral: {flags} does not switch {name} on at "{{on}}", so that nothing is checked')
    model = build_model(at(examples(name)[0], defined_at(name)[0]))
    modules = [module for module in model.modules() if isinstance(module, Mechanism) and module.name == name]
    parameters = {key for module in modules for key, _ in module.named_parameters()}
    for zero in mechanism.neutral_zeros:
        require(zero in parameters, f"neutral_zeros: {zero!r} is not a parameter")
    required = ["DATA", "--arch", "diverse_transformer_tiny", "--optimizer", "adam", "--criterion", "cross_entropy"]
    parser("train", required)


def off_is_absent(flags: Flags) -> None:
    """With every mechanism off, the model has the keys and outputs of fairseq's ``transformer`` or ``roberta``."""
    switches = {attribute_name(name, MECHANISMS[name].Settings(on="").switch) for name in MECHANISMS}
    settings = {name: value for name, value in flags.items() if name not in switches}
    plain = flags.get("arch", "diverse_transformer").removeprefix("diverse_")
    theirs, ours = build_model({}, plain), build_model(settings)
    off = "with the mechanism off, the model has other"
    require(list(theirs.state_dict()) == list(ours.state_dict()), f"{off} parameters")
    for mode in (True, False):
        expected, got = (model.train(mode)(**batch(parsed=False))[0] for model in (theirs, ours))
        require(torch.equal(expected, got), f"{off} outputs")


def neutral_is_the_baseline(name: str, place: str) -> None:
    """At its neutral setting the mechanism changes nothing."""
    mechanism = MECHANISMS[name]
    flags = at(examples(name)[0] if mechanism.neutral is None else dict(mechanism.neutral), place)
    baseline, model = build_model(architecture(flags)).eval(), build_model(flags).eval()
    model.load_state_dict(baseline.state_dict(), strict=False)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith(tuple(f".{mechanism.key}.{zero}" for zero in mechanism.neutral_zeros)):
                parameter.zero_()
        require_close(model(**batch())[0], baseline(**batch())[0], "outputs")


def shapes(flags: Flags) -> None:
    """Every stage returns what the docstring of ``Mechanism`` says."""
    model = trained_model(flags)
    for module in model.modules():
        if isinstance(module, Mechanism):
            for stage in module.stages() - {"project", "attention", "combine"}:
                setattr(module, stage, partial(_checked, stage, getattr(module, stage)))
    model(**batch())


def _checked(stage: str, method: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a stage. Raises ``PropertyFailed``: it is no tensor, or its shape or type is not the stage's."""
    result, context = method(*arguments), arguments[-1]
    sizes = (*context.q.shape[:3], context.k.size(2))  # B, H, T, S
    if stage == "qkv":
        qkv = [tuple(getattr(x, "shape", ())) for x in result] if isinstance(result, tuple) else []
        fine = len(qkv) == 3 and qkv[0][:3] == sizes[:3] and {x[:3] for x in qkv[1:]} == {(*sizes[:2], sizes[3])}
        require(fine and qkv[0][3] == qkv[1][3], f"qkv returns {qkv}, not q, k, v of (B, H, T or S, width)")
        return result
    require(isinstance(result, Tensor), f"{stage} returns {type(result).__name__}, not a tensor")
    shape = tuple(result.shape)
    if stage in ("bias", "visible"):
        broadcast = len(shape) <= 4 and all(x in (1, y) for x, y in zip(shape[::-1], sizes[::-1], strict=False))
        require(broadcast, f"{stage} returns {shape}, which is not broadcast to (B, H, T, S) {sizes}")
    else:
        heads = (*sizes[:3], context.v.size(3))
        expected = sizes[:2] if stage == "select" else heads if stage == "output_bias" else tuple(arguments[0].shape)
        require(shape == expected, f"{stage} returns {shape}, not {expected}")
    booleans = stage in ("visible", "select")
    wanted = "torch.bool" if booleans else "numbers"
    require((result.dtype == torch.bool) == booleans, f"{stage} returns {result.dtype}, not {wanted}")
    finite = stage != "bias" or bool(result.isfinite().all())
    require(finite, "bias returns numbers that are not finite; the stage visible masks keys")
    return result


def has_an_effect(flags: Flags, without: Flags | None = None) -> None:
    """Outputs are not those of the same parameters without mechanisms, or with those of ``without``, in training or
    evaluation, of short or long sentences; or it adds a loss term."""
    plain = build_model(architecture(flags) if without is None else without).double()
    model = trained_model(flags).double()
    state, plain_state = model.state_dict(), plain.state_dict()
    if any(key not in state or state[key].shape != value.shape for key, value in plain_state.items()):
        return  # projections of other widths
    plain.load_state_dict({key: state[key] for key in plain_state})
    for sample in (batch(), batch((62, 4), (61, 6))):
        for training in (True, False):
            torch.manual_seed(1)
            output, extra = model.train(training)(**sample)
            torch.manual_seed(1)
            expected = plain.train(training)(**sample)[0]
            same = torch.allclose(output, expected, rtol=0, atol=3e-7)  # fairseq's own softmax is in float32
            if extra["losses"] or not same:
                return
    raise PropertyFailed("the outputs are those without it; does each stage return what it changes?")


WIDTHS = {"share_all_embeddings": False, "decoder_embed_dim": 48, "decoder_output_dim": 48}


def warm_start(flags: Flags) -> None:
    """A model with the mechanism loads a plain model's parameters; new parameters keep their initial values."""
    both = ((architecture(flags), 1), (flags, 2))
    plain, model = (build_model({**WIDTHS, **more}, seed=seed).state_dict() for more, seed in both)
    started = build_model({**WIDTHS, **flags}, seed=2)
    started.load_state_dict(dict(plain))
    for key, value in started.state_dict().items():
        expected = plain[key] if key in plain and plain[key].shape == value.shape else model[key]
        require(torch.equal(value, expected), f"{key}: neither the plain model's nor its initial value")


RELOAD = """
import sys, torch
import fairseq_diverse
from fairseq_diverse.host.programs import import_user_dir
fairseq_diverse.register()
if sys.argv[1]:
    import_user_dir(sys.argv[1])
from fairseq_diverse.testing.models import batch, build_model
for flags, state, expected in torch.load(sys.argv[2], weights_only=True):
    model = build_model(flags, seed=9)
    model.load_state_dict(state)
    with torch.no_grad():
        print(float((model.eval()(**batch())[0] - expected).abs().max()))
"""


def reload(cases: list[Flags], user_dir: str | None = None) -> list[float]:
    """The largest difference between outputs before and after a new process reloads the model, one number per case."""
    built = [trained_model(flags).eval() for flags in cases]
    for key, value in (wrong for model in built if (wrong := not_finite(model.state_dict()))):
        todo = "keep a constant out of it by register_buffer(..., persistent=False)"
        raise PropertyFailed(f"{key}: {value:.3g} in a checkpoint would be taken for damage; {todo}")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        file = Path(folder, "models.pt")
        kept = zip(cases, built, strict=True)
        torch.save([(flags, model.state_dict(), model(**batch())[0]) for flags, model in kept], file)
        command = [sys.executable, "-c", RELOAD, user_dir or "", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PropertyFailed(f"cannot be loaded: {done.stderr.strip().splitlines()[-1]}")
    return [float(line) for line in done.stdout.split()]


# --- calls leave nothing behind, stay on their device, and give finite numbers on every route ---


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
        return [id(value), *map(id, inside), *(item._version for item in inside if isinstance(item, Tensor))]

    return {key: held(value) for key, value in {**vars(module), **module._buffers}.items() if key != "_buffers"}


def on_the_device(flags: Flags) -> None:
    """Tensors made in a stage are on the device of the queries (tested with torch's meta device)."""
    model, component = trained_model(flags), where_placed(flags)
    padding, related = short_sentences()
    x = torch.randn(5, 2, 24)
    problem = "a tensor is made without device=context.q.device"
    with _devices(f"in decoding, {problem}"), torch.device("meta"):
        steps = decode(model, component, x)
    require(all(out.value.device.type == "cpu" for out in steps), f"in decoding, {problem}")
    carried: Mapping[str, Tensor] = {}
    for attention in attentions_at(model, component)[:2]:  # the second may get what the first carries
        for maps in (True, False):
            options: dict[str, Any] = {"query_padding_mask": padding, "relations": related, "carried": carried}
            with _devices(problem), torch.device("meta"):
                out = attention.attend(x, x, x, padding, measurement=Measurement(weights=maps), **options)
            require(out.value.device.type == "cpu", problem)
        on_meta = Relations(*(None if relation is None else relation.to("meta") for relation in related))
        moved, pads = x.to("meta"), padding.to("meta")
        before, carried = {name: tensor.to("meta") for name, tensor in carried.items()}, out.carry
        options = {"query_padding_mask": pads, "relations": on_meta, "carried": before}
        try:
            attention.to("meta").attend(moved, moved, moved, pads, **options)
        except Exception as error:  # else it looks at values or at the kind of device, which meta has not
            if re.search("same device|expected device|two devices", str(error)):
                with _devices("a tensor does not move with the module: keep it by register_buffer"):
                    raise


@contextmanager
def _devices(problem: str) -> Iterator[None]:
    """Make an error about devices a ``PropertyFailed``."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:160]
        if "device" in reason or "meta" in reason:
            raise PropertyFailed(f"{problem}: {reason}") from error
        raise


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
            output, _, route_gradients = run(request)
            # fairseq's plain cross-attention computes its softmax in float32 even in a float64 model
            require_close(output, explicit, "outputs without maps, compared with those with maps")
            for route_gradient, gradient in zip(route_gradients, gradients, strict=True):
                require_close(route_gradient, gradient, "gradients without maps, compared with those with maps")
    require(len(extra["maps"]) == (2 if flags.get("arch") in models.OF_ROBERTA else 2 + 3 + 3), "maps are missing")
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
            (expected, gradients), (got, compiled_gradients) = results
            require_close(got, expected, "compiled outputs")
            for name, gradient in gradients.items():
                if gradient is not None:
                    require_close(compiled_gradients[name], gradient, f"{name}: compiled gradient")
        require(len(traced) == 1, f"{len(traced)} graphs for two lengths, not one")


def half_types(flags: Flags, dtype: torch.dtype = torch.bfloat16, need_weights: bool = False) -> None:
    """In bfloat16 or float16, outputs and gradients are finite, also for an all-padding sentence and in decoding.

    Plain fairseq gives NaN for such a sentence, forward and backward.
    """
    model = trained_model(flags).to(dtype)
    pads = torch.zeros(3, 5, dtype=torch.bool)
    pads[1] = True
    trees = batch((4, 4, 4))["source_trees"].masked_fill(pads.unsqueeze(-1), -1)
    options: dict[str, Any] = {"query_padding_mask": pads, "relations": relate(trees, ("dependency", "constituency"))}
    options["measurement"] = Measurement(terms(flags) if need_weights else ("output",), need_weights)
    carried: Mapping[str, Tensor] = {}
    for attention in attentions_at(model, where_placed(flags))[:2]:  # the second may get what the first carries
        x = torch.randn(5, 3, 24, dtype=dtype)
        out = attention.attend(x, x, x, pads, carried=carried, **options)
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


# --- every parameter has a right, finite gradient, also with activation checkpointing and LayerDrop ---


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
    parameters = [(f"{module.name}: {name}", value) for module in modules for name, value in module.named_parameters()]
    still, optimizer = set(range(len(parameters))), torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(UPDATES):
        if not still:
            break
        optimizer.zero_grad()
        output, extra = model(**batch())
        sum(extra["losses"].values(), output.float().square().mean()).backward()
        for number, (name, parameter) in enumerate(parameters):
            largest = 0.0 if parameter.grad is None else float(parameter.grad.abs().max())
            require(math.isfinite(largest), f"{name}: at the initial values its gradient is not finite")
            still -= {number} if largest else set()
        optimizer.step()
    never = parameters[min(still)][0] if still else ""
    require(not still, f"{never} has no gradient at the initial values and in the first updates, so it never learns")


def _unregistered(value: Any) -> bool:
    """Whether parameters or modules are in a list, tuple or dictionary, where a module does not find them."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return any(isinstance(item, torch.nn.Parameter | torch.nn.Module) or _unregistered(item) for item in inside)


def gradients(flags: Flags, disagreement: bool = False) -> None:
    """Every parameter has a finite, non-zero gradient, the same where activations (above frozen embeddings) or maps are
    computed again."""
    request = AttentionRequest(terms(flags), everywhere(flags)) if disagreement else None
    plain = _gradients(flags, request)
    for parameter, gradient in plain.items():
        require(gradient is not None, f"{parameter}: no gradient")
        require(bool(gradient.isfinite().all()), f"{parameter}: its gradient is not finite")
        if not parameter.endswith("k_proj.bias"):  # softmax ignores a constant added to every key
            require(bool(gradient.abs().max() > 0), f"{parameter}: its gradient is 0")
    for option in ("checkpoint_activations", "recompute_maps"):
        flag = f"--{option.replace('_', '-')}"
        frozen = option == "checkpoint_activations"
        for parameter, gradient in _gradients({**flags, option: True}, request, frozen).items():
            require(gradient is not None, f"{parameter}: no gradient with {flag}")
            require_close(gradient, plain[parameter], f"{parameter}, with {flag}")


def _gradients(flags: Flags, request: AttentionRequest | None, frozen: bool = False) -> dict[str, Tensor]:
    """``frozen``: without those of embeddings."""
    model = trained_model(flags)
    for module in model.modules():
        if frozen and isinstance(module, torch.nn.Embedding):
            module.requires_grad_(False)
    output, extra = model(**batch(), attention_request=request)
    for name, loss in extra["losses"].items():
        require(loss.requires_grad, f"loss {name}: it has no gradient")
    loss = sum(extra["losses"].values(), output.float().square().mean())
    if request is not None:
        loss = loss + extra["agreement"].sum()
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.numel() and p.requires_grad}


def gradients_in_float64(flags: Flags) -> None:
    """The gradients of an attention equal finite differences."""
    component = where_placed(flags)
    attention = attention_at(trained_model(flags), component).double()
    padding, related = short_sentences()
    x, keys = (torch.randn(5, 2, 24, dtype=torch.float64, requires_grad=True) for _ in range(2))
    parameters = [p for p in attention.parameters() if p.requires_grad]

    def attend(x: Tensor, keys: Tensor, *_: Tensor) -> Tensor:
        source = keys if component == "cross" else x
        options: dict[str, Any] = {"query_padding_mask": padding, "relations": related, "measurement": MAPS}
        return attention.eval().attend(x, source, source, padding, **options).value[:, :, ::5]

    try:
        torch.autograd.gradcheck(attend, (x, keys, *parameters), fast_mode=True)
    except GradcheckError as error:
        reason = " ".join(str(error).split())[:120]
        raise PropertyFailed(f"gradients differ from finite differences: {reason}") from None


class _Additions(TorchDispatchMode):
    """Whether an operator adds many values into places given by indices, one by one on a GPU."""

    adds = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket in (torch.ops.aten.index_put, torch.ops.aten.index_put_):
            self.adds |= args[3] if len(args) > 3 else kwargs.get("accumulate", False)
        return func(*args, **kwargs)


def fast_gradients(flags: Flags) -> None:
    """No table with a gradient is read as ``table[index]``: a GPU adds such gradients one by one, which is slow."""
    _, attend = attending(flags)
    with _Additions() as mode:
        attend(torch.randn(5, 2, 24)).value.sum().backward()
    require(not mode.adds, "x[index] is differentiated, slow on a GPU: expand x and use gather, or use F.embedding")


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


# --- no output depends on later tokens, on padding, or on whether it is computed step by step ---


def causality(flags: Flags, training: bool = False) -> None:
    """No output at target position t depends on a target token after t."""
    model = trained_model(flags).train(training)

    def outputs(sample: dict[str, Tensor]) -> Tensor:
        torch.manual_seed(1)  # the same draws
        return model(**sample)[0]

    with torch.no_grad():
        for length, positions in ((6, range(1, 7)), (LONGER, range(11, LONGER, 12))):
            sample = batch(target=(length,) * 3)
            before = outputs(sample)
            for position in positions:
                changed = {**sample, "prev_output_tokens": sample["prev_output_tokens"].clone()}
                changed["prev_output_tokens"][:, position:] = 4 + (changed["prev_output_tokens"][:, position:] + 7) % 26
                after = outputs(changed)
                require_close(after[:, :position], before[:, :position], f"outputs before position {position}", 1e-6)
                require(not torch.allclose(after[:, position:], before[:, position:]), "later outputs do not change")


def padding(flags: Flags, sides: Iterable[tuple[str, str]] = SIDES) -> None:
    """A sentence has the same outputs alone and in a padded batch."""
    model = trained_model(flags)
    has_losses = bool(model(**batch())[1]["losses"])  # some may be of training only
    model.eval()
    pad = dictionary().pad()
    for padded_on in sides:
        sample = batch(sides=padded_on)
        with torch.no_grad():
            together, _ = model(**sample)
            for row in range(3):
                src, tgt = sample["src_tokens"][row], sample["prev_output_tokens"][row]
                trees = sample["source_trees"][row][src != pad][None]
                real = (src if flags.get("arch") in models.OF_ROBERTA else tgt) != pad
                src, tgt = src[src != pad][None], tgt[tgt != pad][None]
                lengths = torch.tensor([src.size(1)])
                single = {"src_tokens": src, "prev_output_tokens": tgt, "source_trees": trees, "src_lengths": lengths}
                alone, _ = model(**single)
                where = " and ".join(padded_on)
                require_close(together[row, real], alone[0], f"a sentence alone, compared with a batch padded {where}")
                if has_losses:  # of a batch they may be sums or means: of this sentence, with and without padding
                    at_source, at_target = ((3, 0) if side == "left" else (0, 3) for side in padded_on)
                    padded = single | {"src_tokens": pad_tokens(src, at_source, value=pad)}
                    padded |= {"prev_output_tokens": pad_tokens(tgt, at_target, value=pad)}
                    padded |= {"source_trees": pad_tokens(trees, (0, 0, *at_source), value=PADDING[0])}
                    for training in (True, False):
                        model.train(training)
                        first, again, padded_losses = (model(**x)[1]["losses"] for x in (single, single, padded))
                        for name, loss in first.items():
                            if torch.equal(loss, again[name]):  # else it is random
                                require_close(padded_losses[name], loss, f"loss {name} of a sentence padded {where}")


def step_by_step(flags: Flags, beam: int = 5, side: str = "left", steps: int = 6, left: Sequence[int] = ()) -> None:
    """Decoding with randomly reordered beams, or of the rows ``left`` after the first step, equals the full pass."""
    model = trained_model(flags).eval()
    sample = batch(sides=(side, "right"))
    generator = torch.Generator().manual_seed(beam)
    sentences = 3
    rows = torch.arange(sentences).repeat_interleave(beam)
    with torch.no_grad():
        encoded = model.encoder(sample["src_tokens"], sample["src_lengths"], source_trees=sample["source_trees"])
        encoded = model.encoder.reorder_encoder_out(encoded, rows)
        state: dict = {}
        tokens = torch.full((sentences * beam, 1), 2)
        for step in range(1, steps + 1):
            if step > 1:  # reorder within each sentence's beam, as beam search does, then extend
                beams = torch.randint(beam, rows.shape, generator=generator) + rows * beam
                order = torch.tensor(left) if left else beams
                model.decoder.reorder_incremental_state_scripting(state, order)
                encoded = model.encoder.reorder_encoder_out(encoded, order)
                tokens = torch.cat([tokens[order], torch.randint(4, 30, (len(order), 1), generator=generator)], 1)
            stepwise, _ = model.decoder(tokens, encoded, incremental_state=state)
            full, _ = model.decoder(tokens, encoded)
            hint = " (context.memory has what it needs of earlier ones)" * (step > 1)
            what = "a step after a sentence has left" if left else f"step {step} with a beam of {beam}{hint}"
            require_close(stepwise[:, -1], full[:, -1], f"{what}, compared with the full pass")


def gradients_step_by_step(flags: Flags) -> None:
    """Gradients of decoding step by step, also where maps are computed again, equal those of the full pass."""
    sample = batch(target=(4, 4, 4))
    tokens = sample["prev_output_tokens"]

    def gradients_of(ends: Iterable[int], state: dict | None, again: bool = False) -> dict[str, Tensor | None]:
        model = trained_model({**flags, "recompute_maps": again}).eval()
        encoded = model.encoder(sample["src_tokens"], sample["src_lengths"], source_trees=sample["source_trees"])
        outputs = [model.decoder(tokens[:, :end], encoded, incremental_state=state)[0] for end in ends]
        torch.cat(outputs, 1).square().mean().backward()
        return {name: parameter.grad for name, parameter in model.named_parameters()}

    length = tokens.size(1)
    full = gradients_of([length], None)
    for again in (False, True):
        flag = ", with --recompute-maps" * again
        for parameter, gradient in gradients_of(range(1, length + 1), {}, again).items():
            if (expected := full[parameter]) is not None:
                require(gradient is not None, f"{parameter}: no gradient in decoding step by step{flag}")
                assert gradient is not None
                require_close(gradient, expected, f"{parameter}, in decoding step by step{flag}")


def finished_sentences_leave(flags: Flags) -> None:
    """In decoding, after finished sentences left the batch, the other outputs still equal those of the full pass."""
    step_by_step(flags, beam=1, steps=2, left=[0, 2])


# --- a mechanism works with every other one on the same attention ---


def with_others(name: str, component: str, others: Iterable[str] | None = None) -> None:
    """On one attention with each other mechanism that it does not refuse, training and decoding work, and both
    mechanisms have an effect."""
    others = [other for other in MECHANISMS if other != name] if others is None else others
    ours = at(examples(name)[0], component)
    for other in (other for other in others if component in MECHANISMS[other].components):
        theirs = at(examples(other)[0], component)
        flags = {**theirs, **ours}
        try:
            build_model(flags)
        except UserError:
            continue
        if (failure := _together(flags)) and not _together(theirs):  # else the other is wrong
            raise PropertyFailed(f"with {other}: {failure}")
        for mechanism, alone, without in (name, ours, theirs), (other, theirs, ours):
            if mechanism in placed(without) or _acts(flags, without) or not _acts(alone):
                continue  # an example may have several mechanisms, and one may do nothing by itself
            why = "; the stage attention masks keys by context.visible" * ("attention" in MECHANISMS[name].stages())
            raise PropertyFailed(f"with {other}: {mechanism} has no effect{why}")


def _acts(flags: Flags, without: Flags | None = None) -> bool:
    try:
        has_an_effect(flags, without)
    except PropertyFailed:
        return False
    return True


def _together(flags: Flags) -> str:
    """What fails first of training, padding and decoding; empty if nothing does."""
    try:
        gradients(flags)
        padding(flags, SIDES[:1])
        if where_placed(flags) != "encoder":
            causality(flags)
            step_by_step(flags)
    except Exception as error:  # a mechanism may raise anything
        return told(error)
    return ""


# checked and printed by `check`, for each setting on each component
PROPERTIES: dict[str, Callable[[Flags], None]] = {
    "off = absent": off_is_absent,
    "has an effect": has_an_effect,
    "learns from its initial values": learns,
    "the same twice, and in long sentences": called_twice,
    "on the device of the queries": on_the_device,
    "gradients that a GPU adds fast": fast_gradients,
    "attention dropout": attention_dropout,
    "shapes of what the stages return": shapes,
    "gradients, also with activation checkpointing": gradients,
    "gradients with disagreement": lambda flags: gradients(flags, disagreement=True),
    "gradients = finite differences (float64)": gradients_in_float64,
    "causality": causality,
    "causality in training": lambda flags: causality(flags, training=True),
    "alone = in a padded batch": padding,
    "step by step = full pass, beam 1": lambda flags: step_by_step(flags, beam=1, steps=LONGER),
    "step by step = full pass, beam 5 reordered": step_by_step,
    "step by step = full pass, gradients": gradients_step_by_step,
    "finished sentences leave the batch": finished_sentences_leave,
    "bfloat16 finite, without maps": half_types,
    "bfloat16 finite, with maps": lambda flags: half_types(flags, need_weights=True),
    "float16 finite, with maps": lambda flags: half_types(flags, torch.float16, need_weights=True),
    "finite with large logits": large_logits,
    "with maps = without": routes_agree,
    "one graph of torch.compile": one_graph,
    "LayerDrop": layerdrop,
    "warm start from a plain model": warm_start,
}


OF_DECODERS = ("causality", "step by step", "finished sentences")  # their titles' first words


def applies(title: str, place: str) -> bool:
    """Whether a property of ``PROPERTIES`` can be checked at a place."""
    return place != models.ROBERTA or not title.startswith(OF_DECODERS)
