"""What the engine takes as a prompt, and what it refuses, by name, before anything has run."""

from __future__ import annotations

import pytest

from nanovllm_edu import RequestError, SamplingParams
from tests.engine.helpers import GREEDY, assert_empty
from tests.engine.tiny import some_tokens


def numpy_and_torch():
    import numpy as np
    import torch

    return [np.array([1, 2, 3]), np.array([1, 2, 3], dtype=np.uint8), torch.tensor([1, 2, 3]), [np.int64(1), 2, 3],
            [torch.tensor(1), 2, 3], (1, 2, 3), range(1, 4)]


def test_token_ids_come_in_many_containers(tiny_llm):
    llm = tiny_llm()
    want = llm.generate([1, 2, 3], GREEDY, use_tqdm=False)[0]
    for prompt in numpy_and_torch():
        for prompts in (prompt, [prompt]):
            assert llm.generate(prompts, GREEDY, use_tqdm=False)[0].token_ids == want.token_ids, repr(prompts)


def bad_prompts():
    import numpy as np
    import torch

    return [
        ("", "empty"), ([], "empty"), ((), "empty"), (range(0), "empty"), (np.array([], dtype=int), "empty"),
        (None, "NoneType"), (5, "int"), (b"bytes", "bytes"), ({1: 2}, "dict"), ([1, True], "token 1 is True"),
        ([1.0, 2], "token 0 is 1.0"), ([1, -1], "token 1 is -1"), ([1, 320], "from 0 to 319"),
        ([1, None], "token 1 is None"),
        ([1, "a"], "token 1 is 'a'"), ([[1]], "token 0 is"), (np.array([0.5]), "token 0 is 0.5"),
        (np.array([True]), "token 0 is True"), (torch.tensor([1.5]), "token 0 is 1.5"),
        ([float("nan")], "token 0 is nan"),
        ([np.bool_(True)], "token 0 is"), (np.ones((1, 2), dtype=int), "2 dimensions"), ([10**30], "token 0 is 1000"),
        (some_tokens(1024), "max_model_len"), (some_tokens(801), "pool has 200"),
    ]


@pytest.mark.parametrize("prompt,words", bad_prompts())
def test_bad_prompts_are_refused_by_name(tiny_llm, prompt, words):
    llm = tiny_llm()
    with pytest.raises(RequestError, match=words):
        llm.add_request(prompt)
    with pytest.raises(RequestError, match=f"prompt 1: .*{words}"):
        llm.generate(["fine", prompt, "fine"], GREEDY)
    assert_empty(llm)
    assert llm.scheduler.step == 0, "nothing has run"
    assert len(llm.generate("fine", GREEDY, use_tqdm=False)) == 1


@pytest.mark.parametrize("params,words", [
    ([GREEDY], "1 sampling_params for 2"), ([GREEDY] * 3, "3 sampling_params for 2"),
    ({"temperature": 0}, "dict|temperature"),
    ([GREEDY, None], r"sampling_params\[1\]"), (0.5, "0.5"), (SamplingParams(stop_token_ids=[320]), "320"),
])
def test_bad_parameters_are_refused(tiny_llm, params, words):
    llm = tiny_llm()
    with pytest.raises(RequestError, match=words):
        llm.generate(["a", "b"], params)
    assert_empty(llm)
