"""A mechanism works with every other one on the same attention."""

from collections.abc import Iterable

from fairseq_diverse.attention.registry import MECHANISMS
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.testing.models import Flags, at, build_model, examples, placed
from fairseq_diverse.testing.properties.common import SIDES, PropertyFailed, told, where_placed
from fairseq_diverse.testing.properties.definition import has_an_effect
from fairseq_diverse.testing.properties.learning import gradients
from fairseq_diverse.testing.properties.tokens import causality, padding, step_by_step


def with_others(name: str, component: str, others: Iterable[str] | None = None) -> None:
    """On one attention with each other mechanism that it does not refuse, training and decoding work, and both
    mechanisms have an effect."""
    others = [other for other in MECHANISMS if other != name] if others is None else others
    own = at(examples(name)[0], component)
    for other in (other for other in others if component in MECHANISMS[other].components):
        theirs = at(examples(other)[0], component)
        flags = {**theirs, **own}
        try:
            build_model(flags)
        except UserError:
            continue
        if (said := _together(flags)) and not _together(theirs):  # else the other is wrong
            raise PropertyFailed(f"with {other}: {said}")
        for one, alone, without in (name, own, theirs), (other, theirs, own):
            if one in placed(without) or _acts(flags, without) or not _acts(alone):
                continue  # an example may have several mechanisms, and one may do nothing by itself
            why = "; the stage attention masks keys by context.visible" * ("attention" in MECHANISMS[name].stages())
            raise PropertyFailed(f"with {other}: {one} has no effect{why}")


def _acts(flags: Flags, without: Flags | None = None) -> bool:
    """Whether ``has_an_effect`` holds."""
    try:
        has_an_effect(flags, without)
    except PropertyFailed:
        return False
    return True


def _together(flags: Flags) -> str:
    """What fails first of training, padding and decoding; empty if nothing does."""
    try:
        gradients(flags)
        padding(flags, SIDES[:1])
        if where_placed(flags) != "encoder":
            causality(flags)
            step_by_step(flags)
    except Exception as error:  # a mechanism may raise anything
        return told(error)
    return ""
