"""What attention_cpp.causal_conv1d consists of."""
