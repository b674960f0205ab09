"""User errors of fairseq's programs: one line instead of a stack trace."""

import re
import sys
import threading
from types import TracebackType

from fairseq_diverse.support.errors import UserError, printable

# What fairseq says about a user's error (a regular expression for the last line of the stack trace) and, indented, the
# line that is shown instead. The first is from a process that torch spawned for a GPU.
TABLE = r"""
fairseq_diverse\.support\.errors\.UserError: (.*)
    \1
FileNotFoundError: \[Errno 2\] No such file or directory: '(.*label/dict\.txt)'
    \1: missing; data with scores in place of classes need --num-classes 1 --regression-target
FileNotFoundError: \[Errno 2\] No such file or directory: '(.*)'
    \1: no such file or folder
Exception: Could not infer language pair.*
    the data folder has no prepared language pair (such as train.en-de.en.bin); give another folder, or the
    languages with --source-lang and --target-lang
FileNotFoundError: Dataset not found:  +(\S+) \((.*)\)
    --valid-subset: \2 has no split ' \1'; write several without spaces, as valid,\1
FileNotFoundError: Dataset not found: (\S+) \((.*)\)
    \2: no split \1 of these languages; see --source-lang, --target-lang, --dataset-impl, and --train-subset,
    --valid-subset or --gen-subset
Exception: Size of sample #(\d+) is invalid .*since max_positions=(.*), skip this example.*
    sentence \1 (counted from 0) is longer than the \2 positions of model and task: raise --max-source-positions and
    --max-target-positions (--max-positions of a language model) in training, or skip long sentences with
    --skip-invalid-size-inputs-valid-test
Exception: The dataset is empty\..*
    no batches: every sentence is too long (--max-source-positions, --max-target-positions, --max-positions,
    --max-tokens), or fewer sentences remain than --required-batch-size-multiple
ValueError: optimizer is required!
    --optimizer: give one, such as --optimizer adam
AssertionError: world size is (\d+) but have (\d+) available devices
    --distributed-world-size \1: torch finds \2 GPUs; leave it out, or on CPUs start each process with --cpu
    --distributed-no-spawn --distributed-init-method tcp://HOST:PORT --distributed-rank N
TypeError: \w+\.forward\(\) missing 1 required positional argument: 'prev_output_tokens'
    the data have no target side: its .bin and .idx are missing; see --source-lang and --target-lang
TypeError: \w+\.forward\(\) missing 2 required positional arguments: 'src_lengths' and 'prev_output_tokens'
    --lm-path: not a language model
AssertionError: Must specify --max-tokens
    --num-batch-buckets: needs --max-tokens
AttributeError: 'MaskedLMTask' object has no attribute 'args'
    --mask-whole-words: does not work in fairseq's masked_lm; leave it out
MissingMandatoryValue: Missing mandatory value: (sentencepiece_model|bpe_codes)
    --bpe: needs \1, the file (--sentencepiece-model, --bpe-codes)
ConfigCompositionException: Error merging override lr_scheduler\.total_num_update=null
    --lr-scheduler polynomial_decay: needs --total-num-update
RuntimeError: Cannot resume training due to dataloader mismatch.*
    the checkpoint is from within an epoch that has fewer batches now: go on with its data, --max-tokens,
    --batch-size and number of processes, or start the epoch again with --reset-dataloader
OSError: file (.*) not found
    \1: no such file
RuntimeError: (?i:internal): (.*)
    --sentencepiece-model: damaged, or not a model of sentencepiece (\1)
ImportError: (Please install .*)
    \1
(AssertionError: Torch not compiled with CUDA|RuntimeError: (No CUDA GPUs|Found no NVIDIA driver)).*
    torch finds no GPU: on a CPU, leave out --fp16 and --quant-noise-scalar, or take --bf16
InductorError: (InvalidCxxCompiler|CppCompileError|TritonMissing|GPUTooOldForTriton): (.*)
    --compile-layers: torch.compile cannot compile here (\1: \2); it needs g++, and Triton on a GPU; or leave the
    flag out
InductorError: ImportError: (\S+\.so): (.*)
    --compile-layers: \1: \2; torch was interrupted while it wrote the file: delete it
ValueError: loaded state dict (contains a parameter group|has a different number of parameter groups).*
    the checkpoint's optimizer has other parameters than this model: for another model, as one with a new mechanism,
    give another --save-dir and --finetune-from-model FILE, or add --reset-optimizer
ValueError: (Valid paths \[.*\] will be ignored\. .*)
    \1
ConfigCompositionException: Error merging override tokenizer\.(source|target)_lang=null
    --tokenizer moses: needs --source-lang and --target-lang
AssertionError: (Criterion|Optimizer) does not match; .*\. (\w+) vs (\w+)
    the checkpoint was trained with \2, but this training has \3: give another --save-dir and --finetune-from-model
    FILE, or add --reset-optimizer
ValueError: --finetune-from-model and --restore-file .*
    --finetune-from-model, --restore-file: give only one
(?:Assertion|Value)Error: (--\w.*|Must specify batch size .*)
    \1
AssertionError: min_len cannot be larger than max_len.*
    --min-len: longer than a translation may be by --max-len-a, --max-len-b and the model's positions
AssertionError: Must set task.num_classes
    --num-classes: give their number; 1 for --regression-target
AssertionError: could not find dataset: (.*)
    \1: no such split; see --train-subset and --valid-subset
IndexError: Target (-?\d+) is out of bounds\.
    --num-classes: too few, or a label that is not in label/dict.txt: a sentence is in class \1, counted from 0
KeyError: 'target'
    the data have nothing to learn; with --regression-target they need scores in label/SPLIT.label, as STS-B has
AttributeError: '(\w+)' object has no attribute 'register_classification_head'
    --arch: \1 is no classifier of sentences; use diverse_roberta or one derived from it
"""
ROWS = re.findall(r"(?m)^(\S.*)\n((?: .+\n)+)", TABLE)
MESSAGES = {pattern: " ".join(line.split()) for pattern, line in ROWS}


def install_error_hook() -> None:
    """Print one line for an uncaught user error; other exceptions are shown as before. Idempotent.

    User errors are ``UserError``, the messages in ``MESSAGES``, and what fairseq raises as a plain ``Exception``.
    """
    previous_hook = sys.excepthook
    if hasattr(previous_hook, "shows_user_errors"):
        return

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        line = str(error) if issubclass(kind, UserError) else in_one_line(kind, error)
        if line is None:
            previous_hook(kind, error, trace)
        else:
            print(f"error: {printable(line)}", file=sys.stderr)
            for thread in threading.enumerate():  # one that reads ahead: killed within torch, it aborts the program
                if type(thread).__name__ == "BackgroundConsumer":
                    thread.join(timeout=1)

    show.shows_user_errors = True  # type: ignore[attr-defined]

    sys.excepthook = show


def in_one_line(kind: type[BaseException], error: BaseException) -> str | None:
    """The line for an exception that is a user error; None for any other."""
    text = str(error).strip()
    for pattern, line in MESSAGES.items():
        if match := re.search(rf"^{pattern}$", f"{kind.__name__}: {text}", re.MULTILINE):
            return match.expand(line)
    if kind is not Exception or not text:  # fairseq raises a plain Exception for user errors
        return None
    cause = str(error.__context__ or "").strip()
    return text.splitlines()[0] + (f" ({cause.splitlines()[-1].strip()[:300]})" if cause else "")
