"""The benchmark runs and prints its table; how fast anything is, no test asserts."""

from __future__ import annotations

import re

from nanovllm_edu import bench


def test_the_table(tiny, capsys):
    assert bench.bench(tiny(), rounds=1, dtype="float32") == 0
    out = capsys.readouterr().out
    rows = re.findall(r"^(\d+) x \S+ -> (\d+) +([\d.]+) +([\d.]+) +([\d.]+) +(\d+) ms$", out, re.MULTILINE)
    assert [(row[0], row[1]) for row in rows] == [("1", "128"), ("16", "64")]
    assert all(float(number) > 0 for row in rows for number in row[2:5])


def test_alone(tiny, capsys):
    assert bench.bench(tiny(), rounds=1, peer=False, dtype="float32") == 0
    assert "transformers" not in capsys.readouterr().out


def test_workloads_never_repeat_a_prefix():
    workload = bench.Workload(16, (32, 128), 64)
    first, second = workload.prompts(1000, 0), workload.prompts(1000, 1)
    assert [len(prompt) for prompt in first] == [len(prompt) for prompt in second]
    assert (len(first[0]), len(first[-1])) == (32, 128)
    assert len({tuple(prompt[:16]) for prompt in first + second}) == 32
