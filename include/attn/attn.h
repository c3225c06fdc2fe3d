// attention.cpp: everything public in one include. core, attention and heads need the library attn::attn alone; the
// rest needs attn::models.
#pragma once

#include "attn/attention.h"
#include "attn/attention_statistics.h"
#include "attn/autograd.h"
#include "attn/autograd_statistics.h"
#include "attn/core.h"
#include "attn/generate.h"
#include "attn/heads.h"
#include "attn/io.h"
#include "attn/models.h"
#include "attn/models_embed.h"
#include "attn/models_prune.h"
#include "attn/nn.h"
#include "attn/ops.h"
#include "attn/tensor.h"
#include "attn/text.h"
#include "attn/train.h"
#include "attn/train_pairs.h"
#include "attn/train_prune.h"
#include "attn/view.h"
#include "attn/view_page.h"
