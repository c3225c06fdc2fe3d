"""Attention over process groups of torch: attention_cpp.torch.distributed."""
