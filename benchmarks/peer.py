"""One side of ``benchmarks.peers`` in a process of its own, of any Python, also one without this project.

``python -m benchmarks.peer`` reads a job (a line of JSON), builds its model and answers with the number of parameters
and the toolkit's version. For every further line it runs one training step or one beam search, and answers with the
CPU seconds and the result: the loss per token, or the number of decoder steps of every translation.

All models are fairseq's ``transformer``, as near as the toolkit comes to it (docs/speed.md says what differs):
post-norm, ReLU, one matrix of embeddings, dropout 0.1 on embeddings and on the output of every sublayer.
"""

import importlib.metadata
import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

TRAINING, DECODING = "training step", "beam search"
PAD, EOS = 1, 2  # as in fairseq, where </s> also starts a translation
BEAM = 5
Built = tuple[Any, Callable[[], Any]]  # the model; its loss per token, or the lengths of its translations


def of_project(job: Namespace) -> Built:
    """fairseq's ``transformer`` or ours."""
    from benchmarks import sides

    side, size = sides.SIDES[job.side], sides.Size(**vars(job.size))
    model = sides.build_model(side, size)
    if job.measure == TRAINING:
        return model, sides.likelihood(side, size, model, "cpu")
    search = sides.search(model, size, "cpu")
    return model, lambda: [len(hypotheses[0]["tokens"]) for hypotheses in search()]


def marian(job: Namespace) -> Built:
    """Marian of transformers, with the label smoothing of its trainer."""
    from transformers import MarianConfig, MarianMTModel
    from transformers.trainer_pt_utils import LabelSmoother

    size = job.size
    side = {"layers": size.layers, "ffn_dim": size.ffn, "attention_heads": size.heads}
    special = {"pad_token_id": PAD, "eos_token_id": EOS, "forced_eos_token_id": EOS, "decoder_start_token_id": EOS}
    both = {f"{coder}_{name}": value for coder in ("encoder", "decoder") for name, value in side.items()}
    config = MarianConfig(
        vocab_size=size.words + 4,
        d_model=size.width,
        activation_function="relu",
        scale_embedding=True,
        **both,
        **special,
    )
    model: Any = MarianMTModel(config)
    inputs = {"input_ids": job.source, "attention_mask": job.source.ne(PAD).long()}
    if job.measure == TRAINING:
        smoother, labels = LabelSmoother(epsilon=0.1), job.target.masked_fill(job.target.eq(PAD), -100)
        return model, lambda: smoother(model(**inputs, decoder_input_ids=job.previous), labels)
    options = {"min_new_tokens": job.steps - 1, "max_new_tokens": job.steps, "bad_words_ids": [[PAD]]}
    return model, lambda: model.generate(**inputs, num_beams=BEAM, **options)[:, 1:].ne(PAD).sum(1).tolist()


def x_transformers(job: Namespace) -> Built:
    """XTransformer, with its own loss (no label smoothing); its beam search is for language models only."""
    from x_transformers import XTransformer

    size = job.size
    attention = {"heads": size.heads, "attn_dim_head": size.width // size.heads, "attn_flash": True}
    feed_forward = {"ff_mult": size.ffn / size.width, "ff_custom_activation": torch.nn.ReLU()}
    dropout = {"emb_dropout": 0.1, "attn_sublayer_dropout": 0.1, "ff_sublayer_dropout": 0.1}
    words = {"num_tokens": size.words + 4, "max_seq_len": 1024, "scaled_sinu_pos_emb": True}
    side = {"depth": size.layers, "pre_norm": False, **attention, **feed_forward, **dropout, **words}
    both = {f"{coder}_{name}": value for coder in ("enc", "dec") for name, value in side.items()}
    model: Any = XTransformer(dim=size.width, tie_token_emb=True, pad_value=PAD, **both)
    model.decoder.net.to_logits.weight = model.encoder.token_emb.emb.weight
    target = job.started.masked_fill(job.started.eq(PAD), -100)
    return model, lambda: model(job.source, target, mask=job.source.ne(PAD))


def ctranslate2(job: Namespace) -> Built:
    """fairseq's model, converted by CTranslate2's own converter; float32 or int8."""
    import ctranslate2
    from ctranslate2.converters import FairseqConverter

    from benchmarks import sides

    side, size = sides.SIDES["fairseq"], sides.Size(**vars(job.size))
    args, model = sides.arguments(side, size), sides.build_model(side, size)
    words = model.encoder.dictionary
    sources = [[words[index] for index in ids if index not in (PAD, EOS)] for ids in job.source]  # it adds </s>
    with TemporaryDirectory() as folder:
        for language in ("source", "target"):
            words.save(f"{folder}/dict.{language}.txt")
        args.task, args.source_lang, args.target_lang = "translation", "source", "target"
        torch.save({"args": args, "model": model.state_dict()}, f"{folder}/model.pt")
        FairseqConverter(f"{folder}/model.pt", folder, unsafe_deserialization=True).convert(f"{folder}/converted")
        kind = job.side.split()[-1]
        translator = ctranslate2.Translator(f"{folder}/converted", compute_type=kind, inter_threads=1, intra_threads=1)
    options = {"beam_size": BEAM, "min_decoding_length": job.steps, "max_decoding_length": job.steps}
    return model, lambda: [len(one.hypotheses[0]) for one in translator.translate_batch(sources, **options)]


def joeynmt(job: Namespace) -> Built:
    """JoeyNMT: its Transformer, loss and beam search."""
    from joeynmt.model import build_model
    from joeynmt.search import beam_search
    from joeynmt.transformer_layers import MultiHeadedAttention, PositionwiseFeedForward
    from joeynmt.vocabulary import Vocabulary

    size, end = job.size, 3
    numbers = {"unk": 0, "pad": PAD, "bos": EOS, "eos": end}  # its order
    names = {f"{name}_token": name for name in numbers} | {f"{name}_id": number for name, number in numbers.items()}
    words = Vocabulary([], Namespace(lang_tags=[], sep_token=None, **names))
    words._itos += [f"w{number}" for number in range(size.words)]  # its constructor searches the list for every word
    shape = {"hidden_size": size.width, "ff_size": size.ffn, "num_layers": size.layers, "num_heads": size.heads}
    embeddings = {"embedding_dim": size.width, "scale": True}
    side = {"type": "transformer", "embeddings": embeddings, "dropout": 0.1, "layer_norm": "post", **shape}
    model = build_model({"encoder": side, "decoder": side, "tied_embeddings": True, "tied_softmax": True}, words, words)
    for module in model.modules():  # no dropout inside of a sublayer
        if isinstance(module, MultiHeadedAttention):
            module.dropout.p = 0.0
        if isinstance(module, PositionwiseFeedForward):
            module.pwff_layer[2].p = 0.0
    source, target = (ids.masked_fill(ids.eq(EOS), end) for ids in (job.source, job.target))
    real, mask = target.ne(PAD), source.ne(PAD).unsqueeze(1)
    inputs = {"src": source, "src_length": source.ne(PAD).sum(1), "src_mask": mask}
    if job.measure == TRAINING:
        model.loss_function = ("crossentropy", 0.1)
        previous = torch.cat([job.previous[:, :1], target[:, :-1]], 1)
        inputs |= {"trg_input": previous, "trg": target, "trg_mask": real.unsqueeze(1)}
        return model, lambda: model(return_type="loss", **inputs)[0] / real.sum()

    def translate() -> list[int]:
        states, final, _, _ = model(return_type="encode", **inputs)
        length = {"max_output_length": job.steps, "min_output_length": job.steps}
        return [len(ids) for ids in beam_search(model, BEAM, states, final, mask, alpha=1.0, **length)[0]]

    return model, translate


def eole(job: Namespace) -> Built:
    """eole: its Transformer (the decoder is pre-norm), loss and beam search."""
    from eole.config.models import TransformerModelConfig
    from eole.config.run import PredictConfig
    from eole.config.training import TrainingConfig
    from eole.inputters.inputter import dict_to_vocabs
    from eole.models.model import EncoderDecoderModel
    from eole.predict import GNMTGlobalScorer, Translator
    from eole.utils.loss import LossCompute

    size = job.size
    special = {"bos_token": "<s>", "pad_token": "<blank>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokens = [*special.values(), *(f"w{number}" for number in range(size.words))]
    words = dict_to_vocabs({"src": tokens, "tgt": tokens, "specials": special, "decoder_start_token": "</s>"})
    shape = {"layers": size.layers, "hidden_size": size.width, "heads": size.heads, "transformer_ff": size.ffn}
    biases = {"add_qkvbias": True, "add_final_linear_bias": True, "add_ffnbias": True, "generator_bias": False}
    config = TransformerModelConfig(
        embeddings={"word_vec_size": size.width},
        encoder={"encoder_layer_style": "postnorm", "final_encoder_layer_norm": False},
        share_embeddings=True,
        share_decoder_embeddings=True,
        **shape,
        **biases,
    )
    training = TrainingConfig(dropout=[0.1], attention_dropout=[0.0], label_smoothing=0.1, self_attn_backend="pytorch")
    model = EncoderDecoderModel.for_training(config, words, training, device_id=-1)
    batch = {"src": job.source, "srclen": job.source.ne(PAD).sum(1)}
    if job.measure == TRAINING:
        for layer in (*model.encoder.transformer_layers, *model.decoder.transformer_layers):
            layer.mlp.dropout_1.p = 0.0  # no dropout inside of a sublayer
        lines = len(job.source)
        batch |= {"tgt": job.started, "cid": [""] * lines, "cid_line_number": range(lines)}
        criterion = LossCompute.from_config(Namespace(model=config, training=training), model, words)

        def loss() -> Any:
            found = model(job.source, job.started, batch["srclen"])
            return criterion(batch, found.dec_out, found.attns)[0] / job.target.ne(PAD).sum()

        return model, loss
    options = {"beam_size": BEAM, "min_length": job.steps, "max_length": job.steps, "max_length_ratio": 0}
    settings = PredictConfig(model_path="none", src="none", **options)  # it reads neither
    model._prepare_for_inference(settings)
    translator = Translator(model, words, settings, config, -1, GNMTGlobalScorer.from_config(settings))
    return model, lambda: [len(found[0]) for found in translator.predict_batch(batch, False)["predictions"]]


class Peer(NamedTuple):
    """A side: its builder, the module it needs, its distribution's name, and what it can do."""

    build: Callable[[Namespace], Built]
    module: str
    distribution: str
    measures: tuple[str, ...] = (TRAINING, DECODING)


PEERS = {
    "fairseq": Peer(of_project, "fairseq", "fairseq-fixed"),
    "off": Peer(of_project, "fairseq", "fairseq-diverse"),
    "marian": Peer(marian, "transformers", "transformers"),
    "x-transformers": Peer(x_transformers, "x_transformers", "x-transformers", (TRAINING,)),
    "ctranslate2 float32": Peer(ctranslate2, "ctranslate2", "ctranslate2", (DECODING,)),
    "ctranslate2 int8": Peer(ctranslate2, "ctranslate2", "ctranslate2", (DECODING,)),
    "joeynmt": Peer(joeynmt, "joeynmt", "joeynmt"),
    "eole": Peer(eole, "eole", "eole"),
}


def prepare(job: Namespace) -> tuple[int, Callable[[], Any]]:
    """The number of trained parameters, and a training step (forward, backward, Adam) or a beam search."""
    torch.manual_seed(1)
    job.size, job.source, job.target = Namespace(**job.size), torch.tensor(job.source), torch.tensor(job.target)
    job.started = torch.cat([torch.full_like(job.target[:, :1], EOS), job.target], 1)
    job.previous = job.started[:, :-1]
    model, run = PEERS[job.side].build(job)
    model.train(job.measure == TRAINING)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    count = sum(parameter.numel() for parameter in parameters)
    if job.measure == DECODING:
        return count, torch.no_grad()(run)
    Adam = torch.optim.Adam
    if PEERS[job.side].build is of_project:
        from fairseq.optim.adam import Adam
    optimizer = Adam(parameters, lr=1e-4, betas=(0.9, 0.98))

    def step() -> float:
        optimizer.zero_grad()
        loss = run()
        loss.backward()
        optimizer.step()
        return loss.item()

    return count, step


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", 1)
    os.dup2(2, 1)  # what toolkits print goes to stderr
    torch.set_num_threads(1)
    job = Namespace(**json.loads(sys.stdin.readline()))
    parameters, action = prepare(job)
    print(json.dumps([parameters, importlib.metadata.version(PEERS[job.side].distribution)]), file=answers)
    for _ in sys.stdin:
        start = time.process_time()
        result = action()
        print(json.dumps([time.process_time() - start, result]), file=answers)


if __name__ == "__main__":
    main()
