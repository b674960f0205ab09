"""Mechanisms of a user: what the registry accepts, and one line for everything else."""

import argparse
import itertools
import math
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest
import torch
from fairseq.criterions import CRITERION_REGISTRY
from torch import nn
from torch.nn.functional import dropout

from fairseq_diverse.attention import (
    MECHANISMS,
    AttentionContext,
    Mechanism,
    MechanismSettings,
    StandaloneAttention,
    option,
    placement,
    register_mechanism,
)
from fairseq_diverse.attention.functional.masking import masked_softmax
from fairseq_diverse.attention.mechanisms.value_residual import ValueResidual
from fairseq_diverse.attention.registry import add_flags, read_settings
from fairseq_diverse.attention.request import AttentionRequest
from fairseq_diverse.attention.warm_start import only_trained
from fairseq_diverse.cli import main
from fairseq_diverse.experiments.runs import check
from fairseq_diverse.host.programs import architectures, fill_architecture
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.testing import properties
from fairseq_diverse.testing.models import at
from tests.cases import batch, build_model, dictionary
from tests.reference.agreement import position_agreement
from tests.refusals import refused


@pytest.fixture(autouse=True)
def registered_again():
    before = dict(MECHANISMS)
    yield
    MECHANISMS.clear()
    MECHANISMS.update(before)


@dataclass(frozen=True)
class On(MechanismSettings):
    on: str = placement("", "placement; empty = off")


class CarriesValues(ValueResidual):
    """Registered again under another name."""


@dataclass(frozen=True)
class Joined(On):
    how: str = option("sum", "help", choices=["mean", "max"])


def mechanism(settings=On, **members):
    members.setdefault("logits", lambda self, logits, context: logits)
    return type("Own", (Mechanism,), {"Settings": settings, **members})


def own(settings=On, **members):
    register_mechanism("own")(mechanism(settings, **members))


def settings(**fields):
    made = {name: option(value, "help") for name, value in fields.items()}
    types = {"__annotations__": {name: type(value) for name, value in fields.items()}}
    return dataclass(frozen=True)(type("Settings", (On,), types | made))


def untyped(**values):
    return dataclass(frozen=True)(type("Settings", (On,), values))


@pytest.mark.parametrize(
    ("name", "cls", "options", "message"),
    [
        ("routing", mechanism(), {}, "'routing': the name is taken by .*RoutedAggregation"),
        ("My_own", mechanism(), {}, "'My_own': a name is lower-case words joined by '-'"),
        ("own", mechanism(), {"before": "nothing"}, "before='nothing' is not a mechanism; known are "),
        ("own", mechanism(logit=lambda self, x, context: x), {}, "'own': logit is not a stage; stages are pro"),
        ("own", mechanism(components=("encodr",)), {}, r"components \('encodr',\): give a tuple of encoder"),
        ("own", mechanism(refuses=["evolving"]), {}, "refuses .'evolving'.: give a dictionary, mechanism -> reason"),
        ("own", mechanism(untyped(rate=0.5)), {}, "Settings.rate: give its type, rate: float = option"),
        ("own", type("Own", (Mechanism,), {"Settings": On}), {}, "'own': it has no method for a stage"),
        ("own", mechanism(settings=int), {}, "its class Settings must be a dataclass"),
        ("encoder-own", mechanism(), {}, "--encoder-own-on: fairseq reserves flags with this prefix"),
        ("own", mechanism(key="talking"), {}, "its key 'talking' is used by the mechanism 'talking'"),
        ("own", mechanism(examples={"own_on": "decoder"}), {}, "examples {'own_on': 'decoder'}: give a list of dict"),
        ("qk-head", mechanism(settings(dim=1)), {}, "--qk-head-dim is a flag of the mechanism 'qk-head-dim'"),
        ("own", mechanism(Joined), {}, "Settings.how: its default 'sum' is not among the choices mean, max"),
    ],
)
def test_errors_are_one_line(name, cls, options, message):
    before = dict(MECHANISMS)
    with pytest.raises(UserError, match=message) as error:
        register_mechanism(name, **options)(cls)
    assert "\n" not in str(error.value) and before == MECHANISMS


def test_a_flag_of_fairseq_is_refused():
    register_mechanism("dropout")(mechanism(settings(kind=0)))
    parser = argparse.ArgumentParser()
    parser.add_argument("--dropout")
    refused("'dropout': --dropout is a flag of fairseq", add_flags, parser)


def test_order_of_mechanisms():
    register_mechanism("first", before="talking")(mechanism())
    register_mechanism("last")(mechanism())
    names = [*MECHANISMS]
    assert names.index("first") == names.index("talking") - 1 and names[-1] == "last"


CELL = """
from dataclasses import dataclass
from fairseq_diverse.attention import Mechanism, MechanismSettings, option, placement, register_mechanism

@register_mechanism("own"{before})
class {name}(Mechanism):
    @dataclass(frozen=True)
    class Settings(MechanismSettings):
        on: str = placement("", "placement; empty = off")
        {field}: float = option(1.0, "help")

    def logits(self, logits, context):
        raise KeyError("lost")
"""


def test_a_cell_of_a_notebook_is_run_again(monkeypatch):
    """There a class has no file. The edited one replaces the earlier one, and errors tell its line."""
    notebook = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", notebook)

    def run(name="Own", field="first", before=""):
        exec(compile(CELL.format(name=name, field=field, before=before), "<cell>", "exec"), vars(notebook))

    run()
    register_mechanism("last")(mechanism())
    with pytest.raises(KeyError) as failed:
        build_model({"own_on": "encoder", "own_first": 2.0})(**batch())
    assert properties.told(failed.value) == "KeyError: 'lost' (<cell>:13)"
    run(field="second")
    assert MECHANISMS["own"] is notebook.Own and [*MECHANISMS][-2:] == ["own", "last"]
    refused("'own_first': not a flag", build_model, {"own_first": 2.0})
    run(before=", before='talking'")
    names = [*MECHANISMS]
    assert names.index("own") == names.index("talking") - 1
    refused(r"'own': the name is taken by __main__\.Own", run, name="Other")


def documented(name, beginning=""):
    """A method of docs/adding-a-mechanism.md, by its name and the beginning of its body."""
    text = (Path(__file__).resolve().parents[2] / "docs/adding-a-mechanism.md").read_text(encoding="utf-8")
    names = {"torch": torch, "Tensor": torch.Tensor, "AttentionContext": AttentionContext}
    exec(re.search(rf"```python\n(def {name}\(self, [^\n]*\n    {beginning}.*?)```", text, re.DOTALL)[1], names)
    return names[name]


class Sparsemax(Mechanism):
    """weights = the point of the simplex that is nearest to the logits"""

    Settings = On
    normalize = documented("normalize")


class OneMore(Mechanism):
    """weights = exp(logits) / (1 + sum of exp(logits)): heads may attend to nothing"""

    Settings = On

    def normalize(self, logits, context):
        return torch.cat([logits, torch.zeros_like(logits[..., :1])], -1).softmax(-1)[..., :-1]


def sparsemax(logits):
    """The threshold found by bisection."""
    low, high = min(logits) - 1, max(logits)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(max(x - middle, 0) for x in logits) > 1 else (low, middle)
    return [max(x - low, 0) for x in logits]


def one_more(logits):
    return [math.exp(x) / (1 + sum(map(math.exp, logits))) for x in logits]


@pytest.mark.parametrize(("own", "loop"), [(Sparsemax, sparsemax), (OneMore, one_more)])
def test_the_softmax_can_be_replaced(own, loop):
    register_mechanism("own")(own)
    attention = StandaloneAttention(24, 4, mechanisms={"own": {}}).double()
    x, real = 2 * torch.randn(2, 5, 24, dtype=torch.float64), torch.tensor([5, 3])
    output = attention.attend(x, x, x, torch.arange(5) >= real[:, None], need_weights=True)
    q, k, v = (p(x).unflatten(-1, (4, 6)) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
    heads = torch.zeros(2, 5, 4, 6, dtype=torch.float64)
    for b, h, t in itertools.product(range(2), range(4), range(5)):
        weights = loop([float(q[b, t, h] @ k[b, s, h]) / 6**0.5 for s in range(real[b])]) + [0.0] * (5 - int(real[b]))
        assert output.weights[b, h, t].tolist() == pytest.approx(weights, abs=1e-12)
        heads[b, t, h] = sum(weight * v[b, s, h] for s, weight in enumerate(weights))
    torch.testing.assert_close(output.value, attention.out_proj(heads.flatten(2)))


def test_the_position_term_of_own_weights_below_zero():
    def differences(self, logits, context):
        return (weights := logits.softmax(-1)) - 0.5 * weights.roll(1, 1)

    own(normalize=differences)
    request = AttentionRequest(("position",), "encoder:2", weights="encoder:2")
    _, extra = build_model({"own_on": "encoder"}).double().eval()(**batch(), attention_request=request)
    maps = extra["maps"]["encoder", 2].transpose(0, 1)
    assert (maps < 0).any()
    expected = position_agreement(maps.tolist(), (batch()["src_tokens"] != dictionary().pad()).tolist())
    assert extra["agreement"].item() == pytest.approx(expected)


def has_every_property(cls, place):
    """One graph of torch.compile, which takes a second, in the decoder alone."""
    register_mechanism("own")(cls)
    for title, holds in properties.PROPERTIES.items():
        if properties.applies(title, place) and (title != "one graph of torch.compile" or place == "decoder"):
            holds(at({"own_on": "{on}"}, place))


def test_what_replaces_the_softmax_works_with_other_mechanisms():
    register_mechanism("own")(Sparsemax)
    flags = {"own_on": "encoder", "relative_on": "encoder", "talking": "both", "talking_on": "encoder"}
    for holds in (properties.padding, properties.gradients, properties.gradients_in_float64):
        holds(flags)


def initialized(**attributes):
    """A class whose attributes are made anew for each attention."""

    def __init__(self, settings, where):
        Mechanism.__init__(self, settings, where)
        for name, make in attributes.items():
            setattr(self, name, make(where))

    return __init__


def carries(values):
    """A stage that changes the values where the layer before carries its."""

    def qkv(self, context):
        context.carry = context.v
        return context.q, context.k, context.v if context.previous is None else values(context)

    return qkv


def parameter(value):
    return lambda where: nn.Parameter(torch.tensor(value))


def of(stage, change, **attributes):
    """A mechanism whose stage is a function of what it is given; its attributes are made for each attention."""
    made = {"__init__": initialized(**attributes)} if attributes else {}
    return {stage: lambda self, *given: change(*given), **made}


def of_heads(change):
    return of("heads", lambda heads, context: change(heads))


def with_loss(loss):
    return of("heads", lambda heads, context: context.add_loss(loss(heads)) or heads)


def of_own(change, **attributes):
    """A mechanism whose heads are multiplied by a function of the module."""
    return {"__init__": initialized(**attributes), "heads": lambda self, heads, context: heads * change(self)}


def memory(own, context):
    return context.memory


def itself(own, context):
    """A memory that is not reordered with the beams."""
    return own.kept


def by_heads(self, heads, context):
    if context.memory is not None:
        context.memory["last"] = heads.transpose(0, 1)
    return heads


def counted_steps(self, heads, context):
    """Scaled by the position, which in decoding is counted on the module: right for the first batch only."""
    if context.memory is None:
        return heads * torch.arange(1, heads.size(2) + 1, device=heads.device)[:, None]
    self.steps += 1
    return heads * self.steps


def listed(where):
    return [nn.Parameter(torch.tensor(0.5))] * where.heads


def slopes(where):
    return 0.5 ** torch.arange(1.0, where.heads + 1)


DEAD = {"a": parameter(0.0), "b": parameter(0.0)}


def adds_the_last(memory, **first):
    """A mechanism that adds the heads of the position before, of which decoding keeps the last in a memory."""

    def gate(self, heads, context):
        if context.memory is None:
            return heads + torch.cat([torch.zeros_like(heads[:, :, :1]), heads[:, :, :-1]], 2)
        kept, last = memory(self, context), torch.zeros(heads.shape, **first)
        if "last" in kept and kept["last"].shape == heads.shape:
            last = kept["last"]
        kept["last"] = heads
        return heads + last

    return {"__init__": initialized(kept=lambda where: {}), "gate": gate}


@pytest.mark.parametrize(
    "members",
    [
        {"logits": lambda self, logits, context: logits * 1.2},
        {"logits": lambda self, logits, context: logits if self.training else logits * 2},
        {"logits": lambda self, logits, c: logits * (2 if torch.is_autocast_enabled(logits.device.type) else 3)},
        {
            "visible": lambda self, c: (
                (k := torch.arange(c.k.size(2), device=c.q.device)) - k[-c.q.size(2) :, None] >= -16
            )
        },
    ],
    ids=["small", "in evaluation", "by the kind of device", "in long sentences"],
)
def test_check_knows_effects_of_every_kind(members):
    register_mechanism("own")(type("Own", (Mechanism,), {"Settings": On, **members}))
    for place in ("encoder", "roberta"):
        flags = at({"own_on": "{on}"}, place)
        properties.has_an_effect(flags)
        properties.on_the_device(flags)


@pytest.mark.parametrize("stage", ["bias", "visible"])
def test_what_is_broadcast_may_have_one_dimension(stage):
    """Also where there is no mask."""

    def nearly_all(self, context):
        keys = torch.arange(context.k.size(2), device=context.k.device)
        return keys < 5 if stage == "visible" else -0.1 * keys.type_as(context.k)

    register_mechanism("own")(type("Own", (Mechanism,), {"Settings": On, stage: nearly_all}))
    attention, x = StandaloneAttention(24, 4, mechanisms={"own": {}}), torch.randn(2, 6, 24)
    fused, explicit = (attention.attend(x, x, x, need_weights=maps).value for maps in (False, True))
    torch.testing.assert_close(fused, explicit)


@pytest.mark.parametrize("stage", ["select", "normalize", "combine"])
def test_only_one_mechanism_has_a_stage_whose_result_replaces(stage):
    for name in ("own", "other"):
        register_mechanism(name)(mechanism(**{stage: lambda self, *given: given[0]}))
    build_model({"own_on": "encoder:1", "other_on": "encoder:2"})
    with pytest.raises(UserError, match=f"encoder:2 has own and other: only one can have the stage {stage}; place "):
        build_model({"own_on": "encoder", "other_on": "encoder:2"})


@pytest.mark.parametrize(
    ("cls", "flags", "said"),
    [
        (Sparsemax, 'own-on: "encoder:2", differential-on: encoder', "encoder:2 has differential and own: differen"),
        (mechanism(__init__=lambda self, settings, where: settings.rate), "own-on: cross", r"\S+\.py:\d+: Attrib.*\n$"),
    ],
)
def test_a_row_whose_model_cannot_be_built_is_refused(cls, flags, said, table, monkeypatch, capsys):
    """Before anything runs, and with the place of a mechanism's error."""
    monkeypatch.setattr(check, "PARSERS", {})
    register_mechanism("own")(cls)
    name = table(("fp16: true", f"arch: diverse_transformer, {flags}"))
    assert main(["run", name, "--dry-run", "--data", "toy"]) == 2
    out, err = capsys.readouterr()
    assert re.search(f"row second: {said}", err) and out == "" and err.count("\n") == 1


class Router(Mechanism):
    """heads[h] * H * softmax(W x)[h], and a loss of the mean shares"""

    Settings = On
    heads = documented("heads", "share = ")

    def __init__(self, settings, where):
        super().__init__(settings, where)
        self.router = nn.Linear(where.query_width, where.heads)


class DropsHeads(Mechanism):
    """In training, heads are dropped and the others scaled (Zhou et al., 2020, "Scheduled DropHead")"""

    Settings = On

    def heads(self, heads, context):
        kept = torch.rand(*heads.shape[:2], 1, 1, device=heads.device) > 0.3
        kept = kept if self.training else torch.ones_like(kept)
        return heads * kept / kept.type_as(heads).mean().clamp(min=0.1)


class HardCoded(Mechanism):
    """weights[h, t, s] = softmax_s(-(s - t - shift[h])^2 / 2), without queries and keys (You et al., 2020)"""

    Settings = On
    components = ("encoder", "decoder")
    refuses: ClassVar = {"qk-head-dim": "there are no queries"}

    def __init__(self, settings, where):
        super().__init__(settings, where)
        shift = torch.arange(where.heads) % 3 - 1
        self.register_buffer("shift", shift.clamp(max=0) if where.component == "decoder" else shift)

    @classmethod
    def project(cls, settings, where):
        return replace(where, key_width=0)

    def bias(self, context):
        t, s = (torch.arange(x.size(2), device=x.device) for x in (context.q, context.k))
        distance = s - (t + len(s) - len(t))[:, None] - self.shift[:, None, None]
        return (-distance.square() / 2).to(context.q.dtype)


PLACES = "encoder", "decoder", "cross", "roberta"
FAST = {Router: "decoder", CarriesValues: "cross", DropsHeads: "encoder", HardCoded: "roberta", Sparsemax: "encoder"}
FAST |= {OneMore: "decoder"}  # there alone


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize(
    ("cls", "place"),
    [
        pytest.param(cls, place, marks=[pytest.mark.slow] * (place != fast))
        for cls, fast in FAST.items()
        for place in PLACES
        if (cls, place) != (HardCoded, "cross") and (cls, place == fast) != (OneMore, False)
    ],
)
def test_mechanisms_of_other_papers_have_every_property(cls, place):
    has_every_property(cls, place)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_weights_without_queries_and_keys():
    register_mechanism("own")(HardCoded)
    attention, x, real = StandaloneAttention(24, 4, mechanisms={"own": {}}), torch.randn(2, 5, 24), (5, 3)
    assert not attention.q_proj.weight.numel() + attention.k_proj.weight.numel()
    padding = torch.arange(5) >= torch.tensor(real)[:, None]
    weights = attention.attend(x, x, x, padding, need_weights=True).weights
    for b, h, t in itertools.product(range(2), range(4), range(5)):
        terms = [math.exp(-((s - t - (h % 3 - 1)) ** 2) / 2) * (s < real[b]) for s in range(5)]
        assert weights[b, h, t].tolist() == pytest.approx([term / sum(terms) for term in terms], abs=1e-6)


@pytest.mark.parametrize("own_on", ["encoder,decoder,cross", "decoder:1+3,cross:1+3"])
def test_a_layer_gets_what_the_same_component_of_the_layer_before_carries(own_on):
    """Also over a layer without the mechanism."""
    register_mechanism("own")(CarriesValues)
    model = build_model({"own_on": own_on}).eval()
    values = {}
    for name, module in model.named_modules():
        if name.endswith("v_proj"):
            module.register_forward_hook(lambda module, given, out, name=name: values.update({name: out}))
    inside = model(**batch(), attention_request=AttentionRequest(inside="decoder:3,cross:3"))[1]["inside"]
    for component, part in (("decoder", "self_attn"), ("cross", "encoder_attn")):
        first, own = (values[f"decoder.layers.{layer}.{part}.v_proj"] for layer in (0, 2))
        v = (0.5 * own + 0.5 * first).unflatten(-1, (4, 6)).permute(1, 2, 0, 3)
        heads, weights = inside[component, 3]
        torch.testing.assert_close(heads, weights @ v)


def test_a_loss_of_what_a_stage_computes_reaches_the_criterion():
    register_mechanism("own")(Router)
    model = build_model({"own_on": "encoder:2,decoder:1,cross:1-2"})
    losses = model(**batch())[1]["losses"]
    assert set(losses) == {("encoder", 2), ("decoder", 1), ("cross", 1), ("cross", 2)}
    assert all(loss.shape == () and 1 <= loss < 4 for loss in losses.values())
    assert not build_model()(**batch())[1]["losses"]
    attention, x = StandaloneAttention(24, 4, mechanisms={"own": {}}), torch.randn(2, 5, 24)
    padding = torch.arange(5) >= torch.tensor([[5], [3]])
    found = attention.attend(x, x, x, padding, query_padding_mask=padding).loss
    load = attention.own.router(x)[~padding].softmax(-1).mean(0)
    torch.testing.assert_close(found, 4 * sum(share**2 for share in load))


@pytest.mark.parametrize("place", ["encoder", "roberta"])
@pytest.mark.parametrize(
    ("criterion", "expected"),
    [("label_smoothed_cross_entropy", 1), ("masked_lm_with_disagreement", 1), ("of_the_user", 0), (None, 0)],
)
def test_a_criterion_that_ignores_losses_is_named_once(place, criterion, expected, caplog, monkeypatch):
    monkeypatch.setitem(CRITERION_REGISTRY, "of_the_user", type("OfTheUser", (), {"__module__": "own.criterion"}))
    register_mechanism("own")(Router)
    model = build_model({**at({"own_on": "{on}"}, place), "criterion": criterion})
    model.eval()(**batch())
    assert not caplog.messages
    for _ in range(2):
        model.train()(**batch())
    assert [f"--criterion {criterion} ignores the loss terms" in said for said in caplog.messages] == [True] * expected


@pytest.mark.parametrize("arch", ["li2021_logic", "diverse_rationales_tiny"])
def test_classifiers_say_likewise_that_losses_are_ignored(arch, caplog):
    register_mechanism("own")(Router)
    args = argparse.Namespace(arch=arch, criterion="classification", own_on="encoder:1")
    fill_architecture(args)
    task = SimpleNamespace(source_dictionary=dictionary(), max_positions=lambda: 64, pretrained=lambda: None)
    task.sequences, task.classes = 1, 2
    model = architectures()[arch].build_model(args, task).train()
    starts = {"starts": torch.tensor([[0]])} if "rationales" in arch else {}
    for _ in range(2):
        model(src_tokens=torch.tensor([[5, 6, 2]]), src_lengths=torch.tensor([3]), **starts)
    assert len(caplog.messages) == 1 and "--criterion classification ignores the loss terms" in caplog.text


def test_losses_of_several_mechanisms_are_summed():
    register_mechanism("own")(Router)
    register_mechanism("other")(type("Other", (Router,), {}))
    attention, x = StandaloneAttention(24, 4, mechanisms={"own": {}, "other": {}}), torch.randn(2, 5, 24)
    alone = [StandaloneAttention(24, 4, mechanisms={name: {}}) for name in ("own", "other")]
    for one in alone:
        one.load_state_dict(attention.state_dict(), strict=False)
    losses = [one.attend(x, x, x).loss for one in (attention, *alone)]
    torch.testing.assert_close(losses[0], losses[1] + losses[2])


def test_redundant_heads_are_those_of_the_encoder():
    """By layer, so that those that a mechanism selects in the decoder do not replace them."""
    own(select=lambda self, logits, context: context.q[:, :, 0, 0] > 0)
    assert set(build_model({"own_on": "encoder:2,decoder"})(**batch())[1]["redundant"]) == {2}


class DoublesQueries(Mechanism):
    """Queries times 2, keys without their first channel, values negated."""

    Settings = On

    def qkv(self, context):
        keep = torch.ones_like(context.k[..., :1, :])
        keep[..., 0] = 0
        return 2 * context.q, context.k * keep, -context.v


@pytest.mark.parametrize("other", ["", "relative", "differential", "evolving", "qk-head-dim"])
def test_queries_keys_and_values_can_be_changed_before_every_other_stage(other):
    """As if the projections were others, also for a mechanism that replaces the attention."""
    register_mechanism("own")(DoublesQueries)
    more = {other: {"kind": 4} if other == "qk-head-dim" else {}} if other else {}
    changing, plain = (StandaloneAttention(24, 4, mechanisms={**given, **more}) for given in ({"own": {}}, {}))
    plain.load_state_dict(changing.state_dict())
    with torch.no_grad():
        for tensor in plain.q_proj.parameters():
            tensor.mul_(2)
        for tensor in plain.k_proj.parameters():
            tensor.unflatten(0, (4, -1))[:, 0] = 0
        for tensor in plain.v_proj.parameters():
            tensor.neg_()
        x, padding = torch.randn(2, 5, 24), torch.arange(5) >= torch.tensor([[5], [3]])
        outputs = [attention(x, x, x, padding, average_attn_weights=False) for attention in (changing, plain)]
    torch.testing.assert_close(*outputs)


def test_changed_keys_are_not_changed_again_in_the_cache():
    register_mechanism("own")(DoublesQueries)
    for holds in (properties.step_by_step, properties.finished_sentences_leave, properties.routes_agree):
        holds({"own_on": "encoder,decoder,cross"})


class SharesKeys(Mechanism):
    """``kind`` heads of keys and values for all heads."""

    Settings = settings(kind=0)

    @classmethod
    def project(cls, settings, where):
        return replace(where, key_heads=settings.kind)


@pytest.mark.parametrize("width", [0, 5])
def test_heads_can_share_keys_and_values(width):
    register_mechanism("own")(SharesKeys)
    more = {"qk_head_dim": width, "own_on": "encoder,decoder,cross"}
    shared, plain = build_model({"own": 2, **more}), build_model(more)
    state = {
        key: value.unflatten(0, (2, -1)).repeat_interleave(2, 0).flatten(0, 1)
        if ".k_proj." in key or ".v_proj." in key
        else value
        for key, value in shared.state_dict().items()
    }
    plain.load_state_dict(state)
    torch.testing.assert_close(shared.eval()(**batch())[0], plain.eval()(**batch())[0])
    inside = (model(**batch(), attention_request=AttentionRequest(inside="cross:2"))[1] for model in (shared, plain))
    torch.testing.assert_close(*(found["inside"]["cross", 2] for found in inside))


def test_shared_keys_and_values_decode_from_a_smaller_cache_and_load():
    register_mechanism("own")(SharesKeys)
    flags = {"own": 2, "own_on": "encoder,decoder,cross"}
    for holds in (properties.step_by_step, properties.gradients, properties.warm_start, properties.off_is_absent):
        holds(flags)
    attention = properties.attention_at(build_model(flags), "decoder")
    state = {}
    attention.attend(*[torch.randn(1, 3, 24)] * 3, incremental_state=state)
    assert attention._get_input_buffer(state)["prev_key"].shape == (3, 2, 1, 6)
    alone = StandaloneAttention(24, 4, mechanisms={"own": {"kind": 2}}, component="decoder")
    alone.load_state_dict(attention.state_dict())
    x = torch.randn(3, 5, 24)
    expected = attention.eval().attend(*[x.transpose(0, 1)] * 3).value.transpose(0, 1)
    torch.testing.assert_close(alone(x, x, x)[0], expected)


def projecting(**factors):
    """A class that multiplies widths or numbers of the attention."""

    def project(cls, settings, where):
        return replace(where, **{field: factor * getattr(where, field) for field, factor in factors.items()})

    return mechanism(project=classmethod(project))


def test_project_changes_the_width_of_values():
    register_mechanism("own")(projecting(head_width=2, out_width=2))
    attention = properties.attention_at(model := build_model({"own_on": "encoder"}), "encoder")
    assert attention.v_proj.out_features == attention.out_proj.in_features == 48
    assert model(**batch())[0].isfinite().all()


@pytest.mark.parametrize(
    ("cls", "flags", "said"),
    [
        (mechanism(key="k_proj"), {}, "'own': its key 'k_proj' is taken by the attention"),
        (mechanism(), {"interacting": "sum", "interacting_on": "encoder"}, "not defined for pairs"),
        (mechanism(components=("cross",)), {}, "--own-on 'encoder': own is defined on cross only"),
        (SharesKeys, {"own": 3}, "encoder:1 has own: 3 heads of keys and values do not divide 4 heads"),
        (projecting(heads=2), {}, "mechanism 'own': project cannot change heads"),
        (projecting(query_width=2), {}, "mechanism 'own': project cannot change query_width"),
        (mechanism(**of_own(int, key=slopes)), {}, "mechanism 'own': self.key hides the key of its class"),
        (mechanism(**of_own(int, heads=slopes)), {}, "mechanism 'own': self.heads hides the heads of its class"),
    ],
)
def test_a_model_that_cannot_be_is_refused(cls, flags, said):
    register_mechanism("own")(cls)
    refused(said, build_model, {"own_on": "encoder", **flags})


@pytest.mark.parametrize("stage", ["select", "bias", "logits", "normalize", "weights", "output_bias", "attention"])
def test_a_stage_that_another_mechanism_would_skip_is_refused(stage):
    register_mechanism("own")(type("Own", (Mechanism,), {"Settings": On, stage: lambda self, *given: None}))
    said = f"encoder:1 has differential and own: differential skips the stage {stage} of own"
    refused(said, build_model, {"own_on": "encoder", "differential_on": "encoder"})


@dataclass(frozen=True)
class Always(MechanismSettings):
    """Its default placement is not empty, so that it is never off."""

    on: str = placement("encoder", "placement")


COUNT, ONE = itertools.count(), parameter(1.0)
compiling = torch.compiler.is_compiling


def counted(where):
    return nn.Parameter(torch.tensor(float(next(COUNT))))


def once(own):
    return own.a.detach() if next(own.calls) else own.a


def doubled_gradient(heads):
    return heads + (heads - heads.detach())


def infinite_gradient(heads):
    return heads + (heads * 0).sqrt()


def similar(context):
    return (context.q @ context.k.transpose(-1, -2)).softmax(-1)


def of_blocks(self, context):
    """Whole blocks of 16 values get their mean, also of positions to come."""
    whole = context.v.size(2) // 16 * 16
    blocks = context.v[:, :, :whole].unflatten(2, (-1, 16))
    means = blocks.mean(3, keepdim=True).expand_as(blocks).flatten(2, 3)
    return context.q, context.k, context.v + nn.functional.pad(means, (0, 0, 0, context.v.size(2) - whole))


def remembered(self, context):
    """A bias from the queries so far, of which decoding keeps eight."""
    own = context.q.mean((1, 3))  # (B, T)
    if context.memory is not None:
        own = torch.cat([context.memory.get("own", own[:, :0]), own], 1)[:, -8:]
        context.memory["own"] = own
    sums = own.cumsum(-1)[:, None, :, None]
    return sums[:, :, -context.q.size(2) :] * torch.arange(context.k.size(2), device=own.device)


def distances(context, device):
    t, s = context.q.size(2), context.k.size(2)
    return (torch.arange(s - t, s, device=device)[:, None] - torch.arange(s, device=device)).abs()


def of_attention(value, maps):
    return of("attention", lambda context, need_weights: (value(context, need_weights), maps(context)))


DOUBLED, INFINITE = of_heads(lambda heads: 2 * heads), of_heads(infinite_gradient)
FUTURE = of("logits", lambda logits, context: logits + logits.flip(-1))
MEASURED = of("heads", lambda heads, context: setattr(context, "before", heads) or infinite_gradient(heads))
MEASURED |= of("gate", lambda heads, context: context.before)
COUNTED = {"gate": counted_steps, "__init__": initialized(steps=lambda where: 0)}
HIDDEN = {  # has no effect at its initial values; after training, it reads padding and the future
    "__init__": initialized(share=parameter(0.0)),
    "heads": lambda self, heads, context: heads + self.share * context.v.mean(2, keepdim=True),
}
BOTH = ["encoder", "cross"]
FOUND = [  # how the title of the property begins, what is said, members of the mechanism, its places if not the decoder
    ("has an effect", "the outputs are those without it", of_heads(lambda heads: heads), BOTH),
    ("has an effect", "outputs are those", of("bias", lambda c: setattr(c, "q", 2 * c.q) or c.q.new_zeros(())), BOTH),
    ("learns", "own: a has no gradient at the initial values", of_own(lambda own: 1 + own.a * own.b, **DEAD), BOTH),
    ("learns", "gains keeps parameters in a list, where they", of_own(lambda own: sum(own.gains), gains=listed), BOTH),
    ("learns", "own: a: at the initial values its grad", of_own(lambda own: 1 + own.a.sqrt(), a=parameter(0.0)), BOTH),
    ("on the", "is made without device", {"qkv": carries(lambda c: c.v + c.previous * torch.linspace(0, 1, 6))}, BOTH),
    ("on the", "does not move with the", of_own(lambda own: own.slopes[:, None, None], slopes=slopes), BOTH),
    ("on the", "a tensor is made without device=context.q.device", of("bias", lambda c: -0.1 * distances(c, None))),
    ("on the", "in decoding, a tensor is made", adds_the_last(memory, dtype=torch.float16), ["decoder", "cross"]),
    ("float16", "float16: in decoding, .*same dtype", adds_the_last(memory, device="cpu"), ["decoder", "cross"]),
    ("float16", "a loss is not finite", with_loss(lambda heads: (heads * 0 + 60000).sum())),
    ("bfloat16 finite, with maps", "same dtype", {"qkv": carries(lambda c: c.v + c.previous.float())}, ["encoder"]),
    ("bfloat16 finite, with maps", "bfloat16: not finite", of_attention(lambda c, need: c.v, lambda c: similar(c) / 0)),
    ("bfloat16", "an output of torch.float32 from torch.bfloat16", of("combine", lambda heads: heads.float())),
    ("bfloat16", "torch.bfloat16: not finite", of("gate", lambda heads, context: heads / 0)),
    ("bfloat16", "torch.bfloat16: a gradient is not finite", INFINITE),
    ("finite", "of large logits are", of("normalize", lambda x, c: (e := x.exp()) / (1 + e.sum(-1, True))), BOTH),
    ("shapes", "numbers that are not", of("bias", lambda c: torch.zeros_like(c.k[:, :, None, :, 0]).log()), BOTH),
    ("shapes", r"heads returns \(3, 4, 1, 6\), not \(3, 4, 7, 6\)", of_heads(lambda heads: heads[:, :, :1])),
    ("shapes", "weights returns NoneType, not a tensor", of("weights", lambda weights, context: None)),
    ("shapes", "visible returns torch.float32, not torch.bool", of("visible", lambda context: context.q.new_ones(1))),
    ("shapes", r"bias returns \(5, 7\), which is not broadcast to \(B,", of("bias", lambda c: c.q.new_zeros(5, 7))),
    ("shapes", r"qkv returns \[.*\], not q, k, v of \(B, H, T or S, width\)", of("qkv", lambda c: (c.q, c.k))),
    ("shapes", r"select returns \(3, 4, 7, 7\), not \(3, 4\)", of("select", lambda logits, context: logits > 0)),
    ("the same", "a call stores kept", of_own(lambda own: own.kept.update(last=own) or 2, kept=lambda where: {}), BOTH),
    ("the same", "a second call in evaluation gives other outputs", of_heads(lambda heads: dropout(heads, 0.1))),
    ("the same", "a call stores last on", {"heads": lambda self, x, c: setattr(self, "last", x.detach()) or x}),
    ("the same", "out of (range|bounds)", of("bias", lambda c: torch.zeros(12)[distances(c, c.q.device)])),
    ("the same", "a decoding step stores steps on the module; keep it in", COUNTED),
    ("causality", "outputs before position 2: differs by", FUTURE),
    ("causality", "outputs before position 11: differs by", {"qkv": of_blocks}),
    ("causality", "later outputs do not change", of_heads(lambda heads: torch.full_like(heads, 1e12))),
    ("causality", "outputs before position", HIDDEN),
    ("causality in", "position 2: differs by", {"logits": lambda self, x, c: x + x.flip(-1) if self.training else x}),
    ("step by step", r"step 9 with a beam of 1 \(context.memory has what .*\), compared with", {"bias": remembered}),
    ("step by step = full pass, beam 5", "compared with the full pass: differs by", adds_the_last(itself)),
    ("step by step = full pass, beam 5", r"memory 'last' \(4, (\d+), 1, 6\): .* is the batch, \1$", {"gate": by_heads}),
    ("finished", "a step after a sentence has left,", adds_the_last(itself)),
    ("gradients that", r"x\[index\] is differ", of("bias", lambda c: c.q.flatten()[distances(c, c.q.device)])),
    ("attention dropout", "has no effect", of_attention(lambda c, need: c.v.mean(2, True) + c.q, lambda c: None)),
    ("alone", r"loss \('decoder', 1\) of a sentence padded .* differs", with_loss(lambda heads: heads.square().mean())),
    ("alone", "a sentence alone, compared", of("heads", lambda heads, c: heads / c.k.size(2)), ["encoder"]),
    ("alone", "a sentence alone, compared with a batch padded left and right", HIDDEN, ["encoder"]),
    ("gradients, also", "it has no gradient", with_loss(lambda heads: heads.detach().mean())),
    ("gradients, also", r"a tensor of shape \(3, 4, 7, 6\); give a sum or mean", with_loss(lambda heads: heads)),
    ("gradients, also", "k_proj.weight: no gradient$", of_heads(lambda heads: heads.detach())),
    ("gradients, also", "own.a: no gradient with --ch", of_own(once, calls=lambda _: itertools.count(), a=ONE)),
    ("gradients, also", "with --ch.*: differs by", of_heads(lambda x: x * (2 if torch.is_grad_enabled() else 1))),
    ("gradients with", "its gradient is not finite", MEASURED),
    ("gradients =", "gradients differ from finite differences", of_heads(doubled_gradient)),
    ("off", "off, the model has other parameters", {"Settings": Always, "__init__": initialized(**DEAD)}),
    ("off", "with the mechanism off, the model has other outputs", {"Settings": Always, **DOUBLED}),
    ("with maps", "outputs without maps, compared with", of_attention(lambda c, need: c.v * (1 + need), similar)),
    ("with maps", "maps are missing", of_attention(lambda c, need: c.v, lambda c: None)),
    ("one graph", "torch.compile: ", of_heads(lambda heads: heads if float(heads.sum()) > 0 else heads * 1)),
    ("one graph", "2 graphs for two lengths", of_heads(lambda heads: heads * (2 if heads.size(2) == 6 else 3))),
    ("one graph", "compiled outp", {"heads": lambda self, x, c: x * (2 if compiling() and not self.training else 1)}),
    ("LayerDrop", "an output is not finite", of_heads(lambda heads: heads / 0)),
    ("LayerDrop", "a gradient is not finite", INFINITE),
    ("warm start", "own.a: neither the plain model's nor its initial value", {"__init__": initialized(a=counted)}),
]


@pytest.mark.parametrize(
    ("title", "said", "members", "place"),
    [(*row[:3], place) for row in FOUND for place in (row[3] if len(row) > 3 else ["decoder"])],
)
def test_check_finds(title, said, members, place):
    own(**members)
    holds = next(holds for name, holds in properties.PROPERTIES.items() if name.startswith(title))
    with pytest.raises((properties.PropertyFailed, ValueError, IndexError, RuntimeError), match=said):
        holds({"own_on": place})


@pytest.mark.parametrize("place", ["encoder", "decoder", "cross"])
def test_a_mechanism_may_have_a_dropout_of_its_own(place):
    """In training, whose draws differ with the layout of the heads."""

    def drop(self, heads, context):
        dropped = dropout(heads, 0.5, self.training)
        context.add_loss((dropped * context.valid_queries[:, None, :, None]).sum())
        return dropped

    register_mechanism("own")(type("Own", (Mechanism,), {"Settings": On, "heads": drop}))
    properties.routes_agree({"own_on": place})
    properties.padding({"own_on": place})


def loses_masks(self, context, need_weights):
    weights = masked_softmax(context.q @ context.k.transpose(-1, -2) * 1.5, context.allowed)
    return dropout(weights, context.dropout) @ context.v, weights


def fails_with_others(self, heads, context):
    assert self.alone, "no other mechanism"
    return heads


@pytest.mark.parametrize(
    ("other", "said", "members"),
    [
        ("syntax", "syntax has no effect; the stage attention masks keys by", {"attention": loses_masks}),
        ("talking", "AssertionError: no other mechanism", {"heads": fails_with_others, "alone": False}),
    ],
)
def test_check_finds_what_fails_with_another_mechanism(other, said, members):
    register_mechanism("own")(type("Own", (Mechanism,), {"Settings": On, **members}))
    with pytest.raises(properties.PropertyFailed, match=f"with {other}: {said}"):
        properties.with_others("own", "encoder", [other])


def test_check_finds_a_neutral_setting_that_changes_something():
    own(neutral={"own_on": "{on}"}, **DOUBLED)
    with pytest.raises(properties.PropertyFailed, match="outputs: differs by"):
        properties.neutral_is_the_baseline("own", "decoder")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"examples": ({"own_window": 3},)}, r"does not switch own on at .*, so that nothing is checked"),
        ({"examples": ({"own_on": "encoder"},)}, r"does not switch own on at .*, so that nothing is checked"),
        ({"neutral": {"own_window": 0}}, r"does not switch own on at .*, so that nothing is checked"),
        ({"refuses": {"talkng": "no"}}, "refuses: 'talkng' is not a mechanism"),
        ({"neutral": {"own-on": "{on}"}}, "'own-on' is not a setting; write it with _, as in parsed arguments"),
        ({"neutral_zeros": ("nope",)}, "neutral_zeros: 'nope' is not a parameter"),
    ],
)
def test_what_a_class_declares_is_checked(members, message):
    own(settings(window=3), **members)
    with pytest.raises(properties.PropertyFailed, match=message):
        properties.declared("own")


def test_a_checkpoint_names_mechanisms_of_ones_own():
    """One without parameters would be loaded without it."""
    own()
    assert build_model({"own_on": "encoder", "gated": "head"}).cfg.own_mechanisms == "own"  # as the checkpoint keeps it
    assert not hasattr(build_model({"gated": "head"}).cfg, "own_mechanisms")
    del MECHANISMS["own"]
    refused("the model has the mechanism 'own', which is not registered; give", build_model, {"own_mechanisms": "own"})
    register_mechanism("renamed")(mechanism())
    refused("give its --user-dir; the one given registers renamed", build_model, {"own_mechanisms": "own"})


def test_a_help_text_may_have_a_percent_sign():
    @dataclass(frozen=True)
    class Settings(MechanismSettings):
        on: str = placement("", "placement, in % of the layers")

    own(Settings)
    add_flags(parser := argparse.ArgumentParser())
    assert "in % of the layers" in " ".join(parser.format_help().split())


def test_a_float_may_have_an_integer_as_default():
    @dataclass(frozen=True)
    class Rate(On):
        rate: float = option(1, "help")

    own(Rate)
    parser = argparse.ArgumentParser()
    add_flags(parser)
    args = parser.parse_args(["--own-rate", "0.5", "--own-on", "encoder"])
    assert args.own_rate == 0.5 and read_settings(args, "own").rate == 0.5


def test_memory_is_reordered_automatically():
    own(**adds_the_last(memory))
    properties.step_by_step({"own_on": "decoder,cross"})
    properties.finished_sentences_leave({"own_on": "decoder,cross"})


def test_without_stages_it_is_fairseqs_attention():
    own(build=classmethod(lambda cls, settings, where: None))
    model = build_model({"own_on": "encoder"})
    assert all(layer.self_attn.is_plain for layer in model.encoder.layers)
    assert torch.equal(model.eval()(**batch())[0], build_model().eval()(**batch())[0])


def test_a_mechanism_with_constants_alone_needs_no_training():
    class Own(mechanism()):
        def __init__(self, settings, where):
            super().__init__(settings, where)
            self.register_buffer("constant", torch.ones(3))

    register_mechanism("own")(Own)
    model = build_model({"own_on": "encoder"})
    with only_trained():
        model.load_state_dict(build_model().state_dict())
    assert model.encoder.layers[0].self_attn.own.constant.eq(1).all()


def test_a_constant_that_checkpoints_cannot_have_is_named():
    class Own(mechanism()):
        def __init__(self, settings, where):
            super().__init__(settings, where)
            self.register_buffer("mask", torch.tensor([math.inf, -math.inf]))
            self.register_buffer("never", torch.tensor([math.nan]))

    register_mechanism("own")(Own)
    with pytest.raises(properties.PropertyFailed, match=r"own\.never: nan in a checkpoint .* persistent=False"):
        properties.reload([{"own_on": "encoder"}])


def test_check_prints_a_table_and_exits_with_1_on_a_failure(monkeypatch, capsys, output_of):
    own(**FUTURE)
    few = {title: properties.PROPERTIES[title] for title in ("off = absent", "causality")}
    monkeypatch.setattr(properties, "PROPERTIES", few)
    monkeypatch.setattr(properties, "with_others", lambda *_: None)
    monkeypatch.setattr(properties, "reload", lambda *_: [0.0])
    assert main(["check", "own"]) == 1
    lines = capsys.readouterr().out.splitlines()
    rows = {line[:28].strip(): line[28:].split() for line in lines if line and not line.startswith(" ")}
    assert rows["property"] == ["encoder", "decoder", "cross", "roberta"]
    assert rows["off = absent"] == ["✓", "✓", "✓", "✓"] and rows["reload in a new process"] == ["✓", "✓", "✓", "-"]
    assert rows["causality"] == ["✓", "FAILED", "✓", "-"]
    assert any(line.startswith("  causality at decoder: outputs before position 2: differs by") for line in lines)
    assert lines[-2] == "own: 1 failed"
    assert "property" in (out := output_of("check", "own", "--on", "encoder")) and "decoder" not in out
    monkeypatch.setattr(properties, "reload", lambda *_: [0.0, 2e-6])
    assert main(["check", "own", "--on", "encoder"]) == 1
    assert "  reload at encoder: outputs differ by 2e-06" in capsys.readouterr().out
