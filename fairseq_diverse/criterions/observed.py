"""The model as a criterion calls it, with what it returned kept for whoever called the criterion."""

from typing import Any

from fairseq_diverse.attention.request import JoinedRequest

REQUEST = "attention_request"


class ObservedModel:
    """Stands for a model in one call of a criterion.

    Args:
        model: what is called; may be observed itself.
        added: further keyword arguments of the call; ``attention_request`` is joined with that of the caller.
    """

    def __init__(self, model: Any, **added: Any) -> None:
        self.model, self.added = model, added
        self.extra: dict[str, Any] | None = None  # the model's second output; None until it is called

    def __call__(self, **net_input: Any) -> Any:
        added = dict(self.added)
        if REQUEST in added and REQUEST in net_input:
            added[REQUEST] = JoinedRequest(added[REQUEST], net_input.pop(REQUEST))
        output = self.model(**net_input, **added)
        self.extra = output[1]
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)
