"""Weights: new parameters reach the generator through memory that both processes can see."""
