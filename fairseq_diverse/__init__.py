"""Attention diversity for neural machine translation: a fairseq plugin.

``--user-dir fairseq_diverse`` imports this package. It registers its models, criterions and tasks with fairseq, and the
classes in fairseq's checkpoints with torch.
"""

import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from fairseq_diverse.models.sharing import SharedModel

__version__ = "1.0.0"

if __name__.rpartition(".")[2] != "fairseq_diverse":
    sys.exit(
        f"error: --user-dir {os.path.dirname(__file__)}: the folder of fairseq_diverse by a link or copy of another "
        "name; give the folder itself, which `fairseq-diverse user-dir` prints"
    )


def register() -> None:
    """Register everything with fairseq and torch; idempotent."""
    from fairseq_diverse.criterions import classification, with_disagreement  # noqa: F401
    from fairseq_diverse.host.changes import apply_changes
    from fairseq_diverse.host.loading import register_safe_globals
    from fairseq_diverse.host.messages import install_error_hook
    from fairseq_diverse.host.starting import fork_workers, plain_optimizers
    from fairseq_diverse.models import architectures  # noqa: F401
    from fairseq_diverse.tasks import classification as of_classes  # noqa: F401
    from fairseq_diverse.tasks import text_to_text, translation_with_syntax  # noqa: F401

    register_safe_globals()
    apply_changes()
    plain_optimizers()
    fork_workers()
    install_error_hook()


def load(name: "str | Path") -> "SharedModel":
    """A model that ``fairseq-diverse export --to safetensors`` wrote: a folder, or ``USER/NAME`` of the Hugging Face
    hub. No code of it is run.

    Raises:
        ValueError: it is missing, damaged or of a newer version; says which file.
        ImportError: fairseq is not installed.
    """
    if find_spec("fairseq") is None:
        raise ImportError("fairseq is not installed; run: pip install 'fairseq-diverse[fairseq]'")
    register()
    from fairseq_diverse.models.sharing import load_shared

    return load_shared(name)


# The attention core works without fairseq.
if sys.modules.get("fairseq") is not None:
    register()
