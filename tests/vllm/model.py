"""A model folder made on the spot: Qwen2's shape, random weights, a tokenizer trained on English.

Nothing is downloaded. vLLM draws the weights itself (`--load-format dummy`): what the model says is
noise, what its prompts cost and what its cache keeps is real. Cost: a few seconds, once.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from prompts import corpus

CONTEXT = 16384
END_OF_TEXT, BEGIN, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

# ChatML, with effort and tools where the usual templates have them: before everything else.
TEMPLATE = """\
{%- if reasoning_effort -%}
<|im_start|>system
Effort: {{ reasoning_effort }}<|im_end|>
{% endif -%}
{%- if tools -%}
<|im_start|>system
Tools: {{ tools | tojson }}<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content if message.content is string else message.content | map(attribute='text') | join('\\n') }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


def make(folder: Path) -> Path:
    """Writes configuration and tokenizer into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8192,
        special_tokens=[END_OF_TEXT, BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))

    ends_with = tokenizer.token_to_id(END)
    files = {
        "config.json": {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_act": "silu",
            "hidden_size": 512,
            "intermediate_size": 1408,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "vocab_size": tokenizer.get_vocab_size(),
            "eos_token_id": ends_with,
        },
        "generation_config.json": {"eos_token_id": ends_with},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "pad_token": END_OF_TEXT,
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
            "chat_template": TEMPLATE,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1))
    return folder
