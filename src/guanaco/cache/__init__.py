"""Which experts stay in memory: the policies in Python, plain enough to be checked by reading.

The native library runs its own, in C++. These are what it is compared with; nothing here runs while a model
decodes.
"""
