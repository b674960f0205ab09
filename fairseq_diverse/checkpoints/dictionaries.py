"""A translation model keeps a digest of its dictionaries, and is not used with others of the same size.

A data set that is prepared again, of slightly other text, has other numbers for its words, and often dictionaries of
the same size, since fairseq pads them to a multiple of 8: the model would load, and translate nonsense.
"""

import functools
import hashlib
from typing import Any

KEY = "dictionaries"  # in the task's state


class OtherDictionaries(RuntimeError):
    """The data are not those of the model's training."""


def keep_dictionaries() -> None:
    """Save the digests with the state of translation tasks, and compare them when a model is loaded. Idempotent.

    Checkpoints without them are not compared. fairseq without the plugin ignores them.
    """
    from fairseq.tasks.translation import TranslationTask

    if not hasattr(TranslationTask.state_dict, "__wrapped__"):
        TranslationTask.state_dict = _saved(TranslationTask.state_dict)
        TranslationTask.load_state_dict = _compared(TranslationTask.load_state_dict)


def _digests(task: Any) -> dict[str, str]:
    sides = {"source": task.source_dictionary, "target": task.target_dictionary}
    return {side: hashlib.sha256("\n".join(of.symbols).encode()).hexdigest() for side, of in sides.items()}


def _saved(state_dict: Any) -> Any:
    @functools.wraps(state_dict)
    def saved(self: Any) -> dict[str, Any]:
        return {**state_dict(self), KEY: _digests(self)}

    return saved


def _compared(load: Any) -> Any:
    @functools.wraps(load)
    def compared(self: Any, state_dict: dict[str, Any]) -> None:
        own, kept = _digests(self), state_dict.get(KEY) or {}
        if differing := [side for side in own if kept.get(side, own[side]) != own[side]]:
            raise OtherDictionaries(f"the {' and '.join(differing)} dictionary has other words, or in another order")
        load(self, {key: value for key, value in state_dict.items() if key != KEY})

    return compared
