"""mamba_ssm's functions over the operator linear_attention; the public names are in attention_cpp.mamba_ssm."""
