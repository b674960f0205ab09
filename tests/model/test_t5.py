"""T5: equal to that of transformers in both versions, with every property of the other models."""

import itertools
import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from transformers import T5Config, T5ForConditionalGeneration

from fairseq_diverse.analysis.size import count_parameters
from fairseq_diverse.attention.functional import differential_ratio
from fairseq_diverse.attention.request import Measurement
from fairseq_diverse.host import programs
from fairseq_diverse.host.data import numbered_words
from fairseq_diverse.models import t5_names
from fairseq_diverse.testing import models, properties
from tests.cases import batch, build_model

PIECES, SYMBOLS = 40, 40 + 100 + 4
VERSIONS = {"1.0": {"feed_forward_proj": "relu"}, "1.1": {"feed_forward_proj": "gated-gelu"}}
SHAPES = [  # widths of heads that are width / heads, and others; more layers in one stack
    {"d_model": 24, "d_kv": 6, "num_heads": 4, "d_ff": 20, "num_layers": 2, "num_decoder_layers": 3},
    {"d_model": 20, "d_kv": 7, "num_heads": 3, "d_ff": 28, "num_layers": 3, "num_decoder_layers": 2},
]


def theirs(version, shape=SHAPES[0], seed=1):
    """A random model of transformers; all weights are as large as trained ones, so that everything matters."""
    torch.manual_seed(seed)
    more = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 10, "dropout_rate": 0.0}
    tied = {"tie_word_embeddings": version == "1.0"}
    config = T5Config(vocab_size=SYMBOLS, **VERSIONS[version], **tied, **shape, **more, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config).eval()
    if version == "1.1":  # which transformers 5 ties, too
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    for name, parameter in model.named_parameters():
        if "layer_norm" in name:
            parameter.data.uniform_(0.5, 1.5)
    return model


def words():
    pieces = [f"piece{number}" for number in range(PIECES - 3)]
    sentinels = [f"<extra_id_{number}>" for number in reversed(range(100))]
    return ["<s>", "<pad>", "</s>", "<unk>", *pieces, "madeupword0000", "madeupword0001", "madeupword0002", *sentinels]


def ours(model, monkeypatch, **flags):
    """The same model here."""
    monkeypatch.setattr(models, "dictionary", lambda: numbered_words(SYMBOLS))
    config = json.loads(model.config.to_json_string(use_diff=False))
    made = build_model({**t5_names.settings(config), **flags}).eval()
    made.load_state_dict(t5_names.parameters(Path(), config, model.state_dict(), words()))
    return made


def order():
    """fairseq's symbol -> T5's, and back."""
    rows = torch.tensor(t5_names.rows(words()))
    return rows, rows.argsort()


def sentences(seed=0):
    """Sources and targets in T5's numbers, of unequal lengths, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    source, target = (torch.randint(2, SYMBOLS - 4, (3, length), generator=generator) for length in (19, 17))
    for row, (s, t) in enumerate(((19, 9), (11, 17), (15, 4))):
        source[row, s - 1 :], target[row, t:] = 0, 0
        source[row, s - 1] = target[row, t - 1] = 1
    return source, target


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=["width / heads", "other width"])
def test_logits_and_gradients_equal_those_of_transformers(version, shape, monkeypatch):
    model = theirs(version, shape)
    mine, (rows, here) = ours(model, monkeypatch), order()
    source, target = sentences()
    decoder_input = torch.cat([torch.zeros(3, 1, dtype=torch.long), target[:, :-1]], 1)
    expected = model(input_ids=source, attention_mask=source != 0, decoder_input_ids=decoder_input).logits
    start = torch.full((3, 1), 2)  # </s>, with which fairseq's targets start
    previous = torch.cat([start, here[target[:, :-1]]], 1)
    got = mine(src_tokens=here[source], src_lengths=(source != 0).sum(1), prev_output_tokens=previous)[0]
    real = target != 0
    torch.testing.assert_close(got[real], expected[real][:, rows], atol=1e-4, rtol=0)
    (got[real] * torch.arange(SYMBOLS)[here]).mean().backward()
    (expected[real][:, rows] * torch.arange(SYMBOLS)[here]).mean().backward()
    config = json.loads(model.config.to_json_string(use_diff=False))
    gradients = {name: p.grad for name, p in model.named_parameters(remove_duplicate=False) if p.grad is not None}
    its = t5_names.parameters(Path(), config, gradients, words())
    for name, parameter in mine.named_parameters():
        expected, error = its[name], 1e-5 * its[name].abs().max().clamp(min=1).item()
        torch.testing.assert_close(parameter.grad, expected, atol=error, rtol=1e-4)


@pytest.mark.parametrize("version", VERSIONS)
def test_step_by_step_equals_transformers(version, monkeypatch):
    model = theirs(version, SHAPES[1])
    mine, (rows, here) = ours(model, monkeypatch), order()
    source, _ = sentences()
    tokens, state, cache = torch.zeros(3, 1, dtype=torch.long), {}, None
    given = {"attention_mask": source != 0, "use_cache": True}
    with torch.no_grad():
        encoded = mine.encoder(here[source], (source != 0).sum(1))
        output = model.get_encoder()(input_ids=source, attention_mask=source != 0)
        for _ in range(14):
            step = model(encoder_outputs=output, decoder_input_ids=tokens[:, -1:], past_key_values=cache, **given)
            cache = step.past_key_values
            previous = torch.cat([torch.full((3, 1), 2), here[tokens[:, 1:]]], 1)
            got, _ = mine.decoder(previous, encoded, incremental_state=state)
            torch.testing.assert_close(got[:, -1], step.logits[:, -1][:, rows], atol=1e-4, rtol=0)
            tokens = torch.cat([tokens, step.logits[:, -1, 2:].argmax(-1, keepdim=True) + 2], 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_greedy_and_beam_search_equal_those_of_transformers(version, monkeypatch):
    """Of a model that has learned sentences which end, on these and on others."""
    model = theirs(version, SHAPES[1]).train()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for update in range(100):
        source, target = sentences(update % 4)
        labels = target.masked_fill(target == 0, -100)
        optimizer.zero_grad()
        model(input_ids=source, attention_mask=source != 0, labels=labels).loss.backward()
        optimizer.step()
    model.eval()
    mine, (rows, here), dictionary = ours(model, monkeypatch), order(), numbered_words(SYMBOLS)
    ended = 0
    for seed, beam in itertools.product(range(8), (1, 4)):
        source, _ = sentences(seed)
        given = {"num_beams": beam, "early_stopping": beam > 1, "max_new_tokens": 30, "min_new_tokens": 1}
        given |= {"attention_mask": (source != 0).long(), "bad_words_ids": [[0]], "do_sample": False}
        expected = model.generate(input_ids=source, **given)
        generator = SequenceGenerator([mine], dictionary, beam_size=beam, max_len_a=0, max_len_b=29)
        net_input = {"src_tokens": here[source], "src_lengths": (source != 0).sum(1)}
        for line, hypotheses in zip(expected, generator.generate([mine], {"net_input": net_input}), strict=True):
            their_words = line[1:].tolist()
            if 1 in their_words:  # the others are cut at their last word, fairseq's end there
                ended += 1
                assert rows[hypotheses[0]["tokens"]].tolist() == their_words[: their_words.index(1) + 1]
    assert ended > 24


@pytest.mark.parametrize(
    ("version", "size", "parameters"),
    [
        ("1.0", "", 222_903_552), ("1.1", "", 247_577_856), ("1.0", "_small", 60_506_624),
        ("1.1", "_small", 76_961_152), ("1.0", "_large", 737_668_096), ("1.1", "_large", 783_150_080)
    ],
)  # fmt: skip
def test_parameters_of_the_published_models(version, size, parameters):
    """Those of t5-base, t5-v1_1-base, ... in transformers."""
    args = Namespace(arch=f"diverse_t5{size}", t5_version=version)
    programs.fill_architecture(args)
    with torch.device("meta"):
        words = numbered_words(32128)
        model = programs.build_model(args, words, words)
    assert sum(count_parameters(model).values()) == sum(p.numel() for p in model.parameters()) == parameters


EVERYWHERE = "encoder,decoder,cross"
SYSTEMS = {
    "plain": {},
    "1.1": {"t5_version": "1.1", "activation_fn": "gelu_accurate", "head_width": 5, "routing": "simple"},
    "evolving": {"evolving_on": EVERYWHERE, "evolving_conv": "0.4"},
    "many": {
        **{f"{name}_on": EVERYWHERE for name in ("qk_norm", "residual_logits", "value_residual")},
        **{"synthesizer": "dense-mixed", "rotary_on": "encoder", "alibi_on": "decoder"},
        **{"gated": "element", "talking": "both", "routing": "em", "routing_on": "encoder,decoder"},
        **{"syntax": "phrase", "enliven": "enliven", "relative_on": "decoder", "qk_head_dim": 5},
    },
    "whole": {"differential_on": "decoder", "interacting": "sum", "interacting_on": "cross", "localness_on": "encoder"},
}
HOLDS = [title for title in properties.PROPERTIES if not title.startswith(("off = ", "warm start", "has an", "one gr"))]
CHECKED = [("evolving", "one graph of torch.compile"), *((name, title) for name in SYSTEMS for title in HOLDS)]


@pytest.mark.parametrize(("name", "title"), CHECKED)
def test_properties(name, title):
    bias = {"position_bias_on": "encoder,decoder", "position_bias_buckets": 8, "position_bias_distance": 12}
    if name == "whole":  # pairs of heads and differential attention have no bias
        bias["position_bias_on"] = "encoder"
    if title == "step by step = full pass, beam 1":  # instead of forty steps
        properties.step_by_step({"arch": "diverse_t5", **bias, **SYSTEMS[name]}, beam=1)
    else:
        properties.PROPERTIES[title]({"arch": "diverse_t5", **bias, **SYSTEMS[name]})


def test_a_plain_t5_starts_one_with_evolving_attention():
    plain, model = build_model({"arch": "diverse_t5"}), build_model({"arch": "wang2021_evolving_t5"}, seed=2)
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(plain.state_dict())
    new = {name for name in initial if ".evolving." in name}
    assert len(new) == 2 * (2 + 3 + 3)
    for name, value in model.state_dict().items():
        assert torch.equal(value, initial[name] if name in new else plain.state_dict()[name]), name


@pytest.mark.parametrize("flags", [{"qk_head_dim": 5}, {"synthesizer": "random"}, {"gated": "element"}])
def test_heads_of_another_width_start_mechanisms_that_change_projections(flags):
    """T5 1.1 Small: width 512, 6 heads of width 64."""
    sizes = {"arch": "diverse_t5", "head_width": 7}
    plain, model = build_model(sizes), build_model(sizes | flags, seed=2)
    model.load_state_dict(plain.state_dict())
    assert torch.equal(model.encoder.layers[0].self_attn.v_proj.weight, plain.encoder.layers[0].self_attn.v_proj.weight)


def test_matrices_start_as_in_the_authors_code():
    sizes = {"encoder_embed_dim": 128, "encoder_ffn_embed_dim": 96, "decoder_ffn_embed_dim": 96, "head_width": 16}
    system = {"arch": "diverse_t5", "t5_version": "1.1", "interacting": "concat", "interacting_on": "cross"}
    model = build_model({**system, **sizes})
    decoder = model.decoder.layers[0]
    starts = {decoder.fc1: 128**-0.5, decoder.fc2: 96**-0.5, decoder.encoder_attn.out_proj: 4 * 256**-0.5}
    for attention in (decoder.self_attn, decoder.encoder_attn, model.encoder.layers[0].self_attn):
        starts |= {attention.q_proj: (128 * 16) ** -0.5, attention.k_proj: 128**-0.5, attention.v_proj: 128**-0.5}
    starts |= {decoder.self_attn.out_proj: 64**-0.5, model.encoder.embed_tokens: 1, model.decoder.output_projection: 1}
    for part, start in starts.items():
        assert part.weight.std().item() == pytest.approx(start, rel=0.05)


def test_differential_attention_has_no_scale_either():
    model = build_model({"arch": "diverse_t5", "position_bias_on": "decoder", "differential_on": "encoder"})
    attention, x = model.encoder.layers[0].self_attn, 10 * torch.randn(5, 2, 24)
    q, k = (attention.split_heads(p(x), 4).chunk(2, -1) for p in (attention.q_proj, attention.k_proj))
    added, subtracted = ((a @ b.transpose(-1, -2)).softmax(-1) for a, b in zip(q, k, strict=True))
    its = attention.differential
    ratio = differential_ratio((its.query_1, its.key_1), (its.query_2, its.key_2), its.initial_ratio)
    weights = attention.attend(x, x, x, measurement=Measurement(weights=True)).weights
    torch.testing.assert_close(weights, added - ratio * subtracted)


def test_both_stacks_end_with_dropout():
    model = build_model({"arch": "diverse_t5", "dropout": 0.5})
    kept = (
        model.encoder(batch()["src_tokens"])["encoder_out"][0] != 0,
        model.decoder.layer_norm(torch.ones(99, 24)) != 0,
    )
    for part in kept:
        assert part.float().mean().item() == pytest.approx(0.5, abs=0.1)


def test_temperatures_start_with_the_factor_of_the_queries():
    for arch, start in (("diverse_t5", 1), ("diverse_transformer", 6**-0.5)):
        model = build_model({"arch": arch, "qk_norm_on": "encoder"})
        assert model.encoder.layers[0].self_attn.qk_norm.temperature.tolist() == pytest.approx([start] * 4)


def test_a_new_process_loads_them_all():
    systems = [{"arch": "diverse_t5", **SYSTEMS[name]} for name in SYSTEMS if name != "whole"]
    assert max(properties.reload(systems)) <= 1e-5


def test_padding_has_a_learned_vector_with_which_the_decoder_starts():
    model = build_model({"arch": "diverse_t5", "t5_version": "1.1"})
    model(**batch())[0].square().mean().backward()
    gradient = model.encoder.embed_tokens.weight.grad
    assert gradient[1].abs().max() > 0 and gradient[0].abs().max() == 0  # <s> is nowhere
    changed = batch()
    changed["prev_output_tokens"][:, 0] = 7
    assert not torch.allclose(model.eval()(**batch())[0], model(**changed)[0])
