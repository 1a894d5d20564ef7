"""Everything that render/ says, in one catalogue, so that a second language is a second dict.

A template is plain text with
- ``{name}``: a value (a request, a block, a hash, a number or a text);
- ``{name:token|tokens}``: a number with the word that goes with it (a language without plurals writes ``{name}``);
- ``**bold**``, and `` `code` ``, which may hold values.
"""
from __future__ import annotations

ENGLISH: dict[str, str] = {
    "start": "The start: nothing has happened yet.",

    "RequestAdded.first": "Request {seq} arrives with {n:token|tokens} and may generate up to {max}. "
                          "It is the first in the waiting queue.",
    "RequestAdded.behind": "Request {seq} arrives with {n:token|tokens} and may generate up to {max}. "
                           "It stands at the tail of the waiting queue, behind {prev}.",
    "RequestRefused": "Request {seq} is **turned away at the door** and nothing changes: {reason}.",
    "RequestScheduled.decode": "{seq} decodes: its newest token goes through the model in this step.",
    "RequestScheduled.complete": "{seq} prefills {n:token|tokens} in this step, all that it lacks, so it moves from "
                                 "**waiting to running**.",
    "RequestScheduled.chunk": "{seq} prefills a **chunk** of {n:token|tokens}: this step has no room for more. "
                              "It keeps its place in the waiting queue.",
    "RequestPreempted.other": "{for_seq} needs a block and the free queue is empty. {seq} is the newest request that "
                              "holds blocks, so it is **preempted**: it gives them up and waits at the head of the "
                              "waiting queue. `num_preemptions {before} → {after}`",
    "RequestPreempted.self": "{seq} needs a block, the free queue is empty and no newer request is there to give way, "
                             "so it is **preempted** itself: it gives up its blocks and waits at the head of the "
                             "waiting queue. `num_preemptions {before} → {after}`",
    "RequestFinished.eos": "{seq} is **finished**: the model produced its end-of-sequence token.",
    "RequestFinished.stop": "{seq} is **finished**: it produced what it was told to stop at.",
    "RequestFinished.length": "{seq} is **finished**: it has as many tokens as it may have.",
    "RequestFinished.aborted": "{seq} is **aborted**, wherever it stood.",
    "RequestFinished.kv_exhausted": "{seq} is **finished**: its next token would need more blocks than the whole "
                                    "pool has.",
    "RequestFinished.other": "{seq} is **finished**: {reason}.",
    "RequestRestored": "The step failed, so {seq} is as it was before it and waits for its place again.",
    "RequestRestored.removed": "The step failed, so {seq} is as it was before it and waits for its place again; "
                               "{n:token|tokens} that the step had added are dropped.",
    "QueuesRestored": "After the failed step every request that is not finished waits, in order of arrival: {seqs}.",
    "QueuesRestored.none": "After the failed step no request is left in the queues.",

    "PrefixLookup.hit_used": "{seq} looks up its logical block {logical}: hash {hash} is in the map and its whole "
                             "prefix matches: block {block}, **in use** by another request.",
    "PrefixLookup.hit_free": "{seq} looks up its logical block {logical}: hash {hash} is in the map and its whole "
                             "prefix matches: block {block}, **free but still cached**.",
    "PrefixLookup.miss": "{seq} looks up its logical block {logical}: hash {hash} is **not in the map**. The lookup "
                         "stops here, for each hash seals all tokens before it: no later block can match either.",
    "PrefixLookup.collision": "{seq} looks up its logical block {logical}: hash {hash} leads to block {block}, but "
                              "that block stands for another prefix, a **collision**. It is not reused, and the "
                              "lookup stops here.",
    "PrefixLookup.last_block": "{seq} does not look up its last block, logical block {logical}: at least one token "
                               "must go through the model, or there would be no logits to sample from.",
    "AllocationDenied": "{seq} needs {n:free block|free blocks} and the free queue holds {free}: it **keeps "
                        "waiting**, and so do all behind it.",
    "PrefixReused": "{seq} starts {n:token|tokens} ahead: the keys and values in the blocks it hit are computed "
                    "already. `num_cached_tokens {before} → {after}`",

    "EntryEvicted": "Block {block} is about to lose its tokens, so the entry {hash} **leaves the map**: they can't be "
                    "found any more.",
    "EntryEvicted.heir": "Block {block} is about to lose its tokens, so the entry {hash} now leads to block {heir}, "
                         "another copy of the same prefix.",
    "BlockTaken.empty": "{seq} takes block {block} from the **head of the free queue** as its logical block "
                        "{logical}; it was empty. `ref_count {before} → {after}`",
    "BlockTaken.overwrites": "{seq} takes block {block} from the **head of the free queue** as its logical block "
                             "{logical}; what was in it, {hash}, is overwritten. `ref_count {before} → {after}`",
    "BlockShared": "{seq} **shares** block {block} as its logical block {logical}: nothing is copied, nothing is "
                   "computed again. `ref_count {before} → {after}`",
    "BlockRevived.middle": "{seq} lifts block {block} out of the **middle of the free queue** (between {prev} and "
                           "{next}) as its logical block {logical}. `ref_count {before} → {after}`",
    "BlockRevived.head": "{seq} lifts block {block} out of the free queue, from its **head** (before {next}), as its "
                         "logical block {logical}. `ref_count {before} → {after}`",
    "BlockRevived.tail": "{seq} lifts block {block} out of the free queue, from its **tail** (behind {prev}), as its "
                         "logical block {logical}. `ref_count {before} → {after}`",
    "BlockRevived.only": "{seq} lifts block {block}, the **only one in the free queue**, as its logical block "
                         "{logical}. `ref_count {before} → {after}`",
    "BlockRegistered.first": "Block {block}, logical block {logical} of {seq}, is full: it is **registered** under "
                             "{hash}, the hash of its tokens.",
    "BlockRegistered.link": "Block {block}, logical block {logical} of {seq}, is full: it is **registered** under "
                            "{hash}, the hash of its parent's hash {parent} and its own tokens.",
    "BlockRegistered.first.moved": "Block {block}, logical block {logical} of {seq}, is full: it is **registered** "
                                   "under {hash}, the hash of its tokens. The entry led to block {old} until now.",
    "BlockRegistered.link.moved": "Block {block}, logical block {logical} of {seq}, is full: it is **registered** "
                                  "under {hash}, the hash of its parent's hash {parent} and its own tokens. The entry "
                                  "led to block {old} until now.",
    "BlockReleased.last": "{seq} gives up block {block}, its logical block {logical}; nobody holds it any more. "
                          "`ref_count {before} → {after}`",
    "BlockReleased.shared": "{seq} gives up block {block}, its logical block {logical}; {after:other request still "
                            "holds|other requests still hold} it. `ref_count {before} → {after}`",
    "BlockReturned.behind": "Block {block} goes to the **tail of the free queue**, behind {prev}. What is in it stays "
                            "until it is taken again.",
    "BlockReturned.first": "Block {block} goes to the **free queue**, which was empty. What is in it stays until it "
                           "is taken again.",
    "TableCleared": "The block table of {seq} is empty: it gave back {blocks}, the last one first. "
                    "`num_cached_tokens {before} → 0`",
    "BlockForgotten": "The prefix cache is reset: block {block} forgets its hash {hash} and its tokens.",
    "LedgerReset": "The ledger was interrupted in the middle of a change, so it begins anew: {n:free block|free "
                   "blocks} of {size:token|tokens}, nothing cached.",

    "StepBegan": "**Step {step}** begins: the scheduler chooses who runs.",
    "BatchScheduled.prefill": "The batch of step {step} is chosen: **prefill** of {seqs}. {n:token goes|tokens go} "
                              "through the model.",
    "BatchScheduled.decode": "The batch of step {step} is chosen: **decode** of {seqs}. {n:token goes|tokens go} "
                             "through the model.",
    "BatchScheduled.mixed": "The batch of step {step} is chosen: **prefill and decode** of {seqs}. {n:token "
                            "goes|tokens go} through the model.",
    "BatchScheduled.none": "Nothing can run in step {step}.",
    "TokensComputed": "The model has written the keys and values of {n:token|tokens} of {seq}. "
                      "`num_cached_tokens {before} → {after}`",
    "TokenAppended": "{seq} gets token number {n}: `{token}`. Its keys and values are computed when it next runs.",
    "StepEnded": "Step {step} is done.",
    "StepEnded.failed": "Step {step} **failed**: every request is as it was before it.",

    "and_more": "{n} more",

    "picture.title": "Control room",
    "picture.step": "step {n}",
    "picture.counts": "{running} running, {waiting} waiting · {free} of {blocks} blocks free",
    "picture.size": "{blocks:block|blocks} of {size:token|tokens}",
    "picture.description": "A picture of the KV cache's ledger at step {step}: {used} of {blocks} blocks in use, "
                           "{cached} free but still cached, {free} free.",
    "picture.note": "A still picture of the moment when this cell ran. Run the cell again for the live view.",
    "pool": "Block pool",
    "pool.hint": "place = block id",
    "pool.more": "{n:block|blocks} more, {used} of them in use",
    "tables": "Block tables",
    "tables.hint": "logical → physical",
    "tables.none": "no request has come yet",
    "queue": "Free queue",
    "queue.hint": "taken at the head, given back at the tail",
    "queue.head": "head",
    "queue.tail": "tail",
    "queue.none": "no block is free",
    "queue.more": "{n:block|blocks} more",
    "hashes": "Hash chains",
    "hashes.hint": "each link seals the whole prefix",
    "hashes.none": "no request holds a block",
    "state.used": "used",
    "state.cached": "free, still cached",
    "state.free": "free",
    "block.used": "Block {block}: used, ref_count {refs}, {fill} of {size:token|tokens}",
    "block.cached": "Block {block}: free, still cached, {size:token|tokens}",
    "block.free": "Block {block}: free",
    "block.hash": "hash {hash}",
    "block.holders": "held by {seqs}",
    "seq.row": "{seq} · {phase} · {n:token|tokens}",
    "phase.waiting": "waiting",
    "phase.prefill": "prefill",
    "phase.decode": "decode",
    "phase.finished": "finished",
    "cell.cached": "{fill}/{size}",
    "chain.open": "{fill}/{size}: no hash yet",
}

CATALOGUES: dict[str, dict[str, str]] = {"en": ENGLISH}
