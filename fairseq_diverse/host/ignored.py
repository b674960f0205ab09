"""Flags that a program of fairseq takes and ignores, refused or honoured; flags of mechanisms with fairseq's models."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fairseq_diverse.host.batches import SHARD
from fairseq_diverse.support.errors import UserError

# by a flag that only this program has; training first, where a task may have a --beam
PROGRAMS = {
    "max_epoch": "fairseq-train",
    "buffer_size": "fairseq-interactive",
    "beam": "fairseq-generate",
    "context_window": "fairseq-eval-lm",
    "post_process": "fairseq-validate",
}
DECODING = ("no_early_stop", "bf16", "amp")
# program -> the flags that it ignores
IGNORED = {
    "fairseq-generate": DECODING,
    "fairseq-interactive": (
        *(*DECODING, "lm_path", "lm_weight", "prefix_size", "score_reference", "sacrebleu", "results_path", "quiet"),
        *("gen_subset", "num_shards", "shard_id"),
    ),
    "fairseq-eval-lm": ("bf16", "amp", "results_path", "quiet"),
    "fairseq-validate": (
        *("bf16", "amp", "results_path", "quiet", "post_process", "gen_subset", "max_valid_steps"),
        *("num_shards", "shard_id"),
    ),
    "fairseq-train": ("char_inputs", "gen_subset", "num_shards", "shard_id"),
}
TRANSLATION = ("translation", "translation_with_syntax")
# what the programs ignore in these tasks, since other tasks read it
OF_OTHER_TASKS = (
    *("beam_mt", "max_len_a_mt", "max_len_b_mt", "lenpen_mt", "eos_token", "decoding_format", "print_step"),
    *("retain_iter_history", "iter_decode_eos_penalty", "iter_decode_max_iter", "iter_decode_force_max_iter"),
    *("iter_decode_with_beam", "iter_decode_with_external_reranker"),
)


def check_ignored(parser: ArgumentParser, args: Namespace) -> None:
    """Raise ``UserError`` for a flag that the program ignores; ``--num-shards`` of fairseq-generate is honoured."""
    known = {action.dest for action in parser._actions}
    program = next((name for flag, name in PROGRAMS.items() if flag in known), "")
    ignored: tuple[str, ...] = IGNORED.get(program, ())
    if getattr(args, "task", "") in TRANSLATION:
        ignored += OF_OTHER_TASKS
    for name in ignored:
        if (value := getattr(args, name, None)) not in (None, parser.get_default(name)):
            _refuse(name, value, program, name not in IGNORED["fairseq-generate"] and program == "fairseq-interactive")
    if program == "fairseq-interactive" and getattr(args, "print_alignment", None) == "soft":
        _refuse("print_alignment", "soft", program, True)
    shards, shard = getattr(args, "num_shards", 1), getattr(args, "shard_id", 0)
    if not 0 <= shard < max(1, shards):
        raise UserError(f"--shard-id {shard}: from 0 to --num-shards {shards} - 1")
    SHARD.set((shards, shard) if program == "fairseq-generate" and shards > 1 else None)


def _refuse(name: str, value: Any, program: str, elsewhere: bool) -> None:
    flag = f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
    raise UserError(f"{flag}: {program} ignores it; leave it out" + ", or use fairseq-generate" * elsewhere)


@contextmanager
def flags_of_mechanisms(parser: Any, words: Sequence[str] | None = None) -> Iterator[None]:
    """Say in one line, without the usage, which architecture takes a flag of a mechanism.

    Args:
        words: what is parsed; the command line, if None.
    """
    from fairseq.models import ARCH_MODEL_REGISTRY

    before = parser.error

    def flags_of(arch: str) -> set[str]:
        taking = ArgumentParser(add_help=False, conflict_handler="resolve")
        ARCH_MODEL_REGISTRY[arch].add_args(taking)
        return {*taking._option_string_actions}

    def error(message: str) -> None:
        unknown = [word.partition("=")[0] for word in message.partition("unrecognized arguments: ")[2].split()]
        if flags := [word for word in unknown if word in flags_of("diverse_transformer") - flags_of("transformer")]:
            known = ArgumentParser(add_help=False, allow_abbrev=False)
            known.add_argument("--arch", "-a", default="transformer")
            arch = known.parse_known_args(words)[0].arch
            with_them = f"diverse_{arch}" if f"diverse_{arch}" in ARCH_MODEL_REGISTRY else "diverse_transformer"
            raise UserError(f"{flags[0]}: --arch {arch} of fairseq has no mechanisms; use {with_them}")
        before(message)

    parser.error = error
    try:
        yield
    finally:
        parser.error = before
