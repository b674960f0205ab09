"""The model as a criterion calls it, with what it returned kept for whoever called the criterion."""

from typing import Any


class ObservedModel:
    """Stands for a model in one call of a criterion.

    Args:
        model: what is called.
        added: further keyword arguments of the call.
    """

    def __init__(self, model: Any, **added: Any) -> None:
        self.model, self.added = model, added
        self.extra: dict[str, Any] | None = None  # the model's second output; None until it is called

    def __call__(self, **net_input: Any) -> Any:
        output = self.model(**net_input, **self.added)
        self.extra = output[1]
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)
