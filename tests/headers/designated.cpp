// A user's file: every option struct of the public headers, one field named, compiled with -Wall -Wextra -Werror.
// Fields that are left out must not warn, so each has a default.
#include "attn/attn.h"
#include "attn/view.h"
#include "attn/view_page.h"

namespace attn::test {

template <class... Options>
void take(const Options&...) {}

void designated_initialisers() {
  take(AttentionOptions{.causal = true}, AttentionGradients{.dq = {}}, BlockLayout{.query_block = 1},
       layouts::BigBirdOptions{.side = 1}, BlockSelection{.count = 1}, Window{.left = 1}, KVCacheConfig{.kv_heads = 1},
       Streaming{.window = 1}, KeyBand{.low = 1}, KeySets{.bands = {}}, RowStatistics<3>{.sum = {}},
       AttentionPicture{.cells = {}}, AttentionStatistics{.argmax_key = {}});
  take(ops::MatmulOptions{.batch_invariant = true}, ops::RopeOptions{.theta = 1}, ops::AdamWOptions{.beta1 = 0});
  take(autograd::TapeOptions{.record = true}, autograd::ColumnRuns{.first = 1}, autograd::Heads{.heads = 1},
       autograd::StatisticsSelection{.entropy = true});
  take(nn::Parameters::Options{.seed = 1}, nn::Variable{.name = "w"}, nn::LinearOptions{.bias = false},
       nn::EmbeddingOptions{.scale = 2}, nn::NormOptions{.rms = true}, nn::FeedForwardOptions{.gated = true},
       nn::SelfAttentionOptions{.causal = true}, nn::MultiHeadAttentionOptions{.heads = 2},
       nn::RopeScalingOptions{.factor = 2}, nn::BlockOptions{.parallel = true}, nn::AttentionInputs{.bias = {}},
       nn::CacheSlot{.cache = nullptr}, nn::LinearMixerOptions{.heads = 2}, nn::LstmOptions{.hidden_dim = 2},
       nn::ShortConvolutionOptions{.width = 2}, nn::MixerInputs{.state = nullptr}, nn::LinformerOptions{.heads = 2},
       nn::TransformerXLOptions{.memory = 1});
  take(models::Config{.vocab_size = 1}, models::Batch{.sequences = 1}, models::ForwardOptions{.last_only = true},
       models::OpenOptions{.precision = nn::Precision::bfloat16}, models::EmbedOptions{.normalize = true},
       models::GenerationConfig{.do_sample = true});
  take(generate::SamplingOptions{.top_k = 1}, generate::BeamOptions{.num_beams = 2},
       generate::GenerateOptions{.seed = 1}, generate::Speculation{.tokens = 1},
       generate::BatcherOptions{.max_requests = 1});
  take(train::LossScaling{.initial = 1}, train::TrainerOptions{.steps = 1}, train::Trainer::Events{.stop = {}},
       train::GateOptions{.steps = 1}, train::PruneOptions{.heads = 1}, train::HardConcrete{.low = -1});
  take(text::BatchOptions{.max_length = 1}, text::WordOptions{.min_count = 1},
       text::TokenizerTrainingOptions{.vocab_size = 1}, text::EncodeOptions{.max_length = 1});
  take(io::NamedTensor{.name = "w"}, heads::Texts{.ids = {}});
  take(Selection{.heads = {0}}, view::HeatmapOptions{.cell = 1}, view::PageTexts{.title = ""},
       view::PageWindow{.query = 1}, view::PageOptions{.most_bytes = 1}, RecorderOptions{.sequence = 1});
}

}  // namespace attn::test
