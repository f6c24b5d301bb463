"""Small neural networks with dropout noise, and the experiments on them (float32 unless asked otherwise)."""
