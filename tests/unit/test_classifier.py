"""Classification: batches, pooling, the model, the criterion, and the task of logical inference."""

from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from fairseq.logging import metrics
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.modules import FairseqDropout

import fairseq_diverse.models.architectures  # noqa: F401
from fairseq_diverse.analysis.predictions import classified
from fairseq_diverse.attention.request import AttentionRequest
from fairseq_diverse.criterions.classification import Classification, ClassificationWithDisagreement
from fairseq_diverse.data.classification import ClassificationDataset
from fairseq_diverse.data.logic import RELATIONS, read_pairs, write_corpus
from fairseq_diverse.metrics.accuracy import Accuracy, pooled
from fairseq_diverse.models.classifier import MeanPooling, QueryPooling
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.tasks.classification import LogicalInference, LogicalInferenceConfig
from tests.refusals import refused

SMALL = {"encoder_embed_dim": 24, "encoder_ffn_embed_dim": 20, "encoder_attention_heads": 4, "dropout": 0.0}
PLACED = [
    {}, {"routing": "em"}, {"talking": "both", "talking_on": "encoder"},
    {"interacting": "sum", "interacting_on": "encoder"}, {"evolving_on": "encoder"}
]  # fmt: skip


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logic")
    write_corpus(folder, 60)
    return LogicalInference.setup_task(LogicalInferenceConfig(data=str(folder), train_operators=4))


def build(task, arch="li2021_logic", **flags):
    torch.manual_seed(1)
    args = Namespace(arch=arch, **{**SMALL, **flags})
    ARCH_CONFIG_REGISTRY[arch](args)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, task)


def six(task, numbers=range(6)):
    """A batch of pairs."""
    task.load_dataset("test5")
    dataset = task.dataset("test5")
    return dataset.collater([dataset[i] for i in numbers])


def test_embeddings_of_a_file(task, tmp_path):
    words = task.source_dictionary
    numbers = " ".join(str(n / 8) for n in range(24))
    (tmp_path / "words.vec").write_text(f"1 24\n{words[5]} {numbers}\n")
    given = build(task, encoder_embed_path=str(tmp_path / "words.vec")).encoder.embed_tokens.weight
    assert given[5].tolist() == [n / 8 for n in range(24)]
    other = torch.arange(len(words)) != 5
    assert torch.equal(given[other], build(task).encoder.embed_tokens.weight[other])


def test_splits(task):
    folder = task.cfg.data
    for split in ("train", "valid", "test", "test7", "train12"):
        task.load_dataset(split)
    train, valid = (task.dataset(split).inputs for split in ("train", "valid"))
    pairs = [pair for count in range(5) for pair in read_pairs(f"{folder}/train{count}")]
    assert len(valid) == len(pairs) // 17 and len(train) + len(valid) == len(pairs)
    texts = texts_of(task, train) + texts_of(task, valid)
    assert sorted(texts) == sorted(f"{' '.join(pair.left)}\t{' '.join(pair.right)}" for pair in pairs)
    assert len(task.dataset("test")) == sum(len(read_pairs(f"{folder}/test{count}")) for count in range(1, 13))
    expected = [RELATIONS.index(pair.relation) for pair in read_pairs(f"{folder}/test7")]
    assert task.dataset("test7").labels == expected
    again = LogicalInference.setup_task(LogicalInferenceConfig(data=folder, train_operators=4, valid_seed=2))
    again.load_dataset("valid")
    assert sorted(texts_of(task, again.dataset("valid").inputs)) != sorted(texts_of(task, valid))
    with pytest.raises(UserError, match="--train-operators 13: from 0 to 12"):
        LogicalInference.setup_task(LogicalInferenceConfig(data=folder, train_operators=13))
    refused("dev: logical_inference has the splits", task.load_dataset, "dev")


def texts_of(task, inputs):
    return ["\t".join(task.dictionary.string(side) for side in example) for example in inputs]


def test_batches_have_all_first_sequences_then_all_second_ones():
    inputs = [[torch.tensor([5, 6]), torch.tensor([7])], [torch.tensor([8]), torch.tensor([9, 10, 11])]]
    dataset = ClassificationDataset(inputs, [3, 0], pad=1, shuffle=False)
    batch = dataset.collater([dataset[0], dataset[1]])
    tokens = [[5, 6, 1], [8, 1, 1], [7, 1, 1], [9, 10, 11]]
    assert batch["net_input"]["src_tokens"].tolist() == tokens
    assert batch["net_input"]["src_lengths"].tolist() == [2, 1, 1, 3]
    assert batch["target"].tolist() == [3, 0] and batch["nsentences"] == 2 and batch["ntokens"] == 7
    assert (dataset.num_tokens(1), dataset.size(1)) == (4, 3) and dataset.ordered_indices().tolist() == [1, 0]
    assert dataset.collater([]) == {} and not len(ClassificationDataset([], [], 1, False).ordered_indices())


def test_layers_that_are_kept(task):
    """As fairseq prunes a model that was trained with LayerDrop: placements follow their layers."""
    flags = {"encoder_layers": 4, "routing": "em", "routing_on": "encoder:3"}
    whole = build(task, **flags)
    kept = build(task, **flags, encoder_layers_to_keep="0,2")
    kept.load_state_dict(whole.state_dict(), model_cfg=Namespace(arch="", encoder_layers_to_keep="0,2"))
    assert len(kept.encoder.layers) == 2 and not kept.encoder.layers[1].self_attn.is_plain
    inputs = six(task)["net_input"]
    whole.encoder.layers = torch.nn.ModuleList([whole.encoder.layers[0], whole.encoder.layers[2]])
    torch.testing.assert_close(kept.eval()(**inputs)[0], whole.eval()(**inputs)[0])


def test_batches_have_little_padding(task):
    task.load_dataset("train")
    dataset = task.dataset("train")
    order = dataset.ordered_indices()
    assert sorted(order) == [*range(len(dataset))]
    lengths = [[len(side) for side in dataset.inputs[i]] for i in order]
    assert lengths == sorted(lengths) and order.tolist() != dataset.ordered_indices().tolist()  # of equal ones shuffled
    read = []
    for part in dataset.batch_by_size(order, max_tokens=200):
        batch = dataset.collater([dataset[i] for i in part])
        model = build(task)
        model.encoder.register_forward_pre_hook(lambda _, args: read.append(args[0].numel()))
        model(**batch["net_input"])
    assert sum(map(sum, lengths)) <= sum(read) < 1.3 * sum(map(sum, lengths))


@pytest.mark.parametrize("terms", [("output",), ("subspace", "position")])
def test_agreement_is_over_all_tokens_of_the_pairs(task, terms):
    model, inputs = build(task), six(task)["net_input"]
    request = AttentionRequest(terms, "encoder")
    heads = model.encoder.cfg.encoder.attention_heads
    resolved = request.resolve({"encoder": 2, "decoder": 0, "cross": 0}, {"encoder": heads})
    both_sides = model.encoder(**inputs, request=resolved)["extras"].agreement["encoder"]  # in one padded batch
    expected = torch.stack(both_sides).mean(0)
    torch.testing.assert_close(model(**inputs, attention_request=request)[1]["agreement"], expected)


def test_pooling():
    x, valid = torch.randn(2, 4, 3), torch.tensor([[True] * 4, [True, True, False, False]])
    torch.testing.assert_close(MeanPooling()(x, valid), torch.stack([x[0].mean(0), x[1, :2].mean(0)]))
    pooling = QueryPooling(3, 2)
    for row, length in ((0, 4), (1, 2)):
        real = x[row, :length]
        expected = [(real @ query / 3**0.5).softmax(0) @ real for query in pooling.queries]
        torch.testing.assert_close(pooling(x, valid)[row], torch.cat(expected))


@pytest.mark.parametrize("flags", PLACED)
def test_a_pair_alone_equals_itself_in_a_batch_and_every_parameter_trains(task, flags):
    model = build(task, **flags)
    together = model(**six(task)["net_input"])[0]
    alone = torch.cat([model(**six(task, [i])["net_input"])[0] for i in range(6)])
    assert together.shape == (6, len(RELATIONS))
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    together.logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_architectures(task):
    logic = build(task, encoder_embed_dim=256, encoder_ffn_embed_dim=1024, encoder_attention_heads=8)
    layer = 4 * (256 * 256 + 256) + 2 * 256 * 1024 + 1024 + 256 + 4 * 256
    classifier = (1024 * 256 + 256) + (256 * 256 + 256) + (256 * 7 + 7)
    outside = len(task.source_dictionary) * 256 + 2 * 256
    assert sum(p.numel() for p in logic.parameters()) == 2 * layer + outside + classifier
    own = Namespace(arch="li2021_logic", **{name: value for name, value in SMALL.items() if name != "dropout"})
    ARCH_CONFIG_REGISTRY["li2021_logic"](own)
    classifier = ARCH_MODEL_REGISTRY["li2021_logic"].build_model(own, task).classifier
    assert [module.p for module in classifier if isinstance(module, FairseqDropout)] == [0.2] * 3
    assert build(task, pooling_queries=3).classifier[1].in_features == 24 * 3 * 2  # of both sentences
    routed = build(task, "li2021_logic_aggregation")
    assert all(layer.self_attn.mechanism("routing") for layer in routed.encoder.layers)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"syntax": "phrase"}, "--syntax, --enliven: the sentences of this task have no trees"),
        ({"routing": "em", "routing_on": "decoder"}, "this model has no decoder attention"),
        ({"pooling_queries": 0}, "--pooling-queries 0: must be at least 1"),
        ({"classifier_layers": 0}, "--classifier-layers 0: must be at least 1"),
        ({"encoder_attention_heads": 5}, "--encoder-attention-heads 5: must divide"),
    ],
)
def test_refused(task, flags, message):
    refused(message, build, task, **flags)


def test_other_tasks_are_refused():
    refused("a classifier needs --task logical_inference", build, SimpleNamespace(source_dictionary=None))


def test_criterion(task):
    model, sample = build(task), six(task)
    logits, _ = model(**sample["net_input"])
    chances = logits.softmax(-1)[range(6), sample["target"]]
    loss, size, log = Classification(task)(model, sample)
    torch.testing.assert_close(loss, -chances.log().sum())
    assert size == 6 and log["correct"] == sum(logits.argmax(-1) == sample["target"])
    each, *_ = Classification(task)(model, sample, reduce=False)
    torch.testing.assert_close(each, -chances.log())
    with metrics.aggregate(new_root=True) as logged:
        Classification.reduce_metrics([log, {**log, "correct": log["correct"] * 0}])
    values = logged.get_smoothed_values()
    assert values["accuracy"] == pytest.approx(100 * float(log["correct"]) / 12, abs=0.01)
    assert values["loss"] == pytest.approx(loss.item() / 6, abs=1e-4)
    with metrics.aggregate(new_root=True) as logged:  # one validation, batches of 6 and 2
        Classification.reduce_metrics([{"loss": 6.0, "correct": 6, "nsentences": 6}])
        Classification.reduce_metrics([{"loss": 10.0, "correct": 0, "nsentences": 2}])
    assert logged.get_smoothed_values() == {"loss": 2.0, "accuracy": 75.0}


def disagreement(terms, weight, task):
    cfg = {"disagreement": terms, "disagreement_on": "encoder", "disagreement_weight": weight}
    return ClassificationWithDisagreement.build_criterion(SimpleNamespace(**cfg, disagreement_centre=False), task)


def test_criterion_with_disagreement(task):
    model, sample = build(task), six(task)
    loss, size, log = disagreement("output,position", 0.5, task)(model, sample)
    request = AttentionRequest(("output", "position"), "encoder")
    agreement = model(**sample["net_input"], attention_request=request)[1]["agreement"]
    plain, *_ = Classification(task)(model, sample)
    torch.testing.assert_close(loss, plain + 0.5 * size * agreement.sum())
    torch.testing.assert_close(log["loss"], plain.detach())


def test_layers_compile_with_the_flag(task):
    for on in (False, True):
        assert all(layer.compiles is on for layer in build(task, compile_layers=on).encoder.layers)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("flags", [{"pooling": "mean"}, *PLACED], ids=str)
def test_half_types(task, flags, half):
    """What --bf16 and --fp16 need from model and criterion."""
    sample = six(task)
    terms = "output" if "interacting" in flags else "output,position"
    losses = []
    for kind in (torch.float32, half):
        model = build(task, **flags).to(kind)
        loss, *_ = disagreement(terms, 1.0, task)(model, sample)
        loss.backward()
        plain, *_ = Classification(task)(model, sample)
        assert loss.dtype == plain.dtype == torch.float32 and all(p.grad.isfinite().all() for p in model.parameters())
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=0.03) and losses[1] != losses[0]


def test_accuracy(task):
    task.load_dataset("test5")
    dataset = task.dataset("test5")
    right = dict(zip(map(str, dataset.inputs), dataset.labels, strict=True))
    seen = []

    class Oracle(torch.nn.Linear):
        def forward(self, src_tokens, src_lengths):
            half = len(src_tokens) // 2
            sides = [row[row != 1] for row in src_tokens]
            found = [right[str([sides[i], sides[half + i]])] for i in range(half)]
            found = [(label + (len(seen) + i == 0)) % 7 for i, label in enumerate(found)]  # the very first is wrong
            return torch.nn.functional.one_hot(torch.tensor(found), 7), {}

    hits = classified(Oracle(1, 1), task, task.tests["5"], 200, lambda count: seen.extend([0] * count))
    result = Accuracy([*map(dataset.labels.count, range(7))], hits)
    assert len(seen) == len(result.hits) == len(dataset) and result.hits.count("0") == 1
    assert (result.share, result.largest) == (100 * (1 - 1 / len(dataset)), 100 * max(result.classes) / len(dataset))
    assert pooled([result, Accuracy([1] * 7, "0010100")]) == (
        [count + 1 for count in result.classes], result.hits + "0010100",
    )  # fmt: skip
