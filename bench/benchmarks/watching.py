"""What watch() costs: a BERT-base encoder over one text of 512 tokens, plain, watched, and with statistics of all
rows."""

import argparse
from collections.abc import Iterator

import torch
import transformers

import attention_cpp
import attention_cpp.transformers

from .results import Row
from .timing import in_turn


STATISTICS = ("entropy", "maximum", "distance", "first", "self", "previous", "column_mass")


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[Row]:
    about |= {"torch": torch.__version__, "transformers": transformers.__version__}
    torch.set_num_threads(options.threads[-1])
    transformers.logging.set_verbosity_error()
    attention_cpp.transformers.register()
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(transformers.BertConfig(), attn_implementation="attention_cpp").eval()
    ids = torch.randint(1000, 30000, (1, 512))

    def plain():
        with torch.no_grad():
            return model(ids).last_hidden_state

    def watched():
        with attention_cpp.watch(model) as seen:
            return seen, plain()

    def with_statistics():
        return watched()[0].statistics(STATISTICS)

    seen, result = watched()
    if not torch.equal(result, plain()) or len(seen.layers) != model.config.num_hidden_layers:
        raise SystemExit("a watched model computes something else")
    taken = in_turn([plain, watched, with_statistics], options.repeats or 15)
    for name, samples in zip(("plain", "watched", "watched, statistics of all rows"), taken):
        yield {"BERT-base, 512 tokens": name, "ms": samples.median * 1e3, "+- ms": samples.quartiles * 1e3,
               "of the plain one": samples.median / taken[0].median}
