"""Imatrix files as llama-imatrix writes them: sums and counts of every weight that was multiplied."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

from guanaco.model.map import ModelMap


def write_imatrix(
    model: ModelMap, path: Path, counts: Sequence[Sequence[float]], *, kind: str = "imatrix"
) -> Path:
    """``counts[group][expert]``; a group with none is left out, as one that was never run."""
    writer = gguf.GGUFWriter(path, arch="")
    writer.kv_data[0].pop("general.architecture", None)
    writer.add_string("general.type", kind)
    writer.add_array("imatrix.datasets", ["made-up.txt"])
    writer.add_uint32("imatrix.chunk_count", 10)
    writer.add_uint32("imatrix.chunk_size", 512)
    for group, values in zip(model.groups, counts, strict=True):
        for part in group.parts if values else ():
            sums = np.ones((len(values), 4), np.float32)
            writer.add_tensor(f"{part.tensor_name}.in_sum2", sums)
            writer.add_tensor(f"{part.tensor_name}.counts", np.array(values, np.float32).reshape(-1, 1))
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
