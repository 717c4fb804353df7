"""Models: names become folders with weights and a tokenizer. Two tiny ones are bundled."""
