"""The settings that fairseq passes to ``eval``: from a file, only literals are accepted."""

import ast

# Names in calls of ``eval``, ``eval_str_list``, ``eval_str_dict`` and ``eval_bool`` in fairseq and its examples.
EVALUATED = frozenset(
    {
        *("adam_betas", "adamax_betas", "lamb_betas", "adafactor_eps"),  # optimizers
        *("wer_args", "model_overrides", "left_pad_source", "left_pad_target"),  # criterions, programs, tasks
        *("extra_data", "extra_lang_pairs", "langtoks", "sampling_weights"),  # of several language pairs
        *("adaptive_input_cutoff", "adaptive_softmax_cutoff", "character_filters", "xformers_att_config"),
        *("encoder_xformers_att_config", "decoder_xformers_att_config"),
        *("encoder_kernel_size_list", "decoder_kernel_size_list", "decoder_zero_init"),
        *("encoder_layers", "encoder_attention", "decoder_layers", "decoder_attention", "pretrained"),  # fconv, lstm
        *("self_attention", "project_input", "gated_attention", "downsample"),
        *("pipeline_balance", "pipeline_encoder_balance", "pipeline_decoder_balance"),
        *("pipeline_devices", "pipeline_encoder_devices", "pipeline_decoder_devices"),
        *("conv_feature_layers", "conv_aggregator_layers", "feature_encoder_spec"),  # speech
        *("vggblock_enc_config", "transformer_enc_config", "transformer_dec_config", "conv_enc_config"),
        *("conv_dec_config", "transformer_context", "transformer_sampling"),
    }
)
PLAIN = (type(None), bool, int, float)  # eval takes every object with bytes for source code, such as numpy.float64
LONGEST = 10_000  # elements of a repeated list


def unsafe_setting(name: str, value: object) -> str:
    """Why a setting of a file (an attribute's name and value) is not safe for fairseq; empty if it is."""
    if name in EVALUATED and not (isinstance(value, str) and is_literal(value)) and type(value) not in PLAIN:
        return "is not a literal, and fairseq evaluates it"
    if not isinstance(value, str):
        return ""
    if name == "dataset_impl" and value == "fasta":
        return "makes fairseq read files through a shell"
    return "would be replaced by OmegaConf" if "${" in value else ""


def is_literal(text: str) -> bool:
    """Whether ``eval`` would only build a value: a literal, a sum of them, or a repeated list (``[(512, 3)] * 20``)."""
    try:
        return _is_value(ast.parse(text.strip(), mode="eval").body)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False


def _is_value(node: ast.expr) -> bool:
    match node:
        case ast.BinOp(left, ast.Add(), right):
            return _is_value(left) and _is_value(right)
        case ast.BinOp(ast.List(elements) as repeated, ast.Mult(), ast.Constant(int(times))):
            return len(elements) * times <= LONGEST and _is_value(repeated)
    ast.literal_eval(node)
    return True


def printable(text: str, longest: int = 100) -> str:
    """Text from an untrusted file, shortened and without control characters."""
    text = text.encode("unicode_escape").decode()
    return text if len(text) <= longest else f"{text[:longest]}..."
