"""Models from checkpoints, with errors a user can mend."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from fairseq.models.transformer import TransformerModel

from fairseq_diverse.errors import UserError
from fairseq_diverse.models.diverse_transformer import DiverseTransformerModel


def load_models(paths: Sequence[str | Path], data: str | Path, **settings: str) -> tuple[list[Any], Any, Any]:
    """The models of checkpoints, the configuration of the last, and a task with the dictionaries of ``data``.

    Args:
        settings: of task and model, in place of those that the checkpoints have.

    Raises:
        UserError: a file that is no checkpoint or absent, or dictionaries that are absent or do not fit.
    """
    names = ", ".join(map(str, paths))
    try:
        return checkpoint_utils.load_model_ensemble_and_task([*map(str, paths)], {"data": str(data), **settings})
    except (AssertionError, IndexError) as error:  # fairseq fails while it words its message about the model
        raise UserError(f"{names}: a task or model that neither fairseq nor this package has") from error
    except RuntimeError as error:  # its last line names a parameter
        mismatch = str(error).splitlines()[-1].strip()
        raise UserError(f"{names}: was it trained on other data than {data}? It does not fit: {mismatch}") from error
    except (MemoryError, UserError):
        raise
    except Exception as error:
        if type(error) is Exception:  # fairseq's words
            raise UserError(f"{data}: is it a folder of prepared data for {names}? {error}") from error
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(f"{names}: no model can be made of its settings ({problem})") from error


def load_model(path: str | Path, data: str | Path) -> tuple[DiverseTransformerModel, Any]:
    """The model of a checkpoint, and its task with the dictionaries of ``data``.

    A checkpoint of fairseq's ``transformer`` becomes the same model with every mechanism off.

    Raises:
        UserError: as ``load_models``, or another kind of model.
    """
    (model,), cfg, task = load_models([path], data, from_checkpoint="", checkpoint_data="")  # of no other checkpoint
    if type(model) is TransformerModel:
        plain = model
        model = DiverseTransformerModel.build_model(Namespace(**vars(cfg.model)), task)
        model.load_state_dict(plain.state_dict())
    if not isinstance(model, DiverseTransformerModel):
        raise UserError(f"{path}: a {cfg.model._name} model; diverse_transformer or transformer is needed")
    return model.eval(), task
