"""The integration of transformers: attention_cpp.transformers."""
