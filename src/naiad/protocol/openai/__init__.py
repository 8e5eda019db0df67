"""The OpenAI API: bodies ⇄ prompts, tensors of the model, and chunks."""
