"""The integration of JAX: attention_cpp.jax."""
