"""What one rank does in the test of the parallel layers: `python tp_layers.py FOLDER RANK SIZE` is a rank above 0."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F

from nanovllm_edu.engine.process_group import ProcessRanks, make_ranks
from nanovllm_edu.engine.tp_team import meeting_place
from nanovllm_edu.layers.embed_head import Embedding, Head
from nanovllm_edu.layers.parallel import ColumnParallelLinear, RowParallelLinear

HIDDEN, HEADS, HEAD_DIM, VOCAB = 10, 6, 4, 7  # three ranks take 3, 3 and 1 words of the vocabulary


def join(folder: Path, rank: int, size: int) -> ProcessRanks:
    return make_ranks(meeting_place(folder, size), rank, size, torch.device("cpu"), one_machine=True)


@torch.inference_mode()
def compute(ranks: ProcessRanks, pack: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of (what the parallel layers give on this rank, what the whole ones give)."""
    generator = torch.Generator().manual_seed(3)
    sizes = {"q": HEADS * HEAD_DIM, "k": HEAD_DIM, "v": HEAD_DIM}  # one key head, which every rank holds
    tensors = {f"{name}.weight": torch.randn(rows, HIDDEN, generator=generator) for name, rows in sizes.items()}
    tensors |= {f"{name}.bias": torch.randn(rows, generator=generator) for name, rows in sizes.items()}
    tensors |= {"o.weight": torch.randn(HIDDEN, HEADS * HEAD_DIM, generator=generator),
                "o.bias": torch.randn(HIDDEN, generator=generator),
                "words.weight": torch.randn(VOCAB, HIDDEN, generator=generator)}

    def read(name: str, index=slice(None)) -> torch.Tensor:
        return tensors[name][index]

    qkv = ColumnParallelLinear(HIDDEN, sizes, True, HEAD_DIM, ranks)
    out = RowParallelLinear(HEADS * HEAD_DIM, {"o": HIDDEN}, True, ranks)
    head = Head(HIDDEN, {}, VOCAB, ranks)
    embedding = Embedding("words", VOCAB, HIDDEN, head, ranks)
    for layer in (qkv, out, embedding):
        layer.load(read, pack)

    ids = torch.tensor([6, 0, 3, 2, 5])
    x, whole = embedding(ids), tensors["words.weight"][ids]
    pairs = [(x, whole)]
    share = HEADS // ranks.size * HEAD_DIM
    q, k, v = qkv(x).split([share, HEAD_DIM, HEAD_DIM], -1)
    full = {name: F.linear(whole, tensors[f"{name}.weight"], tensors[f"{name}.bias"]) for name in sizes}
    pairs += [(q, full["q"][:, ranks.rank * share:][:, :share]), (k, full["k"]), (v, full["v"])]
    want = F.linear(full["q"], tensors["o.weight"], tensors["o.bias"])
    pairs += [(out(q), want), (out(q, x), want + whole)]
    logits = head(x)
    if ranks.rank == 0:
        pairs.append((logits, whole @ tensors["words.weight"].T))
    elif logits is not None:
        raise AssertionError("only rank 0 gets logits")
    pairs.append((torch.tensor(float(ranks.smallest(5 + ranks.rank))), torch.tensor(5.0)))
    ranks.agree("the same")
    return pairs


def check(ranks: ProcessRanks) -> None:
    for pack in (False, True):
        for got, want in compute(ranks, pack):
            torch.testing.assert_close(got, want, atol=1e-5, rtol=0)


if __name__ == "__main__":
    check(join(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
