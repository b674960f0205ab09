"""A checkpoint keeps a digest of its dictionaries, and is not used with others of the same size.

A data set that is prepared again, of slightly other text, has other numbers for its words, and often dictionaries of
the same size, since fairseq pads them to a multiple of 8: the model would load, and translate nonsense.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.patching import patch

KEY = "dictionaries"  # in the task's state


class OtherDictionaries(RuntimeError):
    """The data are not those of the model's training."""


def keep_dictionaries() -> None:
    """Save the digests with the task's state, and compare them when a model is loaded or trained further. Idempotent.

    Of translation tasks, language models and classifiers of sentences. Checkpoints without them are not
    compared. fairseq without the plugin ignores them.
    """
    from fairseq.tasks import FairseqTask
    from fairseq.trainer import Trainer

    patch(FairseqTask, "state_dict", _save)
    patch(FairseqTask, "load_state_dict", _compare)
    patch(Trainer, "load_checkpoint", _compare_first)


def kept_digests(state: Mapping[str, Any]) -> dict[str, str]:
    """Those in a checkpoint, by side; empty where it has none."""
    kept = (state.get("task_state") or {}).get(KEY) or {}
    return dict(kept) if isinstance(kept, Mapping) else {}


def difference(own: Mapping[str, str], kept: Mapping[str, str]) -> str:
    """What differs, in words; empty where nothing that both have does."""
    differing = [side for side in own if kept.get(side, own[side]) != own[side]]
    return f"the {' and '.join(differing)} dictionary has other words, or in another order" if differing else ""


def _digests(task: Any) -> dict[str, str]:
    from fairseq.tasks.language_modeling import LanguageModelingTask
    from fairseq.tasks.masked_lm import MaskedLMTask
    from fairseq.tasks.sentence_prediction import SentencePredictionTask
    from fairseq.tasks.sentence_ranking import SentenceRankingTask
    from fairseq.tasks.translation import TranslationTask

    sides = {}
    if isinstance(task, TranslationTask):
        sides = {"source": task.source_dictionary, "target": task.target_dictionary}
    elif isinstance(task, LanguageModelingTask | MaskedLMTask | SentencePredictionTask | SentenceRankingTask):
        sides = {"source": task.source_dictionary}
    return {side: _digest(of.symbols) for side, of in sides.items()}


def _digest(words: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


def _merged(task: Any) -> dict[str, str]:
    """The digests after the model of --merge-src-tgt-embed is built, which gives both sides one dictionary."""
    words = dict.fromkeys(word for of in (task.source_dictionary, task.target_dictionary) if of for word in of.symbols)
    return dict.fromkeys(("source", "target"), _digest(words))


def _save(state_dict: Any, self: Any) -> dict[str, Any]:
    digests = _digests(self)
    return {**state_dict(self), **({KEY: digests} if digests else {})}


def _compare(load: Any, self: Any, state_dict: dict[str, Any]) -> None:
    kept = kept_digests({"task_state": state_dict})
    if (other := difference(_digests(self), kept)) and difference(_merged(self), kept):
        raise OtherDictionaries(other)
    load(self, {key: value for key, value in state_dict.items() if key != KEY})


def _compare_first(load: Any, self: Any, filename: str, *args: Any, **flags: Any) -> Any:
    """``Trainer.load_checkpoint``, which does not load the task's state."""
    from fairseq_diverse.checkpoints.loading import load_checkpoint

    if self.data_parallel_rank == 0 and os.path.isfile(filename):
        kept = kept_digests(load_checkpoint(filename, mmap=True, verify=False))  # fairseq reads and verifies it below
        if other := difference(_digests(self.task), kept):
            raise UserError(
                f"{filename}: does not fit these data: {other}; prepare them with the dictionaries of its training "
                "(--srcdict, --tgtdict)"
            )
    return load(self, filename, *args, **flags)
