"""Keys and values as bytes: numpy and the standard library only, no llama.cpp.

- layout: what a cache looks like, and rows taken out of one
- block_types, hadamard: from stored bytes to numbers and back
- state: sequence-state blobs to rows and back, inference of a layout, validation
- rotation, angles: how a model turns its keys with the position
- reposition, rows: rows for other positions, types and layouts; cutting, joining, averaging
- converter: the interface through which faster codecs come in
"""
