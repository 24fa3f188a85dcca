"""One policy a file. ``registry`` lists those that can run; ``belady`` knows the future and cannot."""
