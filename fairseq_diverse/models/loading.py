"""Models from checkpoints, with errors a user can mend."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils

from fairseq_diverse.errors import UserError


def load_models(paths: Sequence[str | Path], data: str | Path) -> tuple[list[Any], Any, Any]:
    """The models of checkpoints, the configuration of the last, and a task with the dictionaries of ``data``.

    Raises:
        UserError: a file that is no checkpoint, or dictionaries that do not fit.
    """
    names = ", ".join(map(str, paths))
    try:
        return checkpoint_utils.load_model_ensemble_and_task([*map(str, paths)], {"data": str(data)})
    except (AssertionError, IndexError) as error:  # fairseq fails while it words its message about the model
        raise UserError(f"{names}: a task or model that neither fairseq nor this package has") from error
    except RuntimeError as error:  # its last line names a parameter
        mismatch = str(error).splitlines()[-1].strip()
        raise UserError(f"{names}: was it trained on other data than {data}? It does not fit: {mismatch}") from error
