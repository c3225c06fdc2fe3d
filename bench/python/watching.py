"""What watch() costs: a BERT-base encoder over one text of 512 tokens, plain, watched, and with statistics of all rows.

By turns in one process; medians, and half the distance of the quartiles.
"""

import torch
import transformers

import attention_cpp
import attention_cpp.transformers
from attention_cpp._watch import STATISTICS
from beside_torch import by_turns

ROUNDS = 15


def main():
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
        return watched()[0].statistics((*STATISTICS, "column_mass"))

    seen, result = watched()
    if not torch.equal(result, plain()) or len(seen.layers) != model.config.num_hidden_layers:
        raise SystemExit("a watched model computes something else")
    times = by_turns([plain, watched, with_statistics], ROUNDS)
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, transformers {transformers.__version__}\n")
    print("| BERT-base, 512 tokens | ms | of the plain one |\n|---|---:|---:|")
    for name, (middle, spread) in zip(("plain", "watched", "watched, statistics of all rows"), times):
        print(f"| {name} | {middle * 1e3:.0f} ± {spread * 1e3:.2g} | {middle / times[0][0]:.2f} |")


if __name__ == "__main__":
    main()
