"""The integration of Hugging Face transformers: attention_cpp.transformers."""
