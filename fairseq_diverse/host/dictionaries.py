"""A checkpoint has a digest of its dictionaries, and is not used with others of the same size.

A data set that is prepared again, of slightly other text, has other numbers for its words, and often dictionaries of
the same size, since fairseq pads them to a multiple of 8: the model would load, and translate nonsense."""

import hashlib
from collections.abc import Iterable
from typing import Any

from fairseq_diverse.checkpoints.loading import DICTIONARIES, dictionary_digests, other_dictionaries


class OtherDictionaries(RuntimeError):
    """The data are not those of the model's training."""


def digests_of(task: Any) -> dict[str, str]:
    """The digests of the dictionaries of a translation task, language model or classifier of sentences, by side."""
    from fairseq.tasks.language_modeling import LanguageModelingTask
    from fairseq.tasks.masked_lm import MaskedLMTask
    from fairseq.tasks.sentence_prediction import SentencePredictionTask
    from fairseq.tasks.sentence_ranking import SentenceRankingTask
    from fairseq.tasks.span_masked_lm import SpanMaskedLMTask
    from fairseq.tasks.translation import TranslationTask

    mono = LanguageModelingTask | MaskedLMTask | SpanMaskedLMTask | SentencePredictionTask | SentenceRankingTask
    sides = ("source", "target") if isinstance(task, TranslationTask) else ("source",) if isinstance(task, mono) else ()
    return {side: digest(getattr(task, f"{side}_dictionary").symbols) for side in sides}


def digest(words: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


def _merged(task: Any) -> dict[str, str]:
    """The digests after the model of --merge-src-tgt-embed is built, which gives both sides one dictionary."""
    words = dict.fromkeys(word for of in (task.source_dictionary, task.target_dictionary) if of for word in of.symbols)
    return dict.fromkeys(("source", "target"), digest(words))


def task_state(state_dict: Any, self: Any) -> dict[str, Any]:
    """As ``FairseqTask.state_dict``, with the digests; fairseq without the plugin ignores them."""
    digests = digests_of(self)
    return {**state_dict(self), **({DICTIONARIES: digests} if digests else {})}


def load_task_state(load: Any, self: Any, state_dict: dict[str, Any]) -> None:
    """As ``FairseqTask.load_state_dict``; a state without digests is not compared.

    Raises:
        OtherDictionaries: the digests differ.
    """
    trained = dictionary_digests({"task_state": state_dict})
    if (difference := other_dictionaries(digests_of(self), trained)) and other_dictionaries(_merged(self), trained):
        raise OtherDictionaries(difference)
    load(self, {key: value for key, value in state_dict.items() if key != DICTIONARIES})
