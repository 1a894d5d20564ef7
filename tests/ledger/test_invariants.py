"""The law, article by article: each breach is told in its own sentence, and a sound ledger in none."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from nanovllm_edu.engine import BlockManager, Sequence, SequenceStatus, check_invariants, violations
from nanovllm_edu.errors import LedgerError
from tests.ledger.helpers import admit


def sound() -> tuple[BlockManager, list[Sequence]]:
    """Six blocks of 2: request 0 holds 0 1 2, request 1 shares 0 and holds 3; 4 is cached; 5 is free. Queue 5 4."""
    manager = BlockManager(6, 2)
    seqs = [admit(manager, [1, 2, 3, 4, 5], seq_id=0), admit(manager, [1, 2, 6], seq_id=1)]
    gone = admit(manager, [8, 9], seq_id=2)
    assert gone.block_table == [4]
    manager.deallocate(gone)
    return manager, [*seqs, gone]


Breach = Callable[[BlockManager, list[Sequence]], object]


def set_(name: str, block_id: int, value: object) -> Breach:
    return lambda bm, seqs: setattr(bm.blocks[block_id], name, value)


def doubled(bm: BlockManager, seqs: list[Sequence]) -> None:
    bm.free_block_ids = [5, 4, 5]


def lying_length(bm: BlockManager, seqs: list[Sequence]) -> None:
    bm.free_block_ids._len = 3


def crooked_links(bm: BlockManager, seqs: list[Sequence]) -> None:
    bm.free_block_ids._tail.prev_free = bm.blocks[5]


def outside(bm: BlockManager, seqs: list[Sequence]) -> None:
    bm.used_block_ids |= {6, -1}


def finished(bm: BlockManager, seqs: list[Sequence]) -> None:
    seqs[0].status = SequenceStatus.FINISHED


def map_to(block_id: int) -> Breach:
    return lambda bm, seqs: bm.hash_to_block_id.update({0xAB: block_id})


BREACHES: list[tuple[Breach, list[str]]] = [
    (lying_length, ["the free queue says it holds 3 blocks, but a walk finds 2"]),
    (crooked_links, ["the free queue read from its tail is not the free queue read from its head"]),
    (doubled, ["block 5 stands 2 times in the free queue"]),
    (outside, ["block -1 is not in the pool, which has blocks 0 to 5",
               "block 6 is not in the pool, which has blocks 0 to 5"]),
    (set_("block_id", 3, 7), ["the block at place 3 calls itself 7"]),
    (lambda bm, seqs: bm.used_block_ids.add(5), ["block 5 is both free and used",
                                                 "block 5 is used with ref_count 0"]),
    (lambda bm, seqs: bm.used_block_ids.discard(3), ["block 3 is neither free nor used: it is lost"]),
    (lambda bm, seqs: bm.free_block_ids.remove(5), ["block 5 is neither free nor used: it is lost"]),
    (set_("ref_count", 5, 1), ["block 5 is in the free queue with ref_count 1",
                               "block 5 has ref_count 1, and 0 of the given block tables hold it"]),
    (set_("ref_count", 5, -1), ["block 5 is in the free queue with ref_count -1",
                                "block 5 has ref_count -1, and 0 of the given block tables hold it"]),
    (set_("ref_count", 3, 0), ["block 3 is used with ref_count 0",
                               "block 3 has ref_count 0, and 1 of the given block tables hold it"]),
    (set_("ref_count", 0, 1), ["block 0 has ref_count 1, and 2 of the given block tables hold it"]),
    (set_("ref_count", 1, 2), ["block 1 has ref_count 2, and 1 of the given block tables hold it"]),
    (lambda bm, seqs: seqs.pop(1), ["block 0 has ref_count 2, and 1 of the given block tables hold it",
                                    "block 3 has ref_count 1, and 0 of the given block tables hold it"]),
    (lambda bm, seqs: seqs[1].block_table.__setitem__(1, 0),
     ["request 1 holds block 0 2 times", "block 3 has ref_count 1, and 0 of the given block tables hold it",
      "block 0 is registered, but request 1 is still filling it",
      "block 0 is shared, but request 1 is still filling it"]),
    (finished, ["request 0 is finished and still holds blocks [0, 1, 2]"]),
    (lambda bm, seqs: seqs[1].truncate(2), ["request 1 holds 2 blocks and needs 1",
                                            "request 1 has 3 cached tokens of 2"]),
    (lambda bm, seqs: setattr(seqs[1], "num_cached_tokens", 4), [
        "request 1 has 4 cached tokens of 3"]),
    (lambda bm, seqs: seqs[2].__setattr__("num_cached_tokens", 1), [
        "request 2 has 1 cached tokens in 0 blocks of 2"]),
    (map_to(6), ["the map leads from 00000000000000ab to block 6, which is not in the pool"]),
    (map_to(-1), ["the map leads from 00000000000000ab to block -1, which is not in the pool"]),
    (map_to(5), ["the map leads from 00000000000000ab to block 5, which has no hash"]),
    (map_to(0), ["the map leads from 00000000000000ab to block 0, which has hash 4b180fec3ef3d4ac"]),
    (set_("hash", 5, 0xCD), ["block 5 is registered with 0 tokens of 2"]),
    (lambda bm, seqs: bm.blocks[4].update(bm.blocks[4].hash, [8, 9, 9]), [
        "block 4 is registered with 3 tokens of 2"]),
    (lambda bm, seqs: bm.blocks[2].update(0xEF, [5, 6]), ["block 2 is registered, but request 0 is still filling it"]),
    (lambda bm, seqs: bm.blocks[1].update(bm.blocks[1].hash, [3, 5]), [
        "block 1 is registered for other tokens than block 1 of request 0"]),
    (lambda bm, seqs: seqs[0].block_table.__setitem__(2, 6), [
        "block 2 has ref_count 1, and 0 of the given block tables hold it",
        "request 0 holds block 6, which is not in the pool"]),
    (lambda bm, seqs: seqs[0].block_table.__setitem__(2, -1), [
        "block 2 has ref_count 1, and 0 of the given block tables hold it",
        "request 0 holds block -1, which is not in the pool"]),
]


def test_a_sound_ledger_breaks_nothing() -> None:
    manager, seqs = sound()
    assert violations(manager, seqs) == []
    check_invariants(manager, iter(seqs))
    check_invariants(BlockManager(3, 2))
    assert check_invariants(manager, seqs[::-1]) is None


@pytest.mark.parametrize("number", range(len(BREACHES)))
def test_every_breach_is_told(number: int) -> None:
    breach, sentences = BREACHES[number]
    manager, seqs = sound()
    breach(manager, seqs)
    assert violations(manager, seqs) == sentences
    with pytest.raises(LedgerError) as caught:
        check_invariants(manager, seqs)
    assert str(caught.value) == "the ledger breaks its law:\n" + "\n".join(f"- {sentence}" for sentence in sentences)


def test_a_block_that_is_full_but_for_one_token_is_still_filling() -> None:
    manager, seqs = sound()
    seqs[0].num_cached_tokens = 3
    assert violations(manager, seqs) == ["block 1 is registered, but request 0 is still filling it"]


def test_it_needs_only_what_the_chapter_names() -> None:
    """A learner's manager has a deque and dictionaries and nothing else, and is judged all the same."""
    class Plain:
        pass

    manager, seqs = sound()
    plain = Plain()
    plain.blocks = []
    for block in manager.blocks:
        mine = Plain()
        mine.block_id, mine.ref_count, mine.hash, mine.token_ids = (
            block.block_id, block.ref_count, block.hash, tuple(block.token_ids))
        plain.blocks.append(mine)
    plain.block_size, plain.free_block_ids = 2, list(manager.free_block_ids)
    plain.used_block_ids, plain.hash_to_block_id = list(manager.used_block_ids), manager.hash_to_block_id
    assert violations(plain, seqs) == []
    plain.blocks[3].ref_count = 2
    assert violations(plain, seqs) == ["block 3 has ref_count 2, and 1 of the given block tables hold it",
                                       "block 3 is shared, but request 1 is still filling it"]
