"""The experiments of docs/experiments: each is a module that measures and writes its page."""
