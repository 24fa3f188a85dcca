"""Run mixture-of-experts GGUF models larger than memory, on unmodified llama.cpp."""

__version__ = "0.1.0"
