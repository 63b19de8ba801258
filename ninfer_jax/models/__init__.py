"""Two real models on packed weights: the MiniLM sentence encoder and a Llama-architecture decoder."""

from ninfer_jax.models.generation import TextModel as TextModel
from ninfer_jax.models.gguf_checkpoint import write_checkpoint as write_checkpoint
from ninfer_jax.models.minilm import MiniLM as MiniLM
