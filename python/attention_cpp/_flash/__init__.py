"""The integration with flash-attention's functions: attention_cpp.flash_attn."""
