"""The miniature probing tasks: labels follow from the trees, files have SentEval's format."""

from argparse import Namespace
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from fairseq_diverse.attention.request import AttentionRequest
from fairseq_diverse.cli import main
from fairseq_diverse.data.probing import GROUPS, TASKS, Example, read_probing
from fairseq_diverse.preparation import Preprocessing
from fairseq_diverse.preparation.config import SIDE_DEFAULTS
from fairseq_diverse.preparation.tokens import Tokens
from fairseq_diverse.tasks import classification
from fairseq_diverse.tasks.classification import SentenceProbing, SentenceProbingConfig
from fairseq_diverse.toy.probing import depth, make_probes, past_present, words, write_probing
from fairseq_diverse.toy.trees import leaf, phrase
from tests.cases import build_model, dictionary
from tests.refusals import refused

NP = phrase("NP", ("det", leaf("DT", "The")), ("head", leaf("NNS", "dogs")))
VP = phrase("VP", ("head", leaf("VBD", "chased")), ("obj", phrase("NP", ("head", leaf("NNP", "Ida")))))
STOP = ("punct", leaf(".", "."))
SENTENCE = phrase("S", ("nsubj", NP), ("head", VP), STOP)
IT_RAINS = ("nsubj", phrase("NP", ("head", leaf("PRP", "it")))), ("head", phrase("VP", ("head", leaf("VBZ", "rains"))))
RAIN = phrase("S", *IT_RAINS)
AND = ("punct", leaf(",", ",")), ("cc", leaf("CC", "and"))
BOTH = phrase("S", ("head", phrase("S", ("nsubj", NP), ("head", VP))), *AND, ("conj", RAIN), STOP)


@pytest.fixture(scope="module")
def probes():
    return make_probes(1)


def drawn(probe, tree, times=60):
    return Counter(probe(tree) for _ in range(times))


def test_labels_of_a_sentence(probes):
    text = "The dogs chased Ida ."
    assert words(SENTENCE) == text.split() and depth(SENTENCE) == 3
    assert probes["sentence_length"](SENTENCE) == ("0", text)
    assert probes["tree_depth"](SENTENCE) == ("4", text)  # the smallest class
    assert probes["top_constituents"](SENTENCE) == ("NP_VP_.", text)
    assert probes["top_constituents"](phrase("S", ("head", VP), STOP)) == ("OTHER", "chased Ida .")
    assert past_present(SENTENCE) == ("PAST", text) and past_present(phrase("S", ("head", RAIN), STOP))[0] == "PRES"
    assert probes["subj_number"](SENTENCE) == ("NNS", text)
    assert probes["obj_number"](SENTENCE) is None  # a name has no number
    assert probes["subj_number"](phrase("S", ("head", RAIN), STOP)) is None
    conjunct = ("conj", phrase("NP", ("head", leaf("NN", "cat"))))
    both = phrase("NP", ("head", NP), ("cc", leaf("CC", "and")), conjunct)
    assert probes["subj_number"](phrase("S", ("nsubj", both), ("head", VP), STOP)) is None


def test_only_the_main_clause_gives_its_tense():
    subject, rains = ("nsubj", phrase("NP", ("head", leaf("PRP", "they")))), phrase("SBAR", ("head", RAIN))
    know = phrase("VP", ("head", leaf("VB", "know")), ("ccomp", rains))
    may_know = phrase("S", subject, ("head", phrase("VP", ("aux", leaf("MD", "may")), ("head", know))), STOP)
    assert past_present(may_know) is None
    slept = phrase("S", ("advcl", rains), subject, ("head", phrase("VP", ("head", leaf("VBD", "slept")))), STOP)
    assert past_present(slept)[0] == "PAST"
    had = phrase("VP", ("aux", leaf("VBD", "had")), ("head", leaf("VBN", "slept")))
    assert past_present(phrase("S", ("advcl", rains), subject, ("head", had)))[0] == "PAST"


def test_changed_sentences(probes):
    text = "The dogs chased Ida ."
    shifted = drawn(probes["bigram_shift"], SENTENCE)
    assert set(shifted) == {("O", text), ("I", "The chased dogs Ida ."), ("I", "The dogs Ida chased .")}
    odd = drawn(probes["odd_man_out"], SENTENCE)
    changed = [(label, sum(a != b for a, b in zip(other.split(), text.split(), strict=True))) for label, other in odd]
    assert odd["O", text] and all(label == "O" or count == 1 for label, count in changed)
    assert {label for label, _ in odd} == {"O", "C"}
    inverted = drawn(probes["coordination_inversion"], BOTH)
    both = "The dogs chased Ida , and it rains .", "It rains , and the dogs chased Ida ."
    assert set(inverted) == set(zip("OI", both, strict=True))
    assert probes["coordination_inversion"](SENTENCE) is None


def test_files(tmp_path, probes):
    mix = write_probing(tmp_path / "a", 40, seed=2)
    write_probing(tmp_path / "b", 40, seed=2)
    assert list(mix) == list(TASKS) == [task for tasks in GROUPS.values() for task in tasks] and len(TASKS) == 10
    for task in TASKS:
        assert (tmp_path / "a" / f"{task}.txt").read_text() == (tmp_path / "b" / f"{task}.txt").read_text()
        examples = read_probing(tmp_path / "a", task)
        assert {split: len(found) for split, found in examples.items()} == {"train": 32, "valid": 4, "test": 4}
        labels = Counter(example.label for found in examples.values() for example in found)
        assert labels == mix[task] and len(labels) > 1
        sentences = [tuple(example.words) for found in examples.values() for example in found]
        assert len(set(sentences)) == 40
    content = [e for found in read_probing(tmp_path / "a", "word_content").values() for e in found]
    assert all(e.label in [word.lower() for word in e.words] for e in content)


def test_the_command(tmp_path, capsys, error_of):
    flags = ["--sentences", "1", "--valid", "1", "--test", "1"]
    assert main(["toy", "--out", str(tmp_path), *flags, "--probing", "10"]) == 0
    assert f"{tmp_path}/probing: ten tasks, 10 sentences each" in capsys.readouterr().out
    assert sorted(path.stem for path in (tmp_path / "probing").iterdir()) == sorted(TASKS)
    assert main(["toy", "--out", str(tmp_path), *flags, "--probing", "10", "--seed", "2"]) == 0
    write_probing(tmp_path / "other", 10, 2)
    for task in TASKS:
        assert (tmp_path / f"probing/{task}.txt").read_text() == (tmp_path / f"other/{task}.txt").read_text()
    capsys.readouterr()
    assert "--probing 3: at least 10" in error_of("toy", "--out", tmp_path, *flags, "--probing", "3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "tree_depth.txt: missing; the ten files are sentence_length.txt, .*inversion.txt, from .*github.com"),
        ("tr\t1\ta b\nno\t1\ta\n", "tree_depth.txt, line 2: SPLIT<TAB>LABEL<TAB>SENTENCE expected"),
        ("tr\t1\n", "line 1"),
        ("tr\t1\t \n", "line 1"),
        ("tr\t1\ta b\nva\t1\ta\n", "no sentences in the split te"),
        ("tr\t1\ta\nva\t1\ta\nte\t2\ta\n", "label '2' of the split te is missing in the training split"),
        (b"tr\t1\t\xff\n", "tree_depth.txt.*UTF-8"),
    ],
)
def test_wrong_files_are_named(tmp_path, text, message):
    if text is not None:
        (tmp_path / "tree_depth.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(message, read_probing, tmp_path, "tree_depth")


def test_splits_have_sentevals_names(tmp_path):
    (tmp_path / "tree_depth.txt").write_text("te\t1\ta\ntr\t1\tb c\nva\t1\td\ntr\t2\te\n")
    assert read_probing(tmp_path, "tree_depth") == {
        "train": [("1", ["b", "c"]), ("2", ["e"])], "valid": [("1", ["d"])], "test": [("1", ["a"])]
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probing")
    write_probing(folder, 60)
    return folder


def task_of(folder, **flags):
    return SentenceProbing.setup_task(SentenceProbingConfig(data=str(folder), **flags))


@pytest.fixture
def task(folder):
    return task_of(folder, probe="past_present")


def build(task, arch="li2021_probing", **flags):
    torch.manual_seed(1)
    args = Namespace(arch=arch, **flags)
    ARCH_CONFIG_REGISTRY[arch](args)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, task)


def test_the_task_reads_words_and_labels(folder):
    task = task_of(folder, probe="tree_depth")
    examples = read_probing(folder, "tree_depth")
    known = {word for example in examples["train"] for word in example.words}
    counts = Counter(word for example in examples["train"] for word in example.words)
    ordered = sorted(known, key=lambda word: (-counts[word], word))
    assert task.dictionary.symbols[task.dictionary.nspecial :] == ordered
    for split, found in examples.items():
        task.load_dataset(split)
        dataset = task.dataset(split)
        assert [task.labels[label] for label in dataset.labels] == [example.label for example in found]
        shown = [task.dictionary.string(tokens, unk_string="?") for (tokens,) in dataset.inputs]
        assert shown == [" ".join(word if word in known else "?" for word in example.words) for example in found]
    refused("dev: sentence_probing has the splits train, valid, test", task.load_dataset, "dev")
    for flags in ({"from_checkpoint": "x"}, {"checkpoint_data": "x"}):
        refused("--from-checkpoint and --checkpoint-data: give both, or neither", task_of, folder, **flags)
    said = r"--checkpoint-data: .*preprocess\.json: cannot be read"
    refused(said, task_of, folder, from_checkpoint="x", checkpoint_data="none")


def test_architectures(task):
    with torch.device("meta"):
        plain, routed = build(task), build(task, "li2021_probing_aggregation")
    assert sum(p.numel() for p in plain.encoder.layers.parameters()) == 18_914_304  # six layers of Base
    assert sum(p.numel() for p in plain.classifier.parameters()) == 512 * 512 + 512 + 512 * 2 + 2
    assert [a.self_attn.mechanism("routing") is not None for a in routed.encoder.layers] == [True] * 2 + [False] * 4


def test_a_trained_encoder_is_probed_without_training(task):
    trained = build_model({"dropout": 0.5, "routing": "em", "routing_on": "encoder"})
    encoder, task.pretrained = trained.encoder, lambda: trained
    task.dictionary = dictionary()
    task.load_dataset("train")
    dataset, model = task.dataset("train"), build(task, dropout=0.0).train()
    sample = dataset.collater([dataset[i] for i in range(4)])
    logits, _ = model(**sample["net_input"])
    logits.sum().backward()
    assert not encoder.training and all(p.grad is None and not p.requires_grad for p in encoder.parameters())
    assert all(p.grad.abs().sum() > 0 for p in model.classifier.parameters())
    encoded = encoder(sample["net_input"]["src_tokens"])
    real = ~encoded["encoder_padding_mask"][0]
    means = [x[seen].mean(0) for x, seen in zip(encoded["encoder_out"][0].transpose(0, 1), real, strict=True)]
    torch.testing.assert_close(logits, model.classifier(torch.stack(means)))


def test_a_trained_encoder_reads_every_sentence_once(task, monkeypatch):
    """In any batch; but not with trained pooling queries, and again after loading another encoder."""
    trained = build_model({})
    task.dictionary, task.pretrained = dictionary(), lambda: trained
    task.load_dataset("train")
    dataset, read, encode = task.dataset("train"), [], trained.encoder.forward
    monkeypatch.setattr(trained.encoder, "forward", lambda x, **rest: read.append(len(x)) or encode(x, **rest))
    chosen = [0, 1, 2], [2, 3], [3, 0], [1]
    batches = [dataset.collater([dataset[i] for i in batch])["net_input"] for batch in chosen]
    sentences = [tuple(dataset[i]["inputs"][0].tolist()) for i in range(4)]
    model, queries = build(task, dropout=0.0).train(), build(task, dropout=0.0, pooling="queries").train()
    found = [model(**batch)[0] for batch in batches]
    assert sum(read) == len({*sentences})
    for batch, logits in zip(batches, found, strict=True):
        measured, extra = model(**batch, attention_request=AttentionRequest(("output",), "encoder"))
        torch.testing.assert_close(logits, measured)
        assert extra["agreement"] > 0
    for change in (lambda: model.load_state_dict(model.state_dict()), model.double):
        change()
        read.clear()
        model(**batches[0])
        assert sum(read) == len({*sentences[:3]})
    queries.double()
    read.clear()
    for batch in batches:
        queries(**batch)
    assert read == [3, 2, 2, 1]


def test_the_checkpoint_of_a_probe_is_complete(task):
    """The settings of a trained encoder are stored in the arguments; mechanisms and a regularizer are refused."""
    trained = build_model({"routing": "em", "routing_on": "encoder"})
    task.dictionary, task.pretrained = dictionary(), lambda: trained
    args = Namespace(arch="li2021_probing")
    ARCH_CONFIG_REGISTRY[args.arch](args)
    state = ARCH_MODEL_REGISTRY[args.arch].build_model(args, task).state_dict()
    task.pretrained = lambda: pytest.fail("the trained model is read again")
    again = ARCH_MODEL_REGISTRY[args.arch].build_model(args, task)
    again.load_state_dict(state)
    states = (model.encoder.state_dict().values() for model in (again, trained))
    assert again.frozen and all(map(torch.equal, *states))
    pruned = Namespace(**{**vars(args), "encoder_layers_to_keep": "0"})
    refused("--encoder-layers-to-keep: the encoder is", ARCH_MODEL_REGISTRY[args.arch].build_model, pruned, task)
    task.pretrained = lambda: trained
    evolving = "li2021_probing", {"evolving_on": "encoder"}, "--evolving-on"
    for arch, flags, flag in (("li2021_probing_aggregation", {}, "--routing"), evolving):
        refused(f"--from-checkpoint: the encoder is probed as .* leave out {flag}", build, task, arch, **flags)
    refused("--encoder-layers-to-keep: the encoder is", build, task, "li2021_probing", encoder_layers_to_keep="0")
    task.cfg.from_checkpoint = "x"
    refused("encoder is not trained; use", task.build_criterion, Namespace(_name="classification_with_disagreement"))


def test_an_encoder_of_the_other_direction_is_refused(task, monkeypatch):
    """It would read the words of the wrong dictionary."""
    task.cfg.from_checkpoint, task.cfg.checkpoint_data = "model.pt", "DATA"
    sides = {"source": None, "target": None}
    task.preprocessing = Preprocessing("en", "de", "", {}, sides, sides)
    for source, target in (("en", "de"), ("de", "en")):
        of = SimpleNamespace(cfg=SimpleNamespace(source_lang=source, target_lang=target))
        monkeypatch.setattr(classification, "load_model", lambda path, data, of=of: ("model", of))
        if source == "en":
            assert task.pretrained() == "model"
        else:
            refused("--from-checkpoint model.pt: reads de, but the source of DATA is en; give", task.pretrained)


@pytest.mark.parametrize("mechanism", [{"talking": "both"}, {"interacting": "sum"}, {"qk_head_dim": 12}])
def test_mechanisms_are_on_the_encoder_by_default(task, mechanism):
    assert not build(task, encoder_layers=1, **mechanism).encoder.layers[0].self_attn.is_plain


def test_models_and_criterions_not_for_classification_are_refused(task):
    refused("--arch zhang2021_dea: is not a classifier; use", task.build_model, Namespace(arch="zhang2021_dea"))
    refused("--criterion cross_entropy: this task needs", task.build_criterion, Namespace(_name="cross_entropy"))


def test_the_tokens_of_the_penn_treebank_become_those_of_the_data(task):
    raw = []
    tokens = Tokens({"language": "en", **SIDE_DEFAULTS})
    task.preprocessing = SimpleNamespace(tokens={"source": tokens}, encode=lambda line: raw.append(line) or line)
    treebank = Example("PAST", ["I", "do", "n't", "know", ",", "it", "was", "Bob", "'s", "."])
    task.labels, task.examples = ["PAST"], {"test": [treebank]}
    task.load_dataset("test")
    assert raw == ["I don't know, it was Bob's."] and tokens.tokenize(raw[0]).split()[2] == "'t"
