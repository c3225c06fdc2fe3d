// attention.cpp: everything public in one include.
#pragma once

#include "attn/attention.h"
#include "attn/core.h"
