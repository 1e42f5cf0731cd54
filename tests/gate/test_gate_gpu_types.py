"""GPUs of instance types outside the training catalogue: counted, none, or not known."""

from __future__ import annotations

import pytest

from slurm_ext.aws import gpu_types


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *(("g5.48xlarge", 8), ("g5.12xlarge", 4), ("g5.xlarge", 1), ("g6e.24xlarge", 4), ("g7e.12xlarge", 2)),
        *(("g4dn.metal", 8), ("p3.8xlarge", 4), ("p3dn.24xlarge", 8), ("gr6.8xlarge", 1)),
        *(("c7i.48xlarge", 0), ("hpc7a.96xlarge", 0), ("trn2.48xlarge", 0), ("m5.large", 0)),
        *(("p9.48xlarge", None), ("g4ad.xlarge", None), ("g6f.large", None), ("", None), ("x", None), ("c5.", None)),
    ],
)
def test_gpus_of_a_type(name, count):
    assert gpu_types.gpu_count(name) == count
