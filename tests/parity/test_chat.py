"""The text of a conversation beside transformers, which runs the templates by Jinja."""

import pytest
import torch
import transformers
from test_parity import run_program

CHATML = """{%- if messages[0]['role'] == 'system' %}
{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}{%- if message.role == 'user' or message.role == 'assistant' %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
THINKS = """{%- for message in messages %}{%- set content = message.content %}
{%- if message.role == 'assistant' and '</think>' in content %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
LLAMA3 = ("{% set loop_messages = messages %}{% for message in loop_messages %}"
          "{% set content = '<|start_header_id|>' + "
          "message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}"
          "{% if loop.index0 == 0 %}"
          "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
          "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
GEMMA = ("{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
         "{% endif %}"
         "{% for message in messages %}{% if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}"
         "{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + "
         "'<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}")
ZEPHYR = ("{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + "
          "eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}"
          "\n"
          "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n"
          "{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}")
TEMPLATES = {"chatml": (CHATML, {}), "thinks": (THINKS, {}), "llama3": (LLAMA3, {"bos_token": "<|begin_of_text|>"}),
             "gemma": (GEMMA, {"bos_token": "<bos>"}), "zephyr": (ZEPHYR, {"eos_token": "</s>"})}
TALKS = {
    "one": [["user", "Hi"]],
    "spaces": [["user", "  Hi \n"], ["assistant", " Hello  "], ["user", "Bye"]],
    "system": [["system", "Be brief."], ["user", "Hi"], ["assistant", "Yes?"], ["user", "\u00e9 \U0001f642"]],
    "thoughts": [["user", "2+2"], ["assistant", "<think>\neasy\n</think>\n\n4"], ["user", "3+3"]],
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("talk", TALKS)
def test_the_text_is_that_of_jinja(name: str, talk: str) -> None:
    if name == "gemma" and talk == "system":
        pytest.skip("the template refuses a system message, and so do we: tests/generate/test_chat.cpp")
    template, tokens = TEMPLATES[name]
    messages = [{"role": role, "content": content} for role, content in TALKS[talk]]
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=empty_tokenizer(), **tokens)
    expected = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False,
                                             add_generation_prompt=True)
    found = run_program({"chat": template, "messages": TALKS[talk]}, {"input.tokens": torch.zeros(1)})
    assert bytes(found["text"].tolist()).decode() == expected


def empty_tokenizer():
    from tokenizers import Tokenizer, models
    return Tokenizer(models.BPE())
