"""Small stanza models, trained by stanza itself on the embedded corpus, in a folder as `stanza.download` makes it.

python -m tests.integration.stanza_models FOLDER
"""

import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from stanza.models import constituency_parser, lemmatizer, parser, tagger
from stanza.models.common.pretrain import Pretrain
from stanza.models.constituency import parser_training

from fairseq_diverse.toy.corpus import write_corpus

SMALL = "--no_pretrain --no_char --hidden_dim 64 --num_layers 1 --word_emb_dim 32 --tag_emb_dim 16"
TAGGER = f"{SMALL} --deep_biaff_hidden_dim 64 --batch_size 100 --batch_maximum_tokens 1000 --max_steps 20"
PARSER = f"{SMALL} --deep_biaff_hidden_dim 64 --deep_biaff_output_dim 32 --batch_size 500 --max_steps 100"
CONSTITUENCY = (
    "--epochs 1 --epoch_size 40 --no_retag --no_multistage --no_checkpoint --hidden_size 64 --num_lstm_layers 1 "
    "--transition_hidden_size 20 --transition_embedding_dim 16 --tag_embedding_dim 16 --delta_embedding_dim 32 "
    "--transition_stack LSTM --constituent_stack LSTM --pattn_num_layers 0 --lattn_d_proj 0"
)


class WithoutJava:
    """In place of the scores of trees, for which stanza starts Java: every epoch is the best."""

    def __init__(self, **options: object) -> None:
        self.epochs = 0

    def __enter__(self) -> "WithoutJava":
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing was started."""

    def process(self, trees: object) -> SimpleNamespace:
        self.epochs += 1
        return SimpleNamespace(f1=float(self.epochs), treeF1=[], HasField=lambda name: False)


def train(folder: Path) -> None:
    """Write ``folder``: resources.json and one model a step."""
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    raw, models = folder / "raw", folder / "en"
    write_corpus(raw, train=600, valid=1, test=20)
    for split in ("train", "test"):
        trees = (raw / f"{split}.en.ptb").read_text().splitlines()
        (raw / f"{split}.mrg").write_text("".join(f"(ROOT {tree})\n" for tree in trees))
    words = sorted({word for line in (raw / "train.en").read_text().splitlines() for word in line.split()})
    vectors = torch.randn(len(words), 8).tolist()
    lines = [f"{len(words)} 8", *(f"{w} {' '.join(map(str, row))}" for w, row in zip(words, vectors, strict=True))]
    (raw / "vectors").write_text("\n".join(lines) + "\n")
    (models / "pretrain").mkdir(parents=True)
    pretrained = models / "pretrain/small.pt"
    assert Pretrain(str(pretrained), str(raw / "vectors")).emb is not None
    parser_training.EvaluateParser = WithoutJava

    def arguments(step: str, ending: str, flags: str) -> list[str]:
        files = ["--train_file", raw / f"train.{ending}", "--eval_file", raw / f"test.{ending}"]
        saved = ["--save_dir", models / step, "--save_name", "small.pt", "--shorthand", "en_small", "--cpu"]
        return [*map(str, files + saved), *flags.split()]

    output = f"--output_file {raw}/out"
    tagger.main(arguments("pos", "en.conllu", f"{TAGGER} {output} --eval_interval 20 --lang en"))
    lemmatizer.main(arguments("lemma", "en.conllu", f"--dict_only {output}"))
    flags = f"{PARSER} {output} --eval_interval 100 --no_second_optim --no_checkpoint --lang en"
    parser.main(arguments("depparse", "en.conllu", flags))
    flags = f"{CONSTITUENCY} --wordvec_pretrain_file {pretrained} --lang en"
    constituency_parser.main(arguments("constituency", "mrg", flags))
    steps = ("tokenize", "pos", "lemma", "depparse", "constituency", "pretrain")
    packages = dict.fromkeys(steps[:-1], "small")
    resources = {"lang_name": "English", "packages": {"default": packages}, **{step: {"small": {}} for step in steps}}
    resources["constituency"]["small"]["dependencies"] = [{"model": "pretrain", "package": "small"}]
    (folder / "resources.json").write_text(json.dumps({"en": resources}))


if __name__ == "__main__":
    train(Path(sys.argv[1]))
