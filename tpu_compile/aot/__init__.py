"""What a program costs on a TPU, read off what the compiler made of it, with no TPU attached."""
