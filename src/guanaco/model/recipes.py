"""What tensors and metadata alone do not say, as table rows: architectures, expert tensor names, lazy
tables.

Data only; no function, and no architecture's name anywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from guanaco.units import GIB

# what llama.cpp of the pinned engine loads as a main model
_ARCHS = """
afmoe apertus arcee arctic arwkv7 baichuan bailingmoe bailingmoe2 bailingmoe3 bert bitnet bloom chameleon
chatglm clef codeshell cogvlm cohere2 cohere2moe command-r dbrx deci deepseek deepseek2 deepseek2-ocr
deepseek32 deepseek4 dflash dots1 dots3note dream eagle3 ernie4_5 ernie4_5-moe eurobert exaone exaone-moe
exaone4 falcon falcon-h1 gemma gemma-embedding gemma-embedding2 gemma2 gemma3 gemma3n gemma4
gemma4-assistant glm-dsa glm4 glm4moe glm5-next gpt-oss gpt2 gptneox granite granite_swa granitehybrid
granitemoe graniteswitch grok grovemoe hrm_text hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 hy_v4 internlm2
jais jais2 jamba jina-bert-v2 jina-bert-v3 k2-horizon kimi-k3 kimi-linear laguna lfm2 lfm2moe llada
llada-moe llama llama-embed llama4 maincoder mamba mamba2 maple mellum mimo2 minicpm minicpm3 minimax-01
minimax-m2 minimax-m3 mistral3 mistral4 modern-bert mpt muse-glimmer nanbeige nemotron nemotron_h
nemotron_h_moe neo-bert nomic-bert nomic-bert-moe olmo olmo2 olmoe openelm orion paddleocr pangu-embedded
phi2 phi3 phimoe plamo plamo2 plamo3 plm pockettts qwen qwen2 qwen2moe qwen2vl qwen3 qwen35 qwen35moe
qwen3moe qwen3next qwen3tts qwen3vl qwen3vlmoe qwen4exp refact rnd1 rwkv6 rwkv6qwen2 rwkv7 seed_oss
smallthinker smollm3 spark2_5 stablelm starcoder starcoder2 step35 t5 t5encoder talkie wavtokenizer-dec
xverse
"""
ENGINE_ARCHS = frozenset(_ARCHS.split())

# of these, what gives out embeddings and no text
_EMBEDDERS = """
bert eurobert gemma-embedding gemma-embedding2 jina-bert-v2 jina-bert-v3 llama-embed modern-bert neo-bert
nomic-bert nomic-bert-moe t5encoder
"""
EMBEDDING_ARCHS = frozenset(_EMBEDDERS.split())

# llama.cpp's own limits; beyond them it aborts
MAX_LAYERS = 512
MAX_EXPERTS = 1024

# GGUF files that are not models, by general.type or general.architecture
NOT_MODELS = MappingProxyType(
    {
        "adapter": "an adapter (LoRA)",
        "clip": "a vision or audio projector",
        "control_vector": "a control vector",
        "controlvector": "a control vector",
        "imatrix": "an importance matrix",
        "mmproj": "a vision or audio projector",
    }
)


@dataclass(frozen=True)
class ExpertFamily:
    """One way to store a layer's experts: 3-D tensors ``blk.N.NAME.weight``, one slice an expert."""

    name: str
    roles: MappingProxyType[str, str]  # tensor name -> role
    layouts: tuple[tuple[str, ...], ...]  # the sets of roles that make a whole expert, in reading order
    count_key: str
    used_key: str
    share_key: str | None = None  # this many of count_key share one expert


FAMILIES = (
    ExpertFamily(
        name="exps",
        roles=MappingProxyType(
            {
                "ffn_gate_exps": "gate",
                "ffn_up_exps": "up",
                "ffn_gate_up_exps": "gate_up",
                "ffn_down_exps": "down",
            }
        ),
        layouts=(("gate", "up", "down"), ("gate_up", "down"), ("up", "down")),
        count_key="expert_count",
        used_key="expert_used_count",
    ),
    ExpertFamily(
        name="chexps",  # a smaller expert shared by a group of neighbours
        roles=MappingProxyType({"ffn_gate_chexps": "gate", "ffn_up_chexps": "up", "ffn_down_chexps": "down"}),
        layouts=(("gate", "up", "down"), ("up", "down")),
        count_key="expert_count",
        used_key="expert_used_count",
        share_key="experts_per_group",
    ),
    ExpertFamily(
        name="v_exps",  # routed value projections of the attention
        roles=MappingProxyType({"attn_v_exps": "value"}),
        layouts=(("value",),),
        count_key="attention.value_expert_count",
        used_key="attention.value_expert_used_count",
    ),
)

# tables read by rows while decoding, when larger than this
LAZY_TABLE_BYTES = 4 * GIB


@dataclass(frozen=True)
class Recipe:
    """What is particular to one architecture."""

    lazy_tables: tuple[str, ...] = ()
    single_expert_is_dense: bool = False  # an expert count of 1 means no experts


DEFAULT_RECIPE = Recipe()
RECIPES = MappingProxyType(
    {
        "gemma4": Recipe(lazy_tables=("per_layer_token_embd.weight",)),
        "hunyuan-dense": Recipe(single_expert_is_dense=True),
        "hunyuan_vl": Recipe(single_expert_is_dense=True),
        "qwen4exp": Recipe(lazy_tables=("per_layer_token_embd.weight",)),
    }
)
