"""Train an attention-augmented ResNet on pictures in folders."""

import json
import os
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import distributed, nn
from torch.utils.data import BatchSampler, DataLoader

from examples.images.data import Pictures, normalize, training_batches
from examples.images.model import SIZES, ResNet
from fairseq_diverse.checkpoints.loading import load_checkpoint
from fairseq_diverse.experiments.runs.provenance import collect
from fairseq_diverse.support.errors import UserError, exit_with
from fairseq_diverse.support.files import atomic_write

RANK, PROCESSES = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))  # of torchrun
WORKERS = min(8, os.cpu_count() or 1)
FREE = ("data", "out", "workers", "save_every", "stop_at")  # a training that resumes may change these


def arguments(words: Sequence[str] | None) -> Namespace:
    parser = ArgumentParser("examples.images.train", description=__doc__, formatter_class=ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder with train/CLASS/*.jpg and val/CLASS/*.jpg (or test/)")
    add("--out", type=Path, required=True, help="folder for checkpoint.pt and result.json; a training there resumes")
    add("--size", choices=SIZES, default="34", help="tiny is for 32x32 pixels, the others for 224x224")
    add("--attention", choices=("none", "augmented", "evolving"), default="evolving", help="none is a plain ResNet")
    add("--evolving-carry", type=float, default=0.5, help="alpha, share of the logits of the attention before")
    add("--evolving-conv", default="1.0", help="beta, share of the convolution")
    add("--evolving-kernel", type=int, default=3, help="width of the convolution, odd")
    add("--epochs", type=int, default=100, help="the rate falls after 30, 60, 80 and 90%% of them")
    add("--batch", type=int, default=32, help="pictures for each process")
    add("--lr", type=float, default=0.128, help="largest rate for 256 pictures an update, scaled with their number")
    add("--seed", type=int, default=1, help="of parameters, order and crops")
    add("--amp", action="store_true", help="mixed precision: float16 on a GPU, bfloat16 on a CPU")
    add("--workers", type=int, default=WORKERS, help="processes that read pictures")
    add("--save-every", type=int, default=1000, help="updates between checkpoints; there is one after each epoch, too")
    add("--stop-at", type=int, default=0, help="stop after this update, to resume later; 0 = at the end")
    args = parser.parse_args(words)
    for name, least in {"epochs": 1, "batch": 1, "lr": 1e-9, "save_every": 1, "workers": 0, "stop_at": 0}.items():
        if not getattr(args, name) >= least:
            raise UserError(f"--{name.replace('_', '-')} {getattr(args, name)}: must be {least} or above")
    if args.out.exists() and not args.out.is_dir():
        raise UserError(f"--out {args.out}: not a folder")
    return args


def rate(progress: float, largest: float) -> float:
    """Learning rate at a share of the training: linear to the largest in 5%, a tenth after 30, 60, 80 and 90% each.

    Source: Wang et al. (2021), section 4.1, whose training has 100 epochs.
    """
    return largest * min(1, progress / 0.05) * 0.1 ** sum(progress >= fall for fall in (0.3, 0.6, 0.8, 0.9))


@contextmanager
def opened(path: Path) -> Iterator[dict[str, Any]]:
    """A checkpoint; what is wrong with it, also as it is used, is a UserError."""
    problem = f"{path}: missing, damaged, or not a checkpoint of this program"
    try:
        saved = load_checkpoint(path)
    except UserError as error:
        raise UserError(f"{problem} ({str(error).removeprefix(f'{path}: ')})") from None
    try:
        yield saved
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{problem} ({type(error).__name__})") from error


def build(settings: dict[str, Any], classes: int) -> ResNet:
    """The network of a training's settings."""
    evolving = {field: settings[f"evolving_{field}"] for field in ("carry", "conv", "kernel")}
    return ResNet(settings["size"], classes, settings["attention"], **evolving).to(memory_format=torch.channels_last)


def scores_of(model: nn.Module, pictures: torch.Tensor, device: torch.device, amp: bool) -> torch.Tensor:
    """float32 (B, classes) of uint8 pictures."""
    with torch.autocast(device.type, torch.float16 if device.type == "cuda" else torch.bfloat16, amp):
        return model(normalize(pictures.to(device, memory_format=torch.channels_last))).float()


@torch.no_grad()
def evaluate(model: nn.Module, pictures: Pictures, args: Any, device: torch.device) -> dict[str, float]:
    """Accuracies in percent and the mean cross-entropy in nats."""
    model.eval()
    for buffer in model.buffers() if PROCESSES > 1 else ():  # of batch normalization, as in the checkpoint
        distributed.broadcast(buffer, 0)
    batches = BatchSampler([(0, n) for n in range(RANK, len(pictures), PROCESSES)], args.batch, drop_last=False)
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    for inputs, labels in DataLoader(pictures, batch_sampler=batches, num_workers=args.workers):
        scores, labels = scores_of(model, inputs, device, args.amp), labels.to(device)
        right = scores.topk(min(5, scores.size(1))).indices == labels[:, None]
        sums += torch.stack([right[:, 0].sum(), right.sum(), F.cross_entropy(scores, labels, reduction="sum")])
    if PROCESSES > 1:
        distributed.all_reduce(sums)
    first, five, loss = (sums / len(pictures)).tolist()
    return {"top1": 100 * first, "top5": 100 * five, "loss": loss}


def main(words: Sequence[str] | None = None) -> None:
    """One process, alone or of ``torchrun``; its seconds are those of the clock, on a CPU those of the processor."""
    args, device = arguments(words), torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    side, clock = SIZES[args.size].image, time.time if device.type == "cuda" else time.process_time
    pictures, others = Pictures(args.data, side, args.seed), Pictures(args.data, side)
    if pictures.classes != others.classes:
        raise UserError(f"--data: {args.data}: the classes of training differ from the others")
    if not (updates := len(pictures) // (args.batch * PROCESSES)):  # of an epoch
        raise UserError(f"--batch {args.batch}: {len(pictures)} pictures fill no batch of {PROCESSES} processes")
    if PROCESSES > 1:
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(args.seed)
    settings = {key: value for key, value in vars(args).items() if key not in FREE} | {"processes": PROCESSES}
    model = build(settings, len(pictures.classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(device.type, enabled=args.amp and device.type == "cuda")
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "scaler": scaler}
    state: dict[str, Any] = {"update": 0, "loss": 0.0, "epochs": [], "seconds": 0.0}
    read = [pictures.digest(), others.digest()]
    if (checkpoint := args.out / "checkpoint.pt").exists():
        with opened(checkpoint) as saved:
            for key, value in settings.items():
                if (before := saved["settings"][key]) != value:
                    raise UserError(f"{checkpoint} was made with {key} {before}, not {value}; give another --out")
            if saved.get("pictures", read) != read:
                others_of = f"other pictures than those of {args.data}"
                raise UserError(f"{checkpoint} was made with {others_of}; give another --out")
            for key, part in parts.items():
                part.load_state_dict(saved[key])
            state = {key: type(value)(saved[key]) for key, value in state.items()}
    parallel = nn.parallel.DistributedDataParallel(model) if PROCESSES > 1 else model
    total, largest = args.epochs * updates, args.lr * args.batch * PROCESSES / 256
    started = clock() - state["seconds"]

    def save() -> None:
        state["seconds"] = clock() - started
        if RANK == 0:
            kept = {key: part.state_dict() for key, part in parts.items()}
            with atomic_write(checkpoint, "wb") as file:
                torch.save(state | kept | {"settings": settings, "classes": pictures.classes, "pictures": read}, file)

    for epoch in range(len(state["epochs"]), args.epochs):
        parallel.train()
        began, first = clock(), state["update"] - epoch * updates
        batches = training_batches(len(pictures), epoch, args.seed, args.batch, RANK, PROCESSES, first)
        for inputs, labels in DataLoader(pictures, batch_sampler=batches, num_workers=args.workers):
            optimizer.param_groups[0]["lr"] = rate((state["update"] + 1) / total, largest)
            loss = F.cross_entropy(scores_of(parallel, inputs, device, args.amp), labels.to(device))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            state |= {"update": state["update"] + 1, "loss": state["loss"] + loss.item()}
            if state["loss"] != state["loss"]:
                raise UserError(f"the loss is not a number in update {state['update']}; give a lower --lr")
            if state["update"] % args.save_every == 0 or state["update"] == args.stop_at:
                save()
            if state["update"] == args.stop_at:
                return
        training = {"loss": state["loss"] / updates, "num_updates": state["update"], "train_wall": clock() - began}
        measured = evaluate(model, others, args, device)
        result = {"epoch": epoch + 1, "training_loss": training["loss"], **measured}
        state |= {"epochs": [*state["epochs"], result], "loss": 0.0}
        save()
        if RANK == 0:  # as fairseq logs its training and validation
            held_out = {f"valid_{key}": value for key, value in (measured | {"num_updates": state["update"]}).items()}
            for line in ({"epoch": epoch + 1, **training}, held_out):
                print(json.dumps({key: round(value, 4) for key, value in line.items()}), flush=True)
    if RANK == 0:
        data = {"pictures": [len(pictures), len(others)], "parameters": sum(p.numel() for p in model.parameters())}
        with atomic_write(args.out / "result.json") as file:
            json.dump({"settings": settings} | data | state | {"provenance": collect()}, file, indent=1)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        exit_with(str(error))
