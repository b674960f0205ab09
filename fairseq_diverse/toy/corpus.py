"""The files of the toy corpus."""

import json
from contextlib import ExitStack
from pathlib import Path

from tqdm import tqdm

from fairseq_diverse.files import atomic_write, refuse_foreign
from fairseq_diverse.toy.derivation import Derivation, sentence_pair
from fairseq_diverse.toy.trees import conllu

SUFFIXES = ("en", "de", "en.conllu", "en.ptb")
RECORD = "toy.json"  # of what made the files


def write_corpus(out: Path, train: int, valid: int = 500, test: int = 500, seed: int = 1) -> None:
    """Write ``{train,valid,test}.{en,de,en.conllu,en.ptb}``, line by line (sentence by sentence) the same.

    No source sentence of valid or test stands elsewhere. The three splits are drawn one after the other, valid and test
    first: more training sentences from the same seed begin with the same ones, and leave valid and test as they are.
    The sizes and the seed are written to ``toy.json``.

    Raises:
        ValueError: a size below 1, a negative seed, ``out`` is a file, or holds such files of another origin.
    """
    sizes = {"valid": valid, "test": test, "train": train}
    for flag, size in {"sentences": train, "valid": valid, "test": test}.items():
        if size < 1:
            raise ValueError(f"--{flag} {size}: must be at least 1")
    if seed < 0:
        raise ValueError(f"--seed {seed}: must be 0 or more")
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out}: is a file; name a folder")
    refuse_foreign(out, [f"{split}.{suffix}" for split in sizes for suffix in SUFFIXES], RECORD)
    derivation = Derivation(seed)
    held_out: set[str] = set()
    with ExitStack() as stack:  # every file is put in place at the very end
        progress = stack.enter_context(
            tqdm(total=sum(sizes.values()), unit=" sentences", desc="toy corpus", disable=None)
        )
        files = {
            (split, suffix): stack.enter_context(atomic_write(out / f"{split}.{suffix}"))
            for split in sizes
            for suffix in SUFFIXES
        }
        json.dump({"sentences": sizes, "seed": seed}, stack.enter_context(atomic_write(out / RECORD)))
        for split, size in sizes.items():
            written = 0
            while written < size:
                tree, target = sentence_pair(derivation)
                source = " ".join(leaf.word for leaf in tree.leaves())
                if source in held_out:
                    continue
                if split != "train":
                    held_out.add(source)
                written += 1
                files[split, "en"].write(source + "\n")
                files[split, "de"].write(target + "\n")
                files[split, "en.conllu"].write(conllu(tree, f"{split}-{written}"))
                files[split, "en.ptb"].write(tree.brackets() + "\n")
                progress.update()
