"""Roles: what a tensor is for, spelled once.

A role fixes three facts of a tensor kind: the stem of its name in the file, the class of layer it belongs to (which
decides the device in layer mode) and the operation that consumes it. Names, classes and operations are the
reference's (`LLM_TENSOR_NAMES`, `LLM_TENSOR_INFOS`). The planner asks by role; nothing asks by tensor name.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class LayerClass(StrEnum):
    """Where in the model a tensor is used: `INPUT` stays on the host, `OUTPUT` follows the last unit."""

    INPUT = "input"
    REPEATING = "repeating"
    OUTPUT = "output"


class Op(StrEnum):
    """The operation that consumes a tensor, in ggml's spelling; `NONE`: in the file, never used."""

    NONE = "NONE"
    ADD = "ADD"
    ADD_ID = "ADD_ID"
    DIV = "DIV"
    GET_ROWS = "GET_ROWS"
    IM2COL = "IM2COL"
    MUL = "MUL"
    MUL_MAT = "MUL_MAT"
    MUL_MAT_ID = "MUL_MAT_ID"
    ROPE = "ROPE"
    RWKV_WKV6 = "RWKV_WKV6"
    SCALE = "SCALE"
    SSM_CONV = "SSM_CONV"
    SSM_SCAN = "SSM_SCAN"


class Role:
    """One kind of tensor. Compared by identity: every role exists once, made at import or by `part`.

    `stem` is the name without its suffix, with `{}` where the layer number goes; `suffix` is `weight`, `bias`,
    `scale`, `input_scale`, … or empty. `str(role)` is what a plan shows: `attn_q`, `attn_q.bias`.
    """

    __slots__ = ("_after", "_before", "_parts", "label", "layer_class", "op", "stem", "suffix")

    def __init__(self, label: str, stem: str, layer_class: LayerClass, op: Op, suffix: str = "weight") -> None:
        self.label: Final = label
        self.stem: Final = stem
        self.layer_class: Final = layer_class
        self.op: Final = op
        self.suffix: Final = suffix
        self._parts: dict[str, Role] = {}
        # a plan names thousands of tensors: the name is two halves around the layer, joined without formatting
        self._before, numbered, after = stem.partition("{}")
        end = after + (f".{suffix}" if suffix else "")
        self._after: str | None = end if numbered else None
        if not numbered:
            self._before += end

    def part(self, suffix: str, label: str | None = None) -> Role:
        """The companion of this role under another suffix; the same object each time.

        A bias is added, whatever its weight does; a per-tensor scale is multiplied (`llama-model-loader.cpp`).
        """
        if suffix == self.suffix:
            return self
        if suffix not in self._parts:
            op = Op.MUL_MAT_ID if suffix in ("lora_a", "lora_b") else self.op
            if suffix == "bias":
                op = Op.ADD_ID if self.op is Op.MUL_MAT_ID else Op.ADD
            name = label or (f"{self.label}.{suffix}" if suffix else self.label)
            self._parts[suffix] = Role(name, self.stem, self.layer_class, op, suffix)
        return self._parts[suffix]

    @property
    def bias(self) -> Role:
        """The bias that goes with this weight."""
        return self.part("bias")

    @property
    def scale(self) -> Role:
        """The dequantisation scale beside a weight (NVFP4 files)."""
        return self.part("scale")

    @property
    def input_scale(self) -> Role:
        """The activation scale beside a weight (NVFP4 files)."""
        return self.part("input_scale")

    def tensor_name(self, layer: int | None = None) -> str:
        """The tensor's name in the file, for `layer` where the stem has a place for it."""
        return self._before if self._after is None else f"{self._before}{layer}{self._after}"

    def __str__(self) -> str:
        return self.label

    def __repr__(self) -> str:
        return f"Role({self.label})"


def _input(label: str, stem: str, op: Op) -> Role:
    return Role(label, stem, LayerClass.INPUT, op)


def _output(label: str, stem: str, op: Op) -> Role:
    return Role(label, stem, LayerClass.OUTPUT, op)


def _block(name: str, op: Op) -> Role:
    return Role(name.replace(".", "_"), f"blk.{{}}.{name}", LayerClass.REPEATING, op)


def _once(label: str, stem: str, op: Op) -> Role:
    """Belongs to repeating layers (the first, or each), under a name without a layer number, or with another prefix."""
    return Role(label, stem, LayerClass.REPEATING, op)


# input and output
TOKEN_EMBD = _input("token_embd", "token_embd", Op.GET_ROWS)
OUTPUT_NORM = _output("output_norm", "output_norm", Op.MUL)
OUTPUT_NORM_LFM2 = _output("output_norm_lfm2", "token_embd_norm", Op.MUL)
OUTPUT = _output("output", "output", Op.MUL_MAT)
POS_EMBD = _input("pos_embd", "position_embd", Op.GET_ROWS)
TOKEN_TYPES = _input("token_types", "token_types", Op.GET_ROWS)
CLS = _output("cls", "cls", Op.MUL_MAT)
CLS_OUT = _output("cls_out", "cls.output", Op.MUL_MAT)
CLS_NORM = _output("cls_norm", "cls.norm", Op.MUL)
ENC_OUTPUT_NORM = _output("enc_output_norm", "enc.output_norm", Op.MUL)
OUTPUT_RES_SCORE = _output("output_res_score", "output_res_score", Op.MUL)
HC_HEAD_FN = _output("hc_head_fn", "output_hc_fn", Op.MUL_MAT)
HC_HEAD_BASE = _output("hc_head_base", "output_hc_base", Op.ADD)
HC_HEAD_SCALE = _output("hc_head_scale", "output_hc_scale", Op.MUL)
HC_HEAD_NORM = _output("hc_head_norm", "output_hc_norm", Op.MUL)
HC_HEAD_DOWN = _output("hc_head_down", "output_hc_down", Op.MUL_MAT)
HC_HEAD_UP = _output("hc_head_up", "output_hc_up", Op.MUL_MAT)
PER_LAYER_TOKEN_EMBD = _input("per_layer_token_embd", "per_layer_token_embd", Op.GET_ROWS)
ALTUP_UNEMBD_PROJ = _output("altup_unembd_proj", "altup_unembd_proj", Op.MUL_MAT)
ALTUP_PROJ = _output("altup_proj", "altup_proj", Op.MUL_MAT)
DENSE_2_OUT = _output("dense_2_out", "dense_2", Op.MUL_MAT)
DENSE_3_OUT = _output("dense_3_out", "dense_3", Op.MUL_MAT)
NEXTN_PROJ_POST = _output("nextn_proj_post", "nextn.post_projection", Op.MUL_MAT)
DEC_OUTPUT_NORM = _output("dec_output_norm", "dec.output_norm", Op.MUL)
MASKED_EMBD_CENTROIDS = _input("masked_embd_centroids", "masked_embd_centroids", Op.NONE)
MASKED_EMBD_ORDERING = _input("masked_embd_ordering", "masked_embd_ordering", Op.NONE)
FC = _output("fc", "fc", Op.MUL_MAT)
D2T = _output("d2t", "d2t", Op.GET_ROWS)
DSPARK_MARKOV_W1 = _output("dspark_markov_w1", "markov_w1", Op.GET_ROWS)
DSPARK_MARKOV_W2 = _output("dspark_markov_w2", "markov_w2", Op.MUL_MAT)
DSPARK_CONF_PROJ = _output("dspark_conf_proj", "conf_proj", Op.MUL_MAT)
DFLASH_SELECTOR_PREV = _output("dflash_selector_prev", "selector_predecessor", Op.GET_ROWS)
DFLASH_SELECTOR_NEXT = _output("dflash_selector_next", "selector_successor", Op.GET_ROWS)
DFLASH_SELECTOR_HIDDEN = _output("dflash_selector_hidden", "selector_hidden", Op.MUL_MAT)

# repeating layers under other names
ROPE_FREQS = _once("rope_freqs", "rope_freqs", Op.ROPE)
HRM_Z_L_INIT = _once("hrm_z_l_init", "hrm.z_l_init", Op.ADD)
TOKEN_EMBD_NORM = _once("token_embd_norm", "token_embd_norm", Op.MUL)
ROPE_FACTORS_LONG = _once("rope_factors_long", "rope_factors_long", Op.ROPE)
ROPE_FACTORS_SHORT = _once("rope_factors_short", "rope_factors_short", Op.ROPE)
PER_LAYER_MODEL_PROJ = _once("per_layer_model_proj", "per_layer_model_proj", Op.MUL_MAT)
PER_LAYER_PROJ_NORM = _once("per_layer_proj_norm", "per_layer_proj_norm", Op.MUL)
NEXTN_PROJ_PRE = _once("nextn_proj_pre", "nextn.pre_projection", Op.MUL_MAT)
DEC_ATTN_NORM = _once("dec_attn_norm", "dec.blk.{}.attn_norm", Op.MUL)
DEC_ATTN_Q = _once("dec_attn_q", "dec.blk.{}.attn_q", Op.MUL_MAT)
DEC_ATTN_K = _once("dec_attn_k", "dec.blk.{}.attn_k", Op.MUL_MAT)
DEC_ATTN_V = _once("dec_attn_v", "dec.blk.{}.attn_v", Op.MUL_MAT)
DEC_ATTN_OUT = _once("dec_attn_out", "dec.blk.{}.attn_o", Op.MUL_MAT)
DEC_ATTN_REL_B = _once("dec_attn_rel_b", "dec.blk.{}.attn_rel_b", Op.GET_ROWS)
DEC_CROSS_ATTN_NORM = _once("dec_cross_attn_norm", "dec.blk.{}.cross_attn_norm", Op.MUL)
DEC_CROSS_ATTN_Q = _once("dec_cross_attn_q", "dec.blk.{}.cross_attn_q", Op.MUL_MAT)
DEC_CROSS_ATTN_K = _once("dec_cross_attn_k", "dec.blk.{}.cross_attn_k", Op.MUL_MAT)
DEC_CROSS_ATTN_V = _once("dec_cross_attn_v", "dec.blk.{}.cross_attn_v", Op.MUL_MAT)
DEC_CROSS_ATTN_OUT = _once("dec_cross_attn_out", "dec.blk.{}.cross_attn_o", Op.MUL_MAT)
DEC_CROSS_ATTN_REL_B = _once("dec_cross_attn_rel_b", "dec.blk.{}.cross_attn_rel_b", Op.NONE)
DEC_FFN_NORM = _once("dec_ffn_norm", "dec.blk.{}.ffn_norm", Op.MUL)
DEC_FFN_GATE = _once("dec_ffn_gate", "dec.blk.{}.ffn_gate", Op.MUL_MAT)
DEC_FFN_DOWN = _once("dec_ffn_down", "dec.blk.{}.ffn_down", Op.MUL_MAT)
DEC_FFN_UP = _once("dec_ffn_up", "dec.blk.{}.ffn_up", Op.MUL_MAT)
ENC_ATTN_NORM = _once("enc_attn_norm", "enc.blk.{}.attn_norm", Op.MUL)
ENC_ATTN_Q = _once("enc_attn_q", "enc.blk.{}.attn_q", Op.MUL_MAT)
ENC_ATTN_K = _once("enc_attn_k", "enc.blk.{}.attn_k", Op.MUL_MAT)
ENC_ATTN_V = _once("enc_attn_v", "enc.blk.{}.attn_v", Op.MUL_MAT)
ENC_ATTN_OUT = _once("enc_attn_out", "enc.blk.{}.attn_o", Op.MUL_MAT)
ENC_ATTN_REL_B = _once("enc_attn_rel_b", "enc.blk.{}.attn_rel_b", Op.GET_ROWS)
ENC_FFN_NORM = _once("enc_ffn_norm", "enc.blk.{}.ffn_norm", Op.MUL)
ENC_FFN_GATE = _once("enc_ffn_gate", "enc.blk.{}.ffn_gate", Op.MUL_MAT)
ENC_FFN_DOWN = _once("enc_ffn_down", "enc.blk.{}.ffn_down", Op.MUL_MAT)
ENC_FFN_UP = _once("enc_ffn_up", "enc.blk.{}.ffn_up", Op.MUL_MAT)
CONV1D = _once("conv1d", "conv1d", Op.IM2COL)
CONVNEXT_DW = _once("convnext_dw", "convnext.{}.dw", Op.IM2COL)
CONVNEXT_NORM = _once("convnext_norm", "convnext.{}.norm", Op.MUL)
CONVNEXT_PW1 = _once("convnext_pw1", "convnext.{}.pw1", Op.MUL_MAT)
CONVNEXT_PW2 = _once("convnext_pw2", "convnext.{}.pw2", Op.MUL_MAT)
CONVNEXT_GAMMA = _once("convnext_gamma", "convnext.{}.gamma", Op.MUL)
POS_NET_CONV1 = _once("pos_net_conv1", "posnet.{}.conv1", Op.IM2COL)
POS_NET_CONV2 = _once("pos_net_conv2", "posnet.{}.conv2", Op.IM2COL)
POS_NET_NORM1 = _once("pos_net_norm1", "posnet.{}.norm1", Op.MUL)
POS_NET_NORM2 = _once("pos_net_norm2", "posnet.{}.norm2", Op.MUL)
POS_NET_ATTN_NORM = _once("pos_net_attn_norm", "posnet.{}.attn_norm", Op.MUL)
POS_NET_ATTN_Q = _once("pos_net_attn_q", "posnet.{}.attn_q", Op.MUL_MAT)
POS_NET_ATTN_K = _once("pos_net_attn_k", "posnet.{}.attn_k", Op.MUL_MAT)
POS_NET_ATTN_V = _once("pos_net_attn_v", "posnet.{}.attn_v", Op.MUL_MAT)
POS_NET_ATTN_OUT = _once("pos_net_attn_out", "posnet.{}.attn_output", Op.MUL_MAT)

# the token embedding used a second time, as the output projection (tied embeddings): it keeps the embedding's name
OUTPUT_TIED = _output("output_tied", "token_embd", Op.MUL_MAT)

# repeating layers
ATTN_NORM = _block("attn_norm", Op.MUL)
ATTN_Q = _block("attn_q", Op.MUL_MAT)
ATTN_K = _block("attn_k", Op.MUL_MAT)
ATTN_V = _block("attn_v", Op.MUL_MAT)
ATTN_OUT = _block("attn_output", Op.MUL_MAT)
FFN_GATE_INP = _block("ffn_gate_inp", Op.MUL_MAT)
FFN_NORM = _block("ffn_norm", Op.MUL)
FFN_GATE = _block("ffn_gate", Op.MUL_MAT)
FFN_DOWN = _block("ffn_down", Op.MUL_MAT)
FFN_UP = _block("ffn_up", Op.MUL_MAT)
FFN_GATE_EXPS = _block("ffn_gate_exps", Op.MUL_MAT_ID)
FFN_GATE_UP_EXPS = _block("ffn_gate_up_exps", Op.MUL_MAT_ID)
FFN_DOWN_EXPS = _block("ffn_down_exps", Op.MUL_MAT_ID)
FFN_UP_EXPS = _block("ffn_up_exps", Op.MUL_MAT_ID)
ATTN_POST_NORM = _block("post_attention_norm", Op.MUL)
ATTN_Q_NORM = _block("attn_q_norm", Op.MUL)
ATTN_K_NORM = _block("attn_k_norm", Op.MUL)
ATTN_GATE = _block("attn_gate", Op.MUL_MAT)
FFN_POST_NORM = _block("post_ffw_norm", Op.MUL)
FFN_POST_NORM_1 = _block("post_ffw_norm_1", Op.MUL)
FFN_POST_NORM_2 = _block("post_ffw_norm_2", Op.MUL)
FFN_PRE_NORM_2 = _block("pre_ffw_norm_2", Op.MUL)
FFN_GATE_SHEXP = _block("ffn_gate_shexp", Op.MUL_MAT)
FFN_UP_SHEXP = _block("ffn_up_shexp", Op.MUL_MAT)
FFN_DOWN_SHEXP = _block("ffn_down_shexp", Op.MUL_MAT)
FFN_EXP_PROBS_B = _block("exp_probs_b", Op.ADD)
FFN_EXP_PROBS_B_VL = _block("exp_probs_b_vl", Op.ADD)
FFN_LATENT_DOWN = _block("ffn_latent_down", Op.MUL_MAT)
FFN_LATENT_UP = _block("ffn_latent_up", Op.MUL_MAT)
ATTN_NORM_2 = _block("attn_norm_2", Op.MUL)
ATTN_QKV = _block("attn_qkv", Op.MUL_MAT)
LAYER_OUT_NORM = _block("layer_output_norm", Op.MUL)
LAYER_OUT_SCALE = _block("layer_output_scale", Op.MUL)
ATTN_OUT_NORM = _block("attn_output_norm", Op.MUL)
FFN_ACT = _block("ffn.act", Op.DIV)
FFN_GATE_INP_SHEXP = _block("ffn_gate_inp_shexp", Op.MUL_MAT)
SSM_A_NOSCAN = Role("ssm_a_noscan", "blk.{}.ssm_a", LayerClass.REPEATING, Op.MUL, suffix="")
SSM_CONV1D = _block("ssm_conv1d", Op.SSM_CONV)
SSM_DT = _block("ssm_dt", Op.MUL_MAT)
SSM_BETA_ALPHA = _block("ssm_ba", Op.MUL_MAT)
SSM_ALPHA = _block("ssm_alpha", Op.MUL_MAT)
SSM_IN = _block("ssm_in", Op.MUL_MAT)
SSM_NORM = _block("ssm_norm", Op.MUL)
SSM_OUT = _block("ssm_out", Op.MUL_MAT)
SSM_X = _block("ssm_x", Op.MUL_MAT)
SSM_A = Role("ssm_a", "blk.{}.ssm_a", LayerClass.REPEATING, Op.SSM_SCAN, suffix="")
SSM_D = _block("ssm_d", Op.MUL)
SSM_DT_NORM = _block("ssm_dt_norm", Op.MUL)
SSM_B_NORM = _block("ssm_b_norm", Op.MUL)
SSM_C_NORM = _block("ssm_c_norm", Op.MUL)
SSM_CONV1D_Q = _block("ssm_conv1d_q", Op.MUL)
SSM_CONV1D_K = _block("ssm_conv1d_k", Op.MUL)
SSM_CONV1D_V = _block("ssm_conv1d_v", Op.MUL)
SSM_F_A = _block("ssm_f_a", Op.MUL_MAT)
SSM_F_B = _block("ssm_f_b", Op.MUL_MAT)
SSM_BETA = _block("ssm_beta", Op.MUL_MAT)
SSM_G_A = _block("ssm_g_a", Op.MUL_MAT)
SSM_G = _block("ssm_g", Op.MUL_MAT)
ATTN_RES_SCORE = _block("attn_res_score", Op.MUL)
FFN_RES_SCORE = _block("ffn_res_score", Op.MUL)
FFN_ROUTED_DOWN = _block("ffn_routed_down", Op.MUL_MAT)
FFN_ROUTED_UP = _block("ffn_routed_up", Op.MUL_MAT)
FFN_ROUTED_NORM = _block("ffn_routed_norm", Op.MUL)
SSM_G_B = _block("ssm_g_b", Op.MUL_MAT)
ATTN_Q_A_NORM = _block("attn_q_a_norm", Op.MUL)
ATTN_KV_A_NORM = _block("attn_kv_a_norm", Op.MUL)
ATTN_Q_A = _block("attn_q_a", Op.MUL_MAT)
ATTN_Q_B = _block("attn_q_b", Op.MUL_MAT)
ATTN_KV_A_MQA = _block("attn_kv_a_mqa", Op.MUL_MAT)
ATTN_KV_B = _block("attn_kv_b", Op.MUL_MAT)
ATTN_KV = _block("attn_kv", Op.MUL_MAT)
ATTN_KV_NORM = Role("attn_kv_norm", "blk.{}.attn_kv_a_norm", LayerClass.REPEATING, Op.MUL)
ATTN_OUT_A = _block("attn_output_a", Op.MUL_MAT)
ATTN_OUT_B = _block("attn_output_b", Op.MUL_MAT)
HC_ATTN_FN = _block("hc_attn_fn", Op.MUL_MAT)
HC_ATTN_BASE = _block("hc_attn_base", Op.ADD)
HC_ATTN_SCALE = _block("hc_attn_scale", Op.MUL)
HC_FFN_FN = _block("hc_ffn_fn", Op.MUL_MAT)
HC_FFN_BASE = _block("hc_ffn_base", Op.ADD)
HC_FFN_SCALE = _block("hc_ffn_scale", Op.MUL)
HC_ATTN_NORM = _block("hc_attn_norm", Op.MUL)
HC_ATTN_DOWN = _block("hc_attn_down", Op.MUL_MAT)
HC_ATTN_UP = _block("hc_attn_up", Op.MUL_MAT)
HC_ATTN_INJECT = _block("hc_attn_inject", Op.MUL_MAT)
HC_FFN_NORM = _block("hc_ffn_norm", Op.MUL)
HC_FFN_DOWN = _block("hc_ffn_down", Op.MUL_MAT)
HC_FFN_UP = _block("hc_ffn_up", Op.MUL_MAT)
HC_FFN_INJECT = _block("hc_ffn_inject", Op.MUL_MAT)
PLE_KEY = _block("ple_key", Op.MUL_MAT)
PLE_VALUE = _block("ple_value", Op.MUL_MAT)
PLE_NORM_KEY = _block("ple_norm_key", Op.MUL)
PLE_NORM_QUERY = _block("ple_norm_query", Op.MUL)
PLE_NORM_CONV = _block("ple_norm_conv", Op.MUL)
PLE_CONV1D = _block("ple_conv1d", Op.SSM_CONV)
ATTN_COMPRESSOR_WKV = _block("attn_compressor_kv", Op.MUL_MAT)
ATTN_COMPRESSOR_WGATE = _block("attn_compressor_gate", Op.MUL_MAT)
ATTN_COMPRESSOR_APE = _block("attn_compressor_ape", Op.GET_ROWS)
ATTN_COMPRESSOR_NORM = _block("attn_compressor_norm", Op.MUL)
PER_LAYER_INP_GATE = _block("inp_gate", Op.MUL_MAT)
PER_LAYER_PROJ = _block("proj", Op.MUL_MAT)
PER_LAYER_POST_NORM = _block("post_norm", Op.MUL)
ALTUP_CORRECT_COEF = _block("altup_correct_coef", Op.MUL_MAT)
ALTUP_CORRECT_SCALE = _block("altup_correct_scale", Op.MUL)
ALTUP_PREDICT_COEF = _block("altup_predict_coef", Op.MUL_MAT)
ALTUP_ROUTER = _block("altup_router", Op.MUL_MAT)
ALTUP_ROUTER_NORM = _block("altup_router_norm", Op.MUL)
LAUREL_L = _block("laurel_l", Op.MUL_MAT)
LAUREL_R = _block("laurel_r", Op.MUL_MAT)
LAUREL_POST_NORM = _block("laurel_post_norm", Op.MUL)
FFN_NORM_EXPS = _block("ffn_norm_exps", Op.MUL)
ATTN_K_B = _block("attn_k_b", Op.MUL_MAT)
ATTN_V_B = _block("attn_v_b", Op.MUL_MAT)
NEXTN_EH_PROJ = _block("nextn.eh_proj", Op.MUL_MAT)
NEXTN_EMBED_TOKENS = _block("nextn.embed_tokens", Op.GET_ROWS)
NEXTN_ENORM = _block("nextn.enorm", Op.MUL)
NEXTN_HNORM = _block("nextn.hnorm", Op.MUL)
NEXTN_SHARED_HEAD_HEAD = _block("nextn.shared_head_head", Op.MUL_MAT)
NEXTN_SHARED_HEAD_NORM = _block("nextn.shared_head_norm", Op.MUL)
ATTN_SUB_NORM = _block("attn_sub_norm", Op.MUL)
FFN_SUB_NORM = _block("ffn_sub_norm", Op.MUL)
TIME_MIX_W1 = _block("time_mix_w1", Op.MUL_MAT)
TIME_MIX_W2 = _block("time_mix_w2", Op.MUL_MAT)
TIME_MIX_LERP_X = _block("time_mix_lerp_x", Op.MUL)
TIME_MIX_LERP_W = _block("time_mix_lerp_w", Op.ADD)
TIME_MIX_LERP_K = _block("time_mix_lerp_k", Op.ADD)
TIME_MIX_LERP_V = _block("time_mix_lerp_v", Op.ADD)
TIME_MIX_LERP_R = _block("time_mix_lerp_r", Op.ADD)
TIME_MIX_LERP_G = _block("time_mix_lerp_g", Op.ADD)
TIME_MIX_LERP_FUSED = _block("time_mix_lerp_fused", Op.ADD)
TIME_MIX_FIRST = _block("time_mix_first", Op.RWKV_WKV6)
TIME_MIX_DECAY = _block("time_mix_decay", Op.ADD)
TIME_MIX_DECAY_W1 = _block("time_mix_decay_w1", Op.MUL_MAT)
TIME_MIX_DECAY_W2 = _block("time_mix_decay_w2", Op.MUL_MAT)
TIME_MIX_KEY = _block("time_mix_key", Op.MUL_MAT)
TIME_MIX_VALUE = _block("time_mix_value", Op.MUL_MAT)
TIME_MIX_RECEPTANCE = _block("time_mix_receptance", Op.MUL_MAT)
TIME_MIX_GATE = _block("time_mix_gate", Op.MUL_MAT)
TIME_MIX_LN = _block("time_mix_ln", Op.MUL)
TIME_MIX_OUTPUT = _block("time_mix_output", Op.MUL_MAT)
CHANNEL_MIX_LERP_K = _block("channel_mix_lerp_k", Op.MUL)
CHANNEL_MIX_LERP_R = _block("channel_mix_lerp_r", Op.MUL)
CHANNEL_MIX_KEY = _block("channel_mix_key", Op.MUL_MAT)
CHANNEL_MIX_VALUE = _block("channel_mix_value", Op.MUL_MAT)
CHANNEL_MIX_RECEPTANCE = _block("channel_mix_receptance", Op.MUL_MAT)
TIME_MIX_W0 = _block("time_mix_w0", Op.ADD)
TIME_MIX_A0 = _block("time_mix_a0", Op.ADD)
TIME_MIX_A1 = _block("time_mix_a1", Op.MUL_MAT)
TIME_MIX_A2 = _block("time_mix_a2", Op.MUL_MAT)
TIME_MIX_V0 = _block("time_mix_v0", Op.ADD)
TIME_MIX_V1 = _block("time_mix_v1", Op.MUL_MAT)
TIME_MIX_V2 = _block("time_mix_v2", Op.MUL_MAT)
TIME_MIX_G1 = _block("time_mix_g1", Op.MUL_MAT)
TIME_MIX_G2 = _block("time_mix_g2", Op.MUL_MAT)
TIME_MIX_K_K = _block("time_mix_k_k", Op.MUL)
TIME_MIX_K_A = _block("time_mix_k_a", Op.MUL)
TIME_MIX_R_K = _block("time_mix_r_k", Op.MUL)
ATTN_SINKS = _block("attn_sinks", Op.SCALE)
SHORTCONV_CONV = _block("shortconv.conv", Op.SSM_CONV)
SHORTCONV_INPROJ = _block("shortconv.in_proj", Op.MUL_MAT)
SHORTCONV_OUTPROJ = _block("shortconv.out_proj", Op.MUL_MAT)
FFN_GATE_CHEXPS = _block("ffn_gate_chexps", Op.MUL_MAT_ID)
FFN_DOWN_CHEXPS = _block("ffn_down_chexps", Op.MUL_MAT_ID)
FFN_UP_CHEXPS = _block("ffn_up_chexps", Op.MUL_MAT_ID)
VISEXP_ATTN_QKV = _block("vis_attn_qkv", Op.MUL_MAT)
VISEXP_ATTN_OUT = _block("vis_attn_output", Op.MUL_MAT)
VISEXP_FFN_GATE = _block("vis_gate", Op.MUL_MAT)
VISEXP_FFN_DOWN = _block("vis_down", Op.MUL_MAT)
VISEXP_FFN_UP = _block("vis_up", Op.MUL_MAT)
INDEXER_K_NORM = _block("indexer.k_norm", Op.MUL)
INDEXER_PROJ = _block("indexer.proj", Op.MUL_MAT)
INDEXER_ATTN_K = _block("indexer.attn_k", Op.MUL_MAT)
INDEXER_ATTN_Q_B = _block("indexer.attn_q_b", Op.MUL_MAT)
INDEXER_Q_PROJ = _block("indexer.q_proj", Op.MUL_MAT)
INDEXER_K_PROJ = _block("indexer.k_proj", Op.MUL_MAT)
INDEXER_Q_NORM = _block("indexer.q_norm", Op.MUL)
INDEXER_COMPRESSOR_WKV = _block("indexer_compressor_kv", Op.MUL_MAT)
INDEXER_COMPRESSOR_WGATE = _block("indexer_compressor_gate", Op.MUL_MAT)
INDEXER_COMPRESSOR_APE = _block("indexer_compressor_ape", Op.GET_ROWS)
INDEXER_COMPRESSOR_NORM = _block("indexer_compressor_norm", Op.MUL)
INDEXER_KPOOL_GATE = Role("indexer_kpool_gate", "blk.{}.indexer_compressor_gate", LayerClass.REPEATING, Op.MUL_MAT)
INDEXER_KPOOL_APE = Role("indexer_kpool_ape", "blk.{}.indexer_compressor_ape", LayerClass.REPEATING, Op.ADD)
FFN_GATE_TID2EID = _block("ffn_gate_tid2eid", Op.GET_ROWS)
DFLASH_ATTN_CONV_BASE = _block("attn_conv_base", Op.MUL)
DFLASH_ATTN_CONV_PROJ = _block("attn_conv_proj", Op.MUL_MAT)
DFLASH_FFN_CONV_BASE = _block("ffn_conv_base", Op.MUL)
DFLASH_FFN_CONV_PROJ = _block("ffn_conv_proj", Op.MUL_MAT)
