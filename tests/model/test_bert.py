"""BERT: equal to that of transformers, its input, its head, and every property with every mechanism."""

import re
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForPreTraining, BertForSequenceClassification

from fairseq_diverse.analysis.size import measure_size
from fairseq_diverse.attention.warm_start import NotTrained, only_trained
from fairseq_diverse.host.programs import architectures, fill_architecture
from fairseq_diverse.models import bert_names
from fairseq_diverse.models.bert import BertHead, segments
from fairseq_diverse.preparation.wordpiece import SPECIAL
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.testing import properties
from tests.cases import ROBERTA_CASES, batch, build_model, dictionary
from tests.reference import bert as reference

PIECES = ["[PAD]", "dog", "[UNK]", "##s", "[CLS]", "[SEP]", "bark", "[MASK]", "cat", "meow"]
SIZES = {"num_hidden_layers": 3, "hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 4}
CONFIG = BertConfig(vocab_size=12, max_position_embeddings=16, num_labels=3, hidden_dropout_prob=0.0, **SIZES)
PAIRS = [
    ["[CLS]", "dog", "##s", "bark", "[SEP]", "[UNK]", "[MASK]", "meow", "[SEP]"],
    ["[CLS]", "cat", "##s", "[SEP]"],
    ["[CLS]", "[SEP]", "dog", "bark", "[SEP]"],
]
LENGTH = 11  # two more than the longest
NAMES = {ours: theirs for theirs, ours in SPECIAL.items()}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    return tmp_path


def randomized(model, seed=0):
    """With noise on all parameters: norms and biases start as constants."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def parameters(folder, given):
    config = CONFIG.to_dict()
    return bert_names.parameters(folder, config, given, bert_names.words(folder, config))


def converted(folder, theirs, flags=None, classes=3):
    """The model of this package with the parameters of one of transformers."""
    args = Namespace(**{**bert_names.settings(theirs.config.to_dict()), **(flags or {})})
    fill_architecture(args)
    words = dictionary(0)
    for word in bert_names.words(folder, theirs.config.to_dict())[4:]:
        words.add_symbol(word)
    task = SimpleNamespace(source_dictionary=words, max_positions=lambda: None)
    model = architectures()[args.arch].build_model(args, task)
    model.register_classification_head("head", num_classes=classes)
    model.load_state_dict(parameters(folder, theirs.state_dict()), model_cfg=args)
    return model.eval(), words


def theirs_and_ours(words):
    """The same sentences as both take them, and where there is a word."""
    shape = len(PAIRS), LENGTH
    given = {"input_ids": torch.zeros(shape, dtype=torch.long), "token_type_ids": torch.zeros(shape, dtype=torch.long)}
    ours = torch.full(shape, words.pad())
    for row, pair in enumerate(PAIRS):
        given["input_ids"][row, : len(pair)] = torch.tensor([PIECES.index(word) for word in pair])
        given["token_type_ids"][row, : len(pair)] = torch.tensor(reference.segment_numbers(pair))
        ours[row, : len(pair)] = torch.tensor([words.index(SPECIAL.get(word, word)) for word in pair])
    real = ours != words.pad()
    return {**given, "attention_mask": real.long()}, {"src_tokens": ours}, real


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_outputs_are_those_of_transformers(folder, activation):
    theirs = randomized(BertForPreTraining(BertConfig(**{**CONFIG.to_dict(), "hidden_act": activation})))
    model, words = converted(folder, theirs)
    given, ours, real = theirs_and_ours(words)
    expected = theirs(**given, output_hidden_states=True)
    features, extra = model(**ours, features_only=True, return_all_hiddens=True)
    for state, own in zip(expected.hidden_states, extra["inner_states"], strict=True):
        torch.testing.assert_close(own.transpose(0, 1)[real], state[real], atol=1e-5, rtol=0)
    pooled = theirs.bert(**given).pooler_output
    torch.testing.assert_close(model.classification_heads["head"].pooled(features), pooled, atol=1e-5, rtol=0)
    order = [PIECES.index(NAMES.get(symbol, symbol)) for symbol in words.symbols]
    logits = expected.prediction_logits[..., order]
    torch.testing.assert_close(model(**ours)[0][real], logits[real], atol=1e-5, rtol=0)


def test_a_step_of_fine_tuning_is_that_of_transformers(folder):
    """Loss and updated parameters; pooler and classifier are trained, too."""
    theirs = randomized(BertForSequenceClassification(CONFIG))
    model, words = converted(folder, theirs)
    head = model.classification_heads["head"].out_proj
    head.load_state_dict(theirs.classifier.state_dict())
    given, ours, _ = theirs_and_ours(words)
    losses = []
    for one, logits in (
        (theirs, lambda: theirs(**given).logits),
        (model, lambda: model(**ours, classification_head_name="head")[0]),
    ):
        optimizer = torch.optim.Adam(one.parameters(), lr=0.01, eps=1e-3)
        losses.append(cross_entropy(logits(), torch.tensor([2, 0, 1])))
        losses[-1].backward()
        optimizer.step()
    torch.testing.assert_close(losses[1], losses[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(head.state_dict(), theirs.classifier.state_dict(), atol=1e-5, rtol=0)
    found, expected = model.state_dict(), parameters(folder, theirs.state_dict())
    for part in ("weight", "bias"):
        expected[f"classification_heads.head.dense.{part}"] = expected.pop(f"pooler.{part}")
    assert len(expected) == len([*theirs.bert.parameters()]) + 1  # fairseq's version
    torch.testing.assert_close({name: found[name] for name in expected}, expected, atol=1e-5, rtol=0)


def test_names_of_published_files_are_read(folder):
    """Which call gains and biases of layer norms gamma and beta, and have a pre-trained layer for the next sentence."""
    theirs = randomized(BertForPreTraining(CONFIG))
    old = {"weight": "gamma", "bias": "beta"}
    state = theirs.state_dict()
    published = {re.sub(r"(LayerNorm\.)(weight|bias)", lambda m: m[1] + old[m[2]], k): v for k, v in state.items()}
    published["bert.embeddings.position_ids"] = torch.arange(16)
    assert any(name.endswith("gamma") for name in published)
    expected, found = parameters(folder, state), parameters(folder, published)
    torch.testing.assert_close(found, expected, atol=0, rtol=0)
    with pytest.raises(UserError, match=r"encoder\.layer\.0\.adapter\.weight: no parameter of BERT"):
        parameters(folder, {"bert.encoder.layer.0.adapter.weight": torch.zeros(1)})


def test_a_model_without_layers_that_predict_words_is_fine_tuned_but_predicts_none(folder, caplog):
    theirs = randomized(BertForPreTraining(CONFIG)).bert
    model, words = converted(folder, theirs)
    assert "warm start: new in this model: encoder.lm_head.bias, encoder.lm_head.dense.weight" in caplog.text
    given, ours, real = theirs_and_ours(words)
    features = model(**ours, features_only=True)[0]
    torch.testing.assert_close(features[real], theirs(**given).last_hidden_state[real], atol=1e-5, rtol=0)
    with only_trained(), pytest.raises(NotTrained, match=r"encoder\.lm_head\.bias"):
        converted(folder, theirs)


def test_the_input_equals_the_formula():
    model = randomized(build_model({}, "diverse_bert"))
    layers, words = model.encoder.sentence_encoder, dictionary()
    sample = batch((7, 4, 5), parsed=False)["src_tokens"]
    sample[0, 3] = words.eos()
    found = layers.forward_embedding(sample)[0]
    tables = (layers.embed_tokens, layers.embed_segments, layers.embed_positions)
    of_word, of_segment, of_position = (table.weight.tolist() for table in tables)
    norm = [getattr(layers.layernorm_embedding, name).tolist() for name in ("weight", "bias")]
    for row, tokens in enumerate(sample.tolist()):
        real = [token for token in tokens if token != words.pad()]
        named = ["[SEP]" if token == words.eos() else token for token in real]
        tables = {**dict(enumerate(of_word)), "[SEP]": of_word[words.eos()]}
        expected = torch.tensor(reference.embedded(named, tables, of_segment, of_position, *norm))
        torch.testing.assert_close(found[row, -len(real) :], expected, atol=1e-5, rtol=1e-5)  # padded on the left
    expected = [reference.segment_numbers(tokens, words.eos()) for tokens in sample.tolist()]
    assert segments(sample, words.eos()).tolist() == expected


def test_layer_norms_have_berts_epsilon_but_not_those_of_mechanisms():
    model = build_model({"routing": "em", "routing_on": "encoder"}, "diverse_bert")
    norms = {name: part.eps for name, part in model.encoder.sentence_encoder.named_modules() if hasattr(part, "eps")}
    assert norms and all(eps == (1e-5 if ".aggregate." in name else 1e-12) for name, eps in norms.items())


def test_the_head_drops_out_the_pooled_state_alone():
    model = build_model({"pooler_dropout": 1.0}, "diverse_bert")
    model.register_classification_head("head", num_classes=2)
    head = model.classification_heads["head"].train()
    features = torch.randn(3, 5, 24)
    assert isinstance(head, BertHead) and head.out_proj.bias.eq(0).all() and head.dense.weight.std() < 0.03  # as BERT
    assert head(features).eq(0).all() and head.pooled(features).ne(0).all()


@pytest.mark.parametrize(("size", "expected"), [("", 109_482_240), ("_large", 335_141_888)])
def test_parameters_are_those_of_bert(monkeypatch, size, expected):
    monkeypatch.setattr("fairseq_diverse.analysis.size.count_flops", lambda *_: {"encoder": 0})
    for module in ("fairseq_diverse.models.roberta", "fairseq.models.roberta.model", "fairseq_diverse.models.bert"):
        monkeypatch.setattr(f"{module}.init_bert_params", lambda _: None)  # it needs values
    with torch.device("meta"):
        found = measure_size(Namespace(arch=f"diverse_bert{size}"), 30_522, 30)["parameters"]
    assert found["classifier"] == expected


def test_a_second_separator_is_refused():
    args = Namespace(arch="diverse_bert", encoder_layers=1)
    fill_architecture(args)
    task = SimpleNamespace(source_dictionary=dictionary(), cfg=SimpleNamespace(separator_token=2), max_positions=int)
    with pytest.raises(UserError, match=r"^--separator-token: of RoBERTa, which has two </s> between sentences; leave"):
        architectures()["diverse_bert"].build_model(args, task)


EVERY = {title for title in properties.PROPERTIES if properties.applies(title, "roberta") and title != "off = absent"}
QUICK = {"alone = in a padded batch", "gradients, also with activation checkpointing", "warm start from a plain model"}


@pytest.mark.parametrize("titles", [QUICK, pytest.param(EVERY - QUICK, marks=pytest.mark.slow)], ids=["quick", "all"])
@pytest.mark.parametrize(("name", "flags"), ROBERTA_CASES)
def test_properties(name, flags, titles):
    for title in sorted(titles):
        properties.PROPERTIES[title]({**flags, "arch": "diverse_bert"})
