"""A model whose extra output is kept while a criterion calls it."""

from typing import Any

from fairseq_diverse.attention.request import as_tuple

REQUEST = "attention_request"


class ObservedModel:
    """A wrapper to give to a criterion in place of a model; ``extra`` keeps the model's second output.

    Args:
        model: the model, or another ``ObservedModel``.
        added: additional keyword arguments for the call. An ``attention_request`` is joined with the caller's.
    """

    def __init__(self, model: Any, **added: Any) -> None:
        self.model, self.added = model, added
        self.extra: dict[str, Any] | None = None  # the model's second output; None until it is called

    def __call__(self, **net_input: Any) -> Any:
        added = dict(self.added)
        if REQUEST in added and REQUEST in net_input:
            added[REQUEST] = as_tuple(added[REQUEST]) + as_tuple(net_input.pop(REQUEST))
        output = self.model(**net_input, **added)
        self.extra = output[1]
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)
