"""Benchmarks of attention_cpp and of the program attn beside other libraries. bench/README.md says how to run them."""
