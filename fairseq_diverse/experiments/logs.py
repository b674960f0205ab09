"""What fairseq's programs print: progress while they work, measurements afterwards."""

import json
import math
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

PARAMETERS = re.compile(r"num\. shared model params: ([\d,]+)")
TRANSLATED = re.compile(r"Translated ([\d,]+) sentences \(([\d,]+) tokens\) in ([\d.]+)s .* ([\d.]+) tokens/s\)")
JSON_LINE = re.compile(r"(?:\| (\S+) \| |^)(\{.*\})$")


class Follower:
    """Reads what is added to a log and keeps the last training statistics."""

    def __init__(self, path: Path):
        self.path = path
        self.position = path.stat().st_size
        self.rest = b""
        self.last = (0, "", "")

    def latest(self) -> tuple[int, str, str]:
        """Updates done, loss and words per second of the last line of statistics."""
        with open(self.path, "rb") as f:
            f.seek(self.position)
            added = f.read()
        self.position += len(added)
        *lines, self.rest = (self.rest + added).split(b"\n")
        for _, stats in statistics(line.decode("utf-8", "replace") for line in lines):
            if "num_updates" in stats:
                self.last = (int(stats["num_updates"]), stats.get("loss", ""), stats.get("wps", ""))
        return self.last


def measure(step: str, path: Path) -> dict[str, Any]:
    """The measurements that a finished step left in its log.

    Training: ``parameters``, ``words_per_second`` (target tokens) and ``updates_per_second``, medians over the logged
    intervals, ``epoch_minutes`` (all updates of an epoch at that speed, without validation and saving), ``valid_nll``
    (last and best, nats per token; of a masked language model per masked token) and ``gb_free`` (the least, where a GPU
    was used). Translation and scoring of the reference: ``sentences``, ``tokens``, ``seconds``, ``words_per_second``.
    """
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    if step == "train":
        parameters, speeds, updates, valid, free = PARAMETERS.findall(text), [], [], [], []
        epoch = 0.0  # its updates: those done by the epochs done, "update" in the log
        for kind, stats in statistics(text.splitlines()):
            if kind == "valid" and (loss := stats.get("valid_nll_loss", "valid_ppl" in stats and stats["valid_loss"])):
                valid.append(float(loss) * math.log(2))
            elif kind == "train_inner":
                words, update_words = (float(stats.get(key, 0)) for key in ("wps", "wpb"))
                speeds += [words] if words > 0 else []
                # "ups" has two digits after the point, too few where an update takes seconds
                updates += [words / update_words] if words > 0 and update_words > 0 else []
                epoch = float(stats["num_updates"]) / stats["update"] if stats.get("update") else epoch
                free += [float(stats["gb_free"])] if "gb_free" in stats else []
        return {
            "parameters": int(parameters[-1].replace(",", "")) if parameters else None,
            "words_per_second": round(median(speeds), 1) if speeds else None,
            "updates_per_second": round(median(updates), 4) if updates else None,
            "epoch_minutes": round(epoch / median(updates) / 60, 4) if updates and epoch else None,
            "valid_nll": {"last": round(valid[-1], 4), "best": round(min(valid), 4)} if valid else None,
            "gb_free": min(free, default=None),
        }
    if not (match := TRANSLATED.search(text)):
        return {}
    sentences, tokens, seconds, speed = (match[i].replace(",", "") for i in range(1, 5))
    counts = {"sentences": int(sentences), "tokens": int(tokens)}
    return counts | {"seconds": float(seconds), "words_per_second": float(speed)}


def reference_nll(path: Path) -> list[float]:
    """Negative log-likelihood in nats of every test sentence, in the order of the test set.

    Read from the output of ``fairseq-generate --score-reference``: its P lines hold one base-2 log-probability for each
    token of the reference, the end-of-sentence mark included. Raises ValueError: a sentence is missing."""
    scores: dict[int, float] = {}
    with open(path, encoding="utf-8", errors="replace", newline="\n") as f:
        for line in f:
            if line.startswith("P-"):
                number, values = line[2:].split("\t")
                scores[int(number)] = -sum(map(float, values.split())) * math.log(2)
    if not scores or set(scores) != set(range(len(scores))):
        raise ValueError(f"{path}: holds {len(scores)} scored sentences, not numbered 0 to {len(scores) - 1}")
    return [scores[number] for number in range(len(scores))]


def tail(path: Path, start: int = 0, own: str = "") -> str:
    """The last four lines of a log from byte ``start`` on, indented and cut to 300 characters; of a stack trace through
    code in the folder ``own`` the last place there, the first line of the error and the last line."""
    lines = [line for line in path.read_bytes()[start:].decode(errors="replace").splitlines() if line.strip(" ^~")]
    shown, begin = lines[-4:], max((n for n, line in enumerate(lines) if line.startswith("Traceback")), default=0)
    places = [n for n in range(begin, len(lines)) if lines[n].startswith(f'  File "{os.path.abspath(own)}{os.sep}')]
    if own and places:
        error = next((n for n in range(places[-1], len(lines)) if not lines[n].startswith("  ")), len(lines) - 1)
        shown = [*lines[places[-1] : places[-1] + 2], lines[error], *lines[error + 1 :][-1:]]
    return "\n".join(f"    {line[:300]}" + " ..." * (len(line) > 300) for line in shown)


def disk_is_full(path: Path) -> bool:
    """Whether a program whose log this is lacked space, which it may not have had for saying so either."""
    is_logged = False
    with suppress(OSError), open(path, "rb") as f:
        f.seek(max(0, path.stat().st_size - 20_000))
        is_logged = b"No space left on device" in f.read()
    return is_logged or shutil.disk_usage(path.parent).free < 1 << 16


def statistics(lines: Any) -> Any:
    """("train_inner" or "valid", statistics) of fairseq's json lines; lines cut off by a kill are left out.

    fairseq tags the line of a validation and its keys by the subset (``dev_loss``). Those of the first subset, by which
    it selects the best checkpoint, are renamed to ``valid``; those of other subsets are left out. The lines of
    ``--log-file`` have no tag; their keys have it (``dev_num_updates``).
    """
    first = None
    for match in filter(None, map(JSON_LINE.search, lines)):
        try:
            tag, stats = match[1], json.loads(match[2])
        except (ValueError, RecursionError):
            continue
        if tag is None:
            counted = next((key for key in stats if key.endswith("num_updates")), "")
            tag = "train_inner" if counted == "num_updates" else counted.removesuffix("_num_updates")
        if tag == "train_inner":
            yield tag, stats
        elif tag != "train" and f"{tag}_num_updates" in stats and tag == (first := first or tag):
            yield "valid", {key.replace(f"{tag}_", "valid_", 1): value for key, value in stats.items()}
