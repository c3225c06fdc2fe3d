"""flash-linear-attention's functions over the operator; the public names are in attention_cpp.fla."""
