"""The streaming engine: prompts in, frames out, block by block."""
