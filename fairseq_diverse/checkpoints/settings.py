"""Which settings of checkpoints and tables are safe for fairseq, which passes some of them to ``eval``."""

import ast
import re
from typing import Any

from fairseq_diverse.support.errors import UserError

# Names of settings that are paths or free text ("runs (2)" is not a call). fairseq evaluates none of them.
FREE_TEXT = re.compile(r"data|.*(dir|file|path|project|from_model|from|prefix|suffix)")
EVALUATED = re.compile(  # by fairseq
    r"adaptive_(input|softmax)_cutoff|(adam|adamax|lamb)_betas|adafactor_eps|left_pad_(source|target)|wer_args"
    r"|(encoder_|decoder_)?xformers_att_config|pipeline_((encoder|decoder)_)?(balance|devices)|feature_encoder_spec"
    r"|character_filters|conv_(feature|aggregator)_layers|(encoder|decoder)_(layers|attention)|pretrained|self_attention"
    r"|project_input|gated_attention|downsample"
)
# Nodes allowed in expressions of other settings: "a.b/c-d" is text, and evaluating it would call nothing.
TEXT_NODES = (
    *(ast.Expression, ast.Name, ast.Constant, ast.Attribute, ast.Tuple, ast.List, ast.Set, ast.Dict),
    *(ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.boolop, ast.operator, ast.unaryop, ast.expr_context),
)


def unsafe_setting(name: str, value: str | bytes | bytearray) -> str:
    """Why a setting (an attribute's name and value) is not safe for fairseq; empty if it is."""
    if name == "dataset_impl" and value == "fasta":
        return "makes fairseq read files through a shell"
    if EVALUATED.fullmatch(name) and not _is_literal(value):
        return "is not a literal, and fairseq evaluates it"
    if not isinstance(value, str) or "${" in value or not (FREE_TEXT.fullmatch(name) or _is_text(value)):
        return "is an expression that would be run if it were evaluated"
    return ""


def literal(text: str) -> Any:
    """``eval`` for fairseq's settings: a literal, or sums and multiples of lists of literals (``[(512, 3)] * 20``).

    Raises:
        UserError: ``text`` is another expression.
        TypeError: it is not a string; as ``eval``, since fairseq catches it.
    """
    if not isinstance(text, str):
        raise TypeError("literal() arg 1 must be a string")
    try:
        node = ast.parse(text.strip(), mode="eval").body
        return _lists(node) if isinstance(node, ast.BinOp) else ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise UserError(f"the setting {printable(repr(text))} is not a literal, such as (0.9, 0.98)") from None


def _lists(node: ast.expr) -> list:
    match node:
        case ast.BinOp(left, ast.Add(), right):
            return _lists(left) + _lists(right)
        case ast.BinOp(ast.List() as left, ast.Mult(), ast.Constant(int(times))) if len(left.elts) * times <= 10_000:
            return ast.literal_eval(left) * times
        case ast.List():
            return ast.literal_eval(node)
    raise ValueError


def _is_literal(value: str | bytes | bytearray) -> bool:
    try:
        literal(value)  # type: ignore[arg-type]
    except (UserError, TypeError):
        return False
    return True


def _is_text(value: str) -> bool:
    """Whether ``eval`` would only look up and combine names."""
    try:
        return all(isinstance(node, TEXT_NODES) for node in ast.walk(ast.parse(value.lstrip(" \t"), mode="eval")))
    except (SyntaxError, ValueError):
        return True  # eval would not run it either
    except (RecursionError, MemoryError):
        return False  # too deeply nested to tell


def printable(text: str, longest: int = 100) -> str:
    """Text from an untrusted file, shortened and without control characters."""
    text = text.encode("unicode_escape").decode()
    return text if len(text) <= longest else f"{text[:longest]}..."
